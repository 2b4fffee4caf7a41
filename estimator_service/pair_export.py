"""A pair's state as one message: made, and checked before anything believes it."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import acceptd
from acceptd.codec import UNKNOWN_SEGMENT, Observations, encode_coefficients, encode_pair_key
from acceptd.errors import WireError
from acceptd.v1 import inspect_pb2
from acceptd.v1.estimator_pb2 import RejectReason
from acceptd.v1.types_pb2 import ExclusionReason
from estimator_service.state import drift_entry

if TYPE_CHECKING:
    from estimator_service.pair import Pair

#: Largest exact count that is believed: far above any, and far below where adding to it overflows.
_MAX_COUNT: Final = 2**60
_EXCLUSIONS: Final = frozenset(ExclusionReason.values())
_REJECTS: Final = frozenset(RejectReason.values())


def make_export(pair: Pair, wall: float) -> inspect_pb2.PairExport:
    """All that the pair has learned; what operators told it stays here. wall: seconds since the Unix epoch."""
    header, window = pair.state()
    header.pop("orders")
    export = inspect_pb2.PairExport(
        key=encode_pair_key(pair.key),
        coefficients=encode_coefficients(pair.publication.pooled),
        header=json.dumps(header),
        window=window,
        exported_at_seconds=wall,
        acceptd_version=acceptd.__version__,
    )
    export.checksum = _checksum(export)
    return export


def open_export(export: inspect_pb2.PairExport) -> dict[str, Any]:
    """Its header, if its checksum holds. Raises WireError."""
    if not hmac.compare_digest(export.checksum, _checksum(export)):
        raise WireError("the export is damaged: its checksum does not hold", field="checksum")
    try:
        header = json.loads(export.header)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the export's header is no JSON: {error}", field="header") from None
    if not isinstance(header, dict):
        raise WireError("the export's header is no JSON object", field="header")
    return header


def try_out(pair: Pair, header: dict[str, Any], window: bytes) -> None:
    """Has a pair that is of no use otherwise continue from an export: a batch, a round, a snapshot must work.

    Raises WireError: anyone can make the checksum of what they forged.
    """
    k = pair.num_positions
    try:
        pair.restore(header, window)
        # As it came, too: it is written before a round replaces what the latest fit found.
        json.dumps(pair.state()[0])
        counters = pair.counters
        exact = [*counters.observations.tolist(), *counters.acceptances.tolist()]
        exact += [counters.blocks, counters.rows_rejected, pair.refits_done, *pair.refits_held.values()]
        exact += [*counters.exclusions.values(), *counters.rejects.values()]
        if len(counters.observations) != k or len(counters.acceptances) != k:
            raise ValueError(f"counters are not of K = {k}")
        if not all(isinstance(n, int) and 0 <= n <= _MAX_COUNT for n in exact):
            raise ValueError(f"a counter is not from 0 to {_MAX_COUNT}")
        if not set(counters.exclusions) <= _EXCLUSIONS or not set(counters.rejects) <= _REJECTS:
            raise ValueError("a reason is not known")
        if not (isinstance(pair.last_held, str) and all(isinstance(name, str) for name in pair.refits_held)):
            raise TypeError("what was held is not named")
        pair.apply(_one_row(), (), None, "", "")
        decision = pair.close_round()
        if decision.publication is not None:
            decision.publication.pooled.validate(k)
        for event in pair.drift_log.newest_first():
            drift_entry(event)
        json.dumps(pair.state()[0])
    except Exception as error:  # whatever wrong content makes the model do
        raise WireError(f"the export cannot be used: {error!r:.200}", field="window") from error


def _one_row() -> Observations:
    """One block of one observation."""
    zero, one = np.zeros(1, np.uint8), np.ones(1, np.uint8)
    features, propensities = np.zeros(1, np.float32), np.zeros(1, np.float32)
    return Observations(zero, one, features, np.full(1, UNKNOWN_SEGMENT, np.uint8), zero, propensities)


def _checksum(export: inspect_pb2.PairExport) -> bytes:
    bare = inspect_pb2.PairExport(
        key=export.key, coefficients=export.coefficients, header=export.header, window=export.window
    )
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()
