"""A worker without vLLM: replays a recorded trace through the real uplink, at a pace or as fast as it goes.

    python -m vllm_client_hook.replay TRACE.parquet --address 127.0.0.1:50051 --worker w0 --shard 0/4

Every block is predicted with the coefficients in force when its turn comes, and sent with their version, just as a GPU
worker does. Shards split a trace by request: n workers with shards 0/n … n-1/n together replay it once. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acceptd.codec import Observations
from acceptd.errors import AcceptdError, IncompatiblePeer, WireError
from acceptd.identity import FILES, Identity, variable
from acceptd.limits import MAX_KNOTS
from acceptd.segments import NUM_SEGMENTS, segment_of
from acceptd.types import Coefficients, PairKey, prior
from vllm_client_hook.outbound import GradedColumns
from vllm_client_hook.uplink import Capabilities, Uplink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

FORMAT: Final = "acceptd-trace/1"

#: Rows that may wait in the uplink before the replay pauses: far below its queue, so that a service which is away for
#: a while costs time, not rows. Raising it lets the replay run further ahead of the coefficients it gets back.
MAX_PENDING_ROWS: Final = 512

#: Seconds between two looks at what is pending, while paused.
_PAUSE: Final = 0.002

#: Seconds that `finish` waits for the last rows to be acknowledged.
FINISH_SECONDS: Final = 60.0

#: Seconds the uplink has to end its stream and thread; a loaded machine needs more than its default.
CLOSE_SECONDS: Final = 15.0


class ReplayError(AcceptdError):
    """The trace cannot be replayed. The message names what is wrong and what is accepted."""

    code = "INVALID_ARGUMENT"


@dataclass(frozen=True)
class Shard:
    """The blocks of one worker, in time order. B blocks of K positions.

    step: int64[B + …], start of each decode step in the columns, with B at the end. accepted, admitted, segments:
    uint8[B]. features: float32[B, K], nats.
    """

    pair: PairKey
    starts: NDArray[np.int64]
    accepted: NDArray[np.uint8]
    admitted: NDArray[np.uint8]
    segments: NDArray[np.uint8]
    features: Floats

    def __len__(self) -> int:
        return len(self.accepted)

    def steps(self) -> Iterator[slice]:
        """Rows of one decode step after another."""
        for first, last in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield slice(int(first), int(last))


def read_shard(path: Path, index: int, count: int) -> Shard:
    """The blocks of requests ≡ `index` modulo `count`. Raises ReplayError."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (no dependency of the hook; a replaying worker alone needs it)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ReplayError('replaying a trace needs pyarrow: pip install "acceptd[lab]"') from None
    names = ["step", "request", "workload", "temperature", "admitted", "accepted", "logit_qmax"]
    try:
        table = pq.read_table(path, columns=names)
    except (OSError, pa.ArrowException) as error:
        raise ReplayError(f"{path}: {str(error).splitlines()[0]}; accepted: a Parquet file of {FORMAT}") from None
    missing = [name for name in names if name not in table.column_names]
    try:
        described = json.loads((table.schema.metadata or {}).get(b"acceptd", b"{}"))
        if missing or described.get("format") != FORMAT:
            raise ReplayError(f"{path}: {', '.join(missing) or 'format'} is missing; accepted: {FORMAT} with {names}")
        pair = PairKey(str(described["target"]), str(described["draft"]), int(described["K"]))
        pair.validate()
    except (KeyError, TypeError, ValueError, AttributeError, WireError, IncompatiblePeer) as error:
        raise ReplayError(f"{path}: its description is not accepted ({error}); accepted: target, draft and K") from None
    table = table.filter(np.asarray(table["request"]) % count == index)
    features = np.asarray(table["logit_qmax"].combine_chunks().flatten(), np.float32)
    if len(features) != len(table) * pair.num_speculative_tokens:
        raise ReplayError(
            f"{path}: logit_qmax has {len(features)} values; accepted: K = {pair.num_speculative_tokens} "
            f"for each of {len(table)} blocks"
        )
    workload = table["workload"].combine_chunks().dictionary_encode()
    codes = np.asarray((workload.indices if hasattr(workload, "indices") else workload).to_numpy())
    step = np.asarray(table["step"])
    changes = np.flatnonzero((np.diff(step) != 0) | (np.diff(codes) != 0)) + 1
    temperatures, inverse = np.unique(np.asarray(table["temperature"]), return_inverse=True)
    segments = np.array([segment_of(round(float(t), 6)) for t in temperatures], np.uint8)
    return Shard(
        pair,
        np.concatenate([[0], changes, [len(step)]]),
        np.asarray(table["accepted"], np.uint8),
        np.asarray(table["admitted"], np.uint8),
        segments[inverse],
        features.reshape(-1, pair.num_speculative_tokens),
    )


def predict(coefficients: Coefficients, segments: NDArray[np.uint8], features: Floats) -> Floats:
    """Log-odds of acceptance, float32[B, K], of features float32[B, K] in segments uint8[B]."""
    out = np.empty_like(features)
    for segment in np.unique(segments):
        rows, part = segments == segment, coefficients.of(int(segment))
        x = features[rows]
        value = part.slopes[0] * x + np.asarray(part.intercepts, np.float32)
        for slope, knot in zip(part.slopes[1:], coefficients.knots, strict=False):
            value += slope * np.maximum(x - knot, 0.0)
        out[rows] = value
    return out


