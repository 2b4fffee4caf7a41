"""Checks and times the hook's kernels on a GPU; prints one line a check and exits 1 if any fails.

    PYTHONPATH=proto:. python tests/gpu/check_kernels.py [--rows 64] [--vocab 129280] [--positions 5]

Needs torch with CUDA and Triton; compares with vLLM's built-in kernels where vLLM is installed. `--device cpu` runs the
checks that need no GPU under Triton's interpreter (TRITON_INTERPRET=1), without captures and times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from acceptd.limits import MAX_KNOTS
from acceptd.segments import MAX_SEGMENTS, segment_of
from vllm_client_hook import kernels, reference
from vllm_client_hook.block import SLOPE_STRIDE, Block
from vllm_client_hook.estimator import AcceptanceEstimator
from vllm_client_hook.ranks import SingleRank
from vllm_client_hook.rows import JUDGED_BLOCKS, NUM_COUNTERS, Rows
from vllm_client_hook.slots import Page, Slots
from vllm_client_hook.tap import INTERVAL
from vllm_client_hook.trimming_cost import UNITS, Judgement

TEMPERATURES = (1.0, 0.3, 0.0, 0.7, 1.5, 0.05)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Shape:
    """rows: requests of a step; vocab: V; positions: K."""

    rows: int
    vocab: int
    positions: int
    device: str


@dataclass(frozen=True)
class Result:
    """One line: a value that must not exceed its limit (None: reported only)."""

    name: str
    value: float
    limit: float | None
    unit: str

    @property
    def ok(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        bound = "" if self.limit is None else f" (limit {self.limit:g})"
        return f"{'ok  ' if self.ok else 'FAIL'} {self.name}: {self.value:.4g} {self.unit}{bound}"


class Inputs:
    """Persistent tensors of one draft step, as a captured graph needs them."""

    def __init__(self, shape: Shape, dtype: torch.dtype, seed: int = 0, *, full: bool = False) -> None:
        rng = np.random.default_rng(seed)
        device = shape.device
        self.slots = Slots(shape.rows, shape.positions, device, full=full)
        logits = rng.normal(0, 3, (shape.rows, shape.vocab)).astype(np.float32)
        logits[::3, 7] = rng.uniform(10, 30, len(logits[::3]))
        self.logits = torch.from_numpy(logits).to(device, dtype)
        self.idx = torch.from_numpy(rng.permutation(shape.rows)).to(device)
        temperatures = np.resize(np.array(TEMPERATURES, np.float32), shape.rows)
        self.temperature = torch.from_numpy(temperatures).to(device)
        self.step = torch.tensor(0, device=device)
        self.confidence = torch.zeros(shape.rows, shape.positions, device=device)
        self.block = random_block(rng, shape.positions)
        self.words = torch.from_numpy(self.block.encode()).to(device)
        self.floats = self.words.view(torch.float32)

    def predict(self, numerics: Any = kernels) -> None:
        numerics.predict(
            self.slots,
            self.words,
            self.floats,
            self.logits,
            self.idx,
            self.step,
            self.confidence,
            self.temperature,
        )


def random_block(rng: np.random.Generator, positions: int, index: int = 1) -> Block:
    """Every segment another line with bends."""
    slopes = rng.uniform(0.2, 0.8, (MAX_SEGMENTS, SLOPE_STRIDE)).astype(np.float32)
    slopes[:, 1:] = rng.uniform(-0.02, 0.1, (MAX_SEGMENTS, MAX_KNOTS))
    knots = np.sort(rng.uniform(-8, 8, MAX_KNOTS)).astype(np.float32)
    intercepts = rng.uniform(-1, 1, (MAX_SEGMENTS, positions)).astype(np.float32)
    return Block(knots, slopes, intercepts, index=index)


def exact_features(inputs: Inputs) -> np.ndarray:
    """float64[R]: x by slot, from the definition, the complement summed without the largest."""
    exact = np.zeros(len(inputs.idx))
    temperature = inputs.temperature.cpu().numpy()
    for row, slot in enumerate(inputs.idx.tolist()):
        scaled = inputs.logits[row].double().cpu().numpy() / (temperature[slot] or 1.0)
        top = int(np.argmax(scaled))
        with np.errstate(divide="ignore"):
            exact[slot] = np.clip(-np.log(np.exp(np.delete(scaled, top) - scaled[top]).sum()), -40, 40)
    return exact


def exact_confidences(inputs: Inputs, x: np.ndarray) -> np.ndarray:
    """float64[R]: probability of position 0 by slot."""
    segments = np.array([int(segment_of(t)) for t in inputs.temperature.tolist()], np.uint8)
    features = np.repeat(x[:, None], inputs.block.num_positions, axis=1).astype(np.float32)
    return 1 / (1 + np.exp(-inputs.block.log_odds(features, segments)[:, 0].astype(np.float64)))


def check_float64(shape: Shape) -> Iterator[Result]:
    for dtype in DTYPES:
        inputs = Inputs(shape, dtype)
        inputs.predict()
        exact = exact_features(inputs)
        got = inputs.slots.features[: shape.rows, 0].double().cpu().numpy()
        near = np.abs(exact) < 30
        name = str(dtype).removeprefix("torch.")
        yield Result(f"feature against float64, {name}", float(np.abs(got - exact)[near].max()), 1e-3, "nats")
        yield Result(f"largest |feature|, {name}", float(np.abs(got).max()), 40.0, "nats")
        error = np.abs(
            inputs.confidence[:, 0].double().cpu().numpy() - exact_confidences(inputs, got)[inputs.idx.cpu()]
        )
        yield Result(f"probability against the formula, {name}", float(error.max()), 1e-4, "")


def check_reference(shape: Shape) -> Iterator[Result]:
    ours, torch_inputs = (Inputs(shape, torch.bfloat16, full=True) for _ in range(2))
    ours.predict()
    torch_inputs.predict(reference)
    for name in ("features", "predictions", "entropies", "margins"):
        difference = (getattr(ours.slots, name) - getattr(torch_inputs.slots, name)).abs().max()
        yield Result(f"kernel against torch reference, {name}", float(difference), 2e-4, "")


def check_pack(shape: Shape) -> Iterator[Result]:
    rng = np.random.default_rng(5)
    accepted = rng.integers(0, shape.positions + 1, shape.rows)
    admitted = np.maximum(accepted, rng.integers(0, shape.positions + 1, shape.rows))
    outcomes = []
    for numerics in (kernels, reference):
        inputs = Inputs(shape, torch.float32)
        slots = inputs.slots
        slots.valid.fill_(1)
        slots.features.copy_(torch.arange(slots.features.numel()).view_as(slots.features) / 7)
        slots.flags[: shape.rows : 5] = 9
        page = Page(2 * shape.rows, shape.positions, shape.device, full=False)
        totals = torch.zeros(NUM_COUNTERS, dtype=torch.int64, device=shape.device)
        idx = torch.where(inputs.idx % 7 == 3, -1, inputs.idx).int()
        sampled = torch.from_numpy(accepted + 1).int().to(shape.device)
        rejected = torch.from_numpy(admitted - accepted).int().to(shape.device)
        numerics.pack(slots, page, totals, idx, sampled, rejected, None)
        count = int(page.head)
        outcomes.append((page.records[:count].cpu(), totals.cpu(), slots.valid[: shape.rows].cpu()))
    same = all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))
    yield Result("packed words that differ from the reference", float(not same), 0.0, "")
    yield Result("packed rows", float(len(outcomes[0][0])), None, "rows")


def check_capture(shape: Shape) -> Iterator[Result]:
    inputs = Inputs(shape, torch.bfloat16)
    inputs.predict()  # compiles outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs.predict()
    worst = 0.0
    rng = np.random.default_rng(9)
    for index in range(2, 6):
        inputs.block = random_block(rng, shape.positions, index=index)
        inputs.words.copy_(torch.from_numpy(inputs.block.encode()))
        inputs.confidence.zero_()
        inputs.slots.valid.zero_()
        graph.replay()
        torch.cuda.synchronize()
        x = inputs.slots.features[: shape.rows, 0].double().cpu().numpy()
        expected = exact_confidences(inputs, x)[inputs.idx.cpu()]
        worst = max(worst, float(np.abs(inputs.confidence[:, 0].double().cpu().numpy() - expected).max()))
        if set(inputs.slots.version[: shape.rows].tolist()) != {index} or not bool(inputs.slots.valid[:-1, 0].all()):
            worst = float("inf")
    yield Result("replay after coefficients were updated, against the formula", worst, 1e-4, "")
    inputs.idx[0] = -1
    inputs.confidence.fill_(-1)
    graph.replay()
    untouched = bool((inputs.confidence[0] == -1).all()) and bool((inputs.confidence[1:, 0] >= 0).all())
    yield Result("replay writes a padded row", float(not untouched), 0.0, "")


def check_step(shape: Shape) -> Iterator[Result]:
    """The whole of step with real streams, under torch's own detector of synchronisation."""
    received: list[Rows] = []

    class Sink:
        def offer(self, rows: Rows) -> None:
            received.append(rows)

        def latest(self) -> None:
            return None

        def answer(self, nonce: int, version: Any, rejected: str = "") -> None:
            """Nothing is pushed here."""

        def weights_changed(self, generation: int) -> None:
            """Nor do weights change."""

    estimator = AcceptanceEstimator(shape.rows, shape.positions, torch.device(shape.device))
    estimator.bind(ranks=SingleRank(), uplink=Sink(), live=lambda: True)
    inputs = Inputs(shape, torch.bfloat16)
    idx = inputs.idx.int()
    sampled = torch.full_like(idx, 2)
    rejected = torch.full_like(idx, shape.positions - 1)
    steps = 4 * INTERVAL
    estimator.step(idx, sampled, rejected)  # compiles; its predictions are missing, so it gives no rows
    torch.cuda.synchronize()
    positions = [torch.tensor(k, device=shape.device) for k in range(shape.positions)]
    every = np.array([inputs.idx.cpu().numpy(), np.full(shape.rows, shape.positions), np.ones(shape.rows)], np.int64)
    judged = Judgement(every, shape.rows * shape.positions // 2, UNITS)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for n in range(steps):
            estimator.judged = judged
            estimator.admit(n % shape.rows, None)
            for position in positions:
                arguments = inputs.logits, inputs.idx, position, inputs.confidence, inputs.temperature
                estimator.predict(*arguments)
            estimator.step(idx, sampled, rejected)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    estimator.flush()
    rows = sum(map(len, received))
    yield Result("steps that failed or synchronised", float(bool(estimator.frozen)), 0.0, "")
    blocks = int(received[-1].counters[JUDGED_BLOCKS]) // UNITS
    yield Result("blocks judged that are missing", float(abs(blocks - steps * (shape.rows - 1))), 0.0, "blocks")
    # The request admitted in a step has lost its predictions by the time it is graded.
    yield Result("rows missing at the uplink", float(abs(rows - steps * (shape.rows - 1))), 0.0, "rows")


def milliseconds(action: Callable[[], object]) -> float:
    """Median time on the device."""
    from triton.testing import do_bench

    return float(do_bench(action, warmup=50, rep=200, return_mode="median"))


def copy_bandwidth(device: str) -> float:
    """GB/s, reads and writes together."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / milliseconds(lambda: target.copy_(source)) / 1e6


def times(shape: Shape) -> Iterator[Result]:
    bandwidth = copy_bandwidth(shape.device)
    yield Result("bandwidth of a 1 GiB copy on this card", bandwidth, None, "GB/s")
    for dtype in (torch.bfloat16, torch.float32):
        inputs = Inputs(shape, dtype)
        name = str(dtype).removeprefix("torch.")
        size = inputs.logits.numel() * inputs.logits.element_size()
        ours = milliseconds(inputs.predict)
        yield Result(f"predict, {name}, {shape.rows} x {shape.vocab}", 1e3 * ours, None, "us")
        yield Result(f"bytes read at that bandwidth, {name}", size / bandwidth / 1e3, None, "us")
        full = Inputs(shape, dtype, full=True)
        yield Result(f"predict with full features, {name}", 1e3 * milliseconds(full.predict), None, "us")
        yield from beside_built_in(shape, inputs, ours, name)


def beside_built_in(shape: Shape, inputs: Inputs, ours: float, name: str) -> Iterator[Result]:
    try:
        from vllm.v1.worker.gpu.spec_decode.acceptance_estimator import OnlineAcceptanceEstimator
    except ImportError:
        print("note: vLLM is not installed, its kernels are not timed")
        return
    device = torch.device(shape.device)
    theirs = OnlineAcceptanceEstimator(shape.rows, shape.positions, device)
    arguments = inputs.logits, inputs.idx, inputs.step, inputs.confidence, inputs.temperature
    built_in = milliseconds(lambda: theirs.predict(*arguments))
    yield Result(f"built-in predict, {name}", 1e3 * built_in, None, "us")
    yield Result(f"predict / built-in, {name}", ours / built_in, None, "")
    idx = inputs.idx.int()
    column = torch.ones_like(idx)
    estimator = AcceptanceEstimator(shape.rows, shape.positions, device)
    pack = milliseconds(lambda: estimator.step(idx, column, column))
    yield Result("step", 1e3 * pack, None, "us")
    yield Result("built-in step", 1e3 * milliseconds(lambda: theirs.step(idx, column, column)), None, "us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=129280)
    parser.add_argument("--positions", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    shape = Shape(arguments.rows, arguments.vocab, arguments.positions, arguments.device)
    checks = [check_float64, check_reference, check_pack]
    if shape.device == "cuda":
        if not torch.cuda.is_available():
            print("no CUDA device here; --device cpu runs what needs none", file=sys.stderr)
            return 2
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        checks += [check_capture, check_step, times]
    failed = 0
    for check in checks:
        for result in check(shape):
            print(result, flush=True)
            failed += not result.ok
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
