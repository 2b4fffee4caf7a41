"""Runs in vLLM's environment and prints one line of JSON: seconds of our calls and of vLLM's, by name."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
runpy.run_path(str(Path(__file__).resolve().parent.parent / "tests" / "vllm" / "site" / "sitecustomize.py"))

torch: Any = importlib.import_module("torch")

REQUESTS = 64
POSITIONS = 8
STEPS = 2000
REPEATS = 7


class Launches:
    """Stands in for a Triton kernel: takes the grid and the arguments, launches nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *arguments, **options: None


class Sink:
    """An uplink that takes rows and has nothing to say."""

    def offer(self, rows: object) -> None:
        """Takes them."""

    def latest(self) -> None:
        """Nothing yet."""


def step_times() -> dict[str, float]:
    """Median seconds of one `step`: refits, page copies and hand-overs included, in turn."""
    stock_module = importlib.import_module("vllm.v1.worker.gpu.spec_decode.acceptance_estimator")
    kernels = importlib.import_module("vllm_client_hook.kernels")
    for module in (stock_module, kernels):
        for name in [n for n in vars(module) if n.startswith("_") and n.endswith("_kernel")]:
            setattr(module, name, Launches())
    estimator = importlib.import_module("vllm_client_hook.estimator")
    ranks = importlib.import_module("vllm_client_hook.ranks")
    device = torch.device("cpu")
    ours = estimator.AcceptanceEstimator(REQUESTS, POSITIONS, device)
    ours.bind(
        ranks=ranks.SingleRank(),
        uplink=Sink(),
        live=lambda: True,
        draft_tokens=torch.zeros((REQUESTS, POSITIONS), dtype=torch.int64),
    )
    stock = stock_module.OnlineAcceptanceEstimator(REQUESTS, POSITIONS, device)
    mapping = torch.arange(REQUESTS, dtype=torch.int32)
    sampled = torch.full((REQUESTS,), 3, dtype=torch.int32)
    rejected = torch.full((REQUESTS,), 2, dtype=torch.int32)
    return in_turn(lambda: ours.step(mapping, sampled, rejected), lambda: stock.step(mapping, sampled, rejected))


def in_turn(ours: Callable[[], object], theirs: Callable[[], object]) -> dict[str, float]:
    """Median over stretches of the mean seconds a call; the two alternate, so that both meet the same machine."""
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(REPEATS):
        for name, call in (("ours", ours), ("theirs", theirs)):
            start = time.perf_counter()
            for _ in range(STEPS):
                call()
            taken[name].append((time.perf_counter() - start) / STEPS)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"step": step_times()}))
