"""Host time of the hook's `step` and of its budget decision beside vLLM's own, in vLLM's environment.

`python -m benchmarks` runs `benchmarks/in_vllm.py` with the interpreter of `VLLM_VENV` (default .venv-vllm, made by
`make test-vllm`), because vLLM's classes import torch, which ours never do here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.result import Result, below, beside

ROOT = Path(__file__).resolve().parent.parent


def run() -> Iterator[Result]:
    """Raises RuntimeError if vLLM's environment is missing: a benchmark left out would read as a goal reached."""
    python = Path(os.environ.get("VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"{python} is missing; make test-vllm makes it, or set VLLM_VENV")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}"}
    done = subprocess.run(
        [python, "-m", "benchmarks.in_vllm"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"benchmarks.in_vllm failed:\n{done.stderr[-2000:]}")
    times = json.loads(done.stdout.splitlines()[-1])
    yield beside(
        "host time of step beside the built-in's, launches stubbed",
        times["step"]["ours"] * 1e6,
        times["step"]["theirs"] * 1e6,
        "us",
        at_most=1.2,
    )
    ours = times["decision"]["ours"] * 1e6
    theirs = times["decision"]["theirs"] * 1e6
    yield beside(
        "host time of the whole decision, 256 requests of K = 8, beside get_num_tokens", ours, theirs, "us", at_most=1.0
    )
    yield below("the same at p50 on this machine", ours, 150.0, "us")
