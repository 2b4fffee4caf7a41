"""Who a worker says it is when a stream begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from acceptd import __version__, codec
from acceptd.v1 import estimator_pb2, types_pb2

if TYPE_CHECKING:
    from acceptd.types import PairKey, Version
    from vllm_client_hook.uplink_settings import Capabilities


@dataclass(frozen=True)
class Introduction:
    """pair: whose coefficients. worker: id, stable over restarts. workload: operator's label, "" for none."""

    pair: PairKey
    worker: str
    workload: str
    capabilities: Capabilities
    vllm_version: str

    def with_weights(self, generation: int) -> Introduction:
        """The same worker after its weights were replaced: it works for another pair."""
        return replace(self, pair=replace(self.pair, weights_generation=generation))

    def hello(self, incarnation: int, held: Version | None) -> estimator_pb2.Hello:
        """The first message of a stream. held: see `Pushes.held`."""
        hello = estimator_pb2.Hello(
            pair=codec.encode_pair_key(self.pair),
            worker=self.worker,
            incarnation=incarnation,
            workload=self.workload,
            capabilities=types_pb2.Capabilities(
                max_knots=self.capabilities.max_knots, max_segments=self.capabilities.max_segments
            ),
            hook_version=__version__,
            vllm_version=self.vllm_version,
        )
        if held is not None:
            hello.version.CopyFrom(codec.encode_version(held))
        return hello
