"""Runs in vLLM's environment and prints one line of JSON: seconds of our calls and of vLLM's, by name."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests" / "vllm"

os.environ["TRITON_INTERPRET"] = "1"
runpy.run_path(str(TESTS / "site" / "sitecustomize.py"))

torch: Any = importlib.import_module("torch")

REQUESTS = 64
POSITIONS = 8
DECIDED_REQUESTS = 256
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
    ours_launched = [importlib.import_module(f"vllm_client_hook.{name}") for name in ("predict_kernels", "pack_kernel")]
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
    # Only now: an estimator tests its kernels when it is made.
    for module in (stock_module, *ours_launched):
        launched = [name for name in vars(module) if name.startswith("_") and name.endswith("_kernel")]
        assert launched, f"{module.__name__} has no kernels whose launches could be left out"
        for name in launched:
            setattr(module, name, Launches())
    mapping = torch.arange(REQUESTS, dtype=torch.int32)
    sampled = torch.full((REQUESTS,), 3, dtype=torch.int32)
    rejected = torch.full((REQUESTS,), 2, dtype=torch.int32)
    return in_turn(lambda: ours.step(mapping, sampled, rejected), lambda: stock.step(mapping, sampled, rejected))


def decision_times() -> dict[str, float]:
    """Median seconds of one budget decision for 256 requests of K = 8: exploration, margin and totals included."""
    sys.path.insert(0, str(TESTS))
    numpy: Any = importlib.import_module("numpy")
    managers: Any = importlib.import_module("managers")
    patch_budget = importlib.import_module("vllm_client_hook.patch_budget")
    estimator = importlib.import_module("vllm_client_hook.estimator")
    types = importlib.import_module("acceptd.types")
    rng = numpy.random.default_rng(0)
    batch = managers.Batch(rng, DECIDED_REQUESTS, POSITIONS)
    batch.scheduled[:], batch.context[:] = POSITIONS, 1
    table = managers.random_table(rng, DECIDED_REQUESTS, POSITIONS)
    stock, ours = (managers.manager_of(batch, table, 10**6) for _ in range(2))
    served = estimator.AcceptanceEstimator(DECIDED_REQUESTS, POSITIONS, "cpu")
    served.apply.in_force = dataclasses.replace(
        served.apply.in_force, version=types.Version(1, 1), exploration_rate=0.01
    )
    patch_budget.attach(
        ours,
        served,
        importlib.import_module("vllm_client_hook.ranks").SingleRank(),
        importlib.import_module("vllm_client_hook.streams").HostStreams(),
        uplink=None,
        seed=1,
        rank0_confidences=False,
    )
    tokens, drafts = batch.tokens, batch.drafts
    return in_turn(lambda: ours.get_num_tokens(tokens, drafts), lambda: stock.get_num_tokens(tokens, drafts))


def in_turn(ours: Callable[[], object], theirs: Callable[[], object]) -> dict[str, float]:
    """Median over stretches of the mean CPU seconds a call; the two alternate, so that both meet the same machine."""
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(REPEATS):
        for name, call in (("ours", ours), ("theirs", theirs)):
            start = time.thread_time()
            for _ in range(STEPS):
                call()
            taken[name].append((time.thread_time() - start) / STEPS)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    # The decision first: the other stubs the kernels that an estimator tests when it is made.
    print(json.dumps({"decision": decision_times(), "step": step_times()}))
