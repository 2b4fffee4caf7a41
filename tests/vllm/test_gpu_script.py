"""tests/gpu/check_kernels.py is run on machines that are not here; what of it needs no GPU runs here."""

import importlib.util
import sys
from pathlib import Path

import pytest


def load():
    path = Path(__file__).parents[1] / "gpu" / "check_kernels.py"
    spec = importlib.util.spec_from_file_location("check_kernels", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_kernels"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("check", ["check_float64", "check_reference", "check_pack"])
def test_its_checks_pass_under_the_interpreter(check):
    script = load()
    results = list(getattr(script, check)(script.Shape(rows=12, vocab=5000, positions=3, device="cpu")))
    assert results
    assert all(result.ok for result in results), [str(r) for r in results if not r.ok]


def test_its_step_check_passes_without_cuda(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    script = load()
    results = list(script.check_step(script.Shape(rows=4, vocab=50, positions=2, device="cpu")))
    assert all(result.ok for result in results), [str(r) for r in results if not r.ok]


def test_it_says_when_there_is_no_gpu(monkeypatch, capsys):
    import torch

    if torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["check_kernels.py"])
    assert load().main() == 2
    assert "no CUDA device" in capsys.readouterr().err