class ReplayWorker:
    """Sends a shard, decode step by decode step, and takes over what the service sends back in between.

    predictions: float32[B, K], the log-odds each block was predicted with, in the order of the shard.
    """

    def __init__(self, shard: Shard, uplink: Uplink) -> None:
        self.shard = shard
        self.predictions = np.empty_like(shard.features)
        self.versions = 0
        self._uplink = uplink
        self._nonce = -1
        self._received: Any = None
        self._coefficients = prior(shard.pair.num_speculative_tokens)

    def take_over(self) -> None:
        """Adopts the newest push and acknowledges it."""
        received = self._uplink.latest()
        if received is None or received is self._received:
            return
        if self._received is None or received.coefficients.version > self._coefficients.version:
            self._coefficients = received.coefficients
            self.versions += 1
        self._received = received
        self._uplink.answer(received.nonce, self._coefficients.version)

    def replay(self, steps_per_second: float, going: Callable[[], bool]) -> None:
        """Replays the shard once, or until `going()` is false. steps_per_second 0: as fast as the service takes it."""
        due = time.monotonic()
        for rows in self.shard.steps():
            while going() and (time.monotonic() < due or self.pending > MAX_PENDING_ROWS):
                time.sleep(_PAUSE)
            if not going():
                return
            self.step(rows)
            due = max(due + 1.0 / steps_per_second, time.monotonic() - 1.0) if steps_per_second else 0.0

    @property
    def pending(self) -> int:
        """Blocks offered and not answered yet."""
        stats = self._uplink.stats()
        return int(stats["offered"] - stats["acknowledged"] - stats["refused"] - stats["dropped"])

    def step(self, rows: slice) -> None:
        """Predicts and sends the blocks of one decode step."""
        shard = self.shard
        self.take_over()
        accepted, admitted, segments = shard.accepted[rows], shard.admitted[rows], shard.segments[rows]
        features = shard.features[rows]
        self.predictions[rows] = predict(self._coefficients, segments, features)
        observed = np.arange(features.shape[1]) < np.minimum(accepted.astype(np.int64) + 1, admitted)[:, None]
        # Nothing was trimmed in a recording: all of it is an unbiased sample.
        whole = Observations(
            accepted, admitted, features[observed], segments, admitted, np.ones(len(accepted), np.float32)
        )
        served = self._received is not None
        self._uplink.offer(GradedColumns(self._coefficients.version if served else None, whole))


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays one shard; 0 once all was answered and none refused, or when told to stop; 1 on failure, 2 on misuse."""
    options = _parser().parse_args(arguments)
    try:
        identity = Identity(*(os.environ.get(variable(name), "") for name in FILES)).check_files()
        shard = read_shard(options.trace, *options.shard)
    except AcceptdError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    uplink = Uplink(
        options.address,
        shard.pair,
        worker=options.worker,
        workload=options.workload,
        capabilities=Capabilities(MAX_KNOTS, NUM_SEGMENTS),
        identity=identity,
    )
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopped.append(received))
    worker = ReplayWorker(shard, uplink)
    worker.replay(options.speed, lambda: not stopped)
    while options.loop and not stopped:
        worker.replay(options.speed, lambda: not stopped)
    delivered = uplink.flush(0.0 if stopped else FINISH_SECONDS)
    worker.take_over()
    stats = uplink.stats()
    # An interpreter that ends while gRPC's threads are still at work may hang in it.
    uplink.close(CLOSE_SECONDS)
    if options.predictions is not None:
        np.save(options.predictions, worker.predictions)
    counted = {name: stats[name] for name in ("offered", "acknowledged", "refused", "dropped", "connects")}
    sys.stdout.write(json.dumps({"worker": options.worker, **counted, "versions": worker.versions}) + "\n")
    if stopped:
        return 0
    if stats["refused"]:
        sys.stderr.write(f"error: the service refused {stats['refused']} blocks: {stats['refusals']}\n")
        return 1
    if delivered:
        return 0
    sys.stderr.write(f"error: {worker.pending} blocks were not acknowledged: {stats['last_error'] or 'no answer'}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vllm_client_hook.replay", description="A worker without vLLM: replays a recorded trace."
    )
    parser.add_argument("trace", type=Path, help=f"Parquet file, format {FORMAT}")
    parser.add_argument(
        "--address",
        default=os.environ.get("ACCEPTD_ADDRESS", "127.0.0.1:50051"),
        help="the service, HOST:PORT (env ACCEPTD_ADDRESS)",
    )
    parser.add_argument("--worker", default="replay-0", help="this worker's id")
    parser.add_argument("--workload", default="", help="label of the workload")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="requests whose id is I modulo N")
    parser.add_argument("--speed", type=_speed, default=0.0, help="decode steps a second; 0: as fast as possible")
    parser.add_argument("--loop", action="store_true", help="start over at the end, until SIGTERM")
    parser.add_argument("--predictions", type=Path, help="write the log-odds of the last pass here (.npy)")
    return parser


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: I/N with 0 <= I < N")
    return int(index), int(count)


def _speed(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: 0 or more steps a second")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
