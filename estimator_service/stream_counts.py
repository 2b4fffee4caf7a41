"""What is counted with every message and every acknowledgement: plain numbers, made into metrics at the scrape.

A publication reaches every worker of a pair at once, and each acknowledgement is counted while the others wait; a
metric of prometheus_client would take a lock for each.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

#: Upper bounds, seconds.
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_BOUNDS: Final = (*map(floatToGoString, _BUCKETS), "+Inf")


@dataclass(slots=True)
class _Answers:
    """Of one pair. took: acknowledgements by bucket, the last for those over all bounds. seconds: their sum."""

    took: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    seconds: float = 0.0
    refused: int = 0
    unknown: int = 0


class StreamCounts(Collector):
    """Written on the event loop; `collect` may be called from any thread."""

    def __init__(self) -> None:
        #: Bytes of messages since the start.
        self.received = self.sent = 0
        self._answers: dict[str, _Answers] = {}

    def open(self, pair: str) -> None:
        """A pair is there: its counts begin at 0."""
        self._answers.setdefault(pair, _Answers())

    def forget(self, pair: str) -> None:
        """A pair is gone, and with it its counts."""
        self._answers.pop(pair, None)

    def applied(self, pair: str, seconds: float) -> None:
        """A worker acknowledged an update `seconds` after it was pushed."""
        answers = self._answers[pair]
        answers.took[bisect_left(_BUCKETS, seconds)] += 1
        answers.seconds += seconds

    def refused(self, pair: str) -> None:
        """A worker refused an update."""
        self._answers[pair].refused += 1

    def unknown(self, pair: str) -> None:
        """A worker answered a push that its stream does not know."""
        self._answers[pair].unknown += 1

    def collect(self) -> Iterator[Metric]:
        """All families."""
        size = CounterMetricFamily(
            "acceptd_stream_bytes", "Bytes of messages on worker streams, by direction.", labels=["direction"]
        )
        size.add_metric(["received"], self.received)
        size.add_metric(["sent"], self.sent)
        took = HistogramMetricFamily(
            "acceptd_update_seconds",
            "Time from a push of coefficients to the worker's acknowledgement.",
            labels=["pair"],
        )
        given = CounterMetricFamily(
            "acceptd_updates", "Answers of workers to pushed coefficients.", labels=["pair", "answer"]
        )
        for pair, answers in list(self._answers.items()):
            sums = list(accumulate(answers.took))
            took.add_metric([pair], list(zip(_BOUNDS, sums, strict=True)), answers.seconds)
            given.add_metric([pair, "applied"], sums[-1])
            given.add_metric([pair, "refused"], answers.refused)
            if answers.unknown:
                given.add_metric([pair, "unknown"], answers.unknown)
        yield from (size, took, given)
