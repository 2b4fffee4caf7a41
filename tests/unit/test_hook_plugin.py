"""The entry point: inert without an address, never raising, saying one line. A stand-in package plays vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vllm_client_hook.imports import after_import

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys, threading
from vllm_client_hook.plugin import register
register()
register()
import vllm.v1.worker.gpu.spec_decode.speculator as speculator
print(type(getattr(speculator, "OnlineAcceptanceEstimator", None)).__name__)
print({"grpc", "torch", "ssl"} & set(sys.modules), threading.active_count(), len(sys.meta_path))
"""

ESTIMATOR = """
class OnlineAcceptanceEstimator:
    def __init__(self, max_num_reqs, num_speculative_steps, device): ...
    def step(self, idx_mapping, num_sampled, num_rejected): ...
    def predict(self, logits, idx_mapping, draft_step, confidence_probs, temperature): ...
"""


def in_a_fresh_process(tmp_path, environment, *, version="0.32.0", speculator=ESTIMATOR) -> tuple[list[str], list[str]]:
    """(what the script printed, what was logged)."""
    package = tmp_path / "vllm" / "v1" / "worker" / "gpu" / "spec_decode"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:4]):
        (folder / "__init__.py").write_text("")
    (tmp_path / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (tmp_path / "vllm" / "logger.py").write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.INFO, format='LOG %(message)s')\n"
        "init_logger = logging.getLogger\n"
    )
    (package / "speculator.py").write_text(textwrap.dedent(speculator))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACCEPTD_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=clean | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'proto'}:{ROOT}"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    logged = [line for line in done.stderr.splitlines() if "acceptd" in line]
    return done.stdout.splitlines(), logged


def test_without_an_address_nothing_is_touched(tmp_path):
    printed, logged = in_a_fresh_process(tmp_path, {})
    assert printed[0] == "type"
    assert printed[1].startswith("set() 1 ")
    assert len(logged) == 1
    assert "not active: no address (set ACCEPTD_ADDRESS)" in logged[0]


def test_with_an_address_the_factory_stands_where_the_class_stood(tmp_path):
    printed, logged = in_a_fresh_process(tmp_path, {"ACCEPTD_ADDRESS": "127.0.0.1:9"})
    assert printed[0] == "EstimatorFactory"
    assert printed[1].startswith("set() 1 ")
    assert logged == []


@pytest.mark.parametrize(
    ("environment", "version", "speculator", "why"),
    [
        ({"ACCEPTD_ADDRESS": "nonsense"}, "0.32.0", ESTIMATOR, "ACCEPTD_ADDRESS is 'nonsense'"),
        ({"ACCEPTD_ADDRESS": "h:1"}, "0.34.0", ESTIMATOR, "vLLM 0.34.0 is not one this hook knows"),
        ({"ACCEPTD_ADDRESS": "h:1"}, "0.28.1", ESTIMATOR, "vLLM 0.28.1 is not one this hook knows"),
        ({"ACCEPTD_ADDRESS": "h:1"}, "0.32.0", "", "this vLLM has no OnlineAcceptanceEstimator"),
        (
            {"ACCEPTD_ADDRESS": "h:1"},
            "0.32.0",
            ESTIMATOR.replace("draft_step", "positions"),
            "OnlineAcceptanceEstimator.predict takes (self, logits, idx_mapping, positions",
        ),
    ],
)
def test_it_stands_aside_with_one_line(tmp_path, environment, version, speculator, why):
    printed, logged = in_a_fresh_process(tmp_path, environment, version=version, speculator=speculator)
    assert printed[0] != "EstimatorFactory"
    assert len(logged) == 1, logged
    assert why in logged[0]


def test_after_import_acts_once_and_leaves_no_trace(tmp_path, monkeypatch):
    (tmp_path / "acceptd_probe_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    seen = []
    after_import("acceptd_probe_module", lambda module: seen.append(module.value))
    assert seen == []
    import acceptd_probe_module

    assert seen == [1]
    assert sys.meta_path == before
    after_import("acceptd_probe_module", lambda module: seen.append(module.__name__))
    assert seen == [1, "acceptd_probe_module"]
    assert acceptd_probe_module.__spec__.name == "acceptd_probe_module"
