"""A pair's state as one message: made, and checked before anything believes it."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import acceptd
from acceptd.codec import decode_pair_key, encode_coefficients, encode_pair_key
from acceptd.errors import AcceptdError, WireError
from acceptd.v1 import inspect_pb2
from estimator_service.counters import Counters
from estimator_service.fit.model import PairModel

if TYPE_CHECKING:
    from estimator_service.pair import Pair


@dataclass(frozen=True)
class Content:
    """header, window: as `Pair.restore` takes them."""

    header: dict[str, Any]
    window: bytes


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


def read_export(export: inspect_pb2.PairExport) -> Content:
    """What it holds, once it has been tried: a trial round must close on it. Raises WireError."""
    if not hmac.compare_digest(export.checksum, _checksum(export)):
        raise WireError("the export is damaged: its checksum does not hold", field="checksum")
    try:
        k = decode_pair_key(export.key).num_speculative_tokens
        header = json.loads(export.header)
        counters = Counters.from_json(header["counters"])
        if counters.observations.shape != (k,) or counters.acceptances.shape != (k,):
            raise ValueError(f"counters are not of K = {k}")
        if not (isinstance(header["refits_done"], int) and isinstance(header["last_held"], str)):
            raise TypeError("refits_done and last_held")
        dict(header["refits_held"])
        model = PairModel.from_bytes(export.window)
        if model.num_positions != k:
            raise ValueError(f"the window is of K = {model.num_positions}, the pair of {k}")
        outcome = model.close_round(0.0)
        for candidate in outcome.coefficients.values():
            candidate.validate(k)
        if not all(map(math.isfinite, model.statistics().ravel())):
            raise ValueError("the window holds numbers that are not finite")
    except AcceptdError:
        raise
    except Exception as error:  # whatever wrong content makes the model do
        raise WireError(f"the export cannot be read: {error!r:.200}", field="window") from error
    return Content(header, export.window)


def _checksum(export: inspect_pb2.PairExport) -> bytes:
    bare = inspect_pb2.PairExport(
        key=export.key, coefficients=export.coefficients, header=export.header, window=export.window
    )
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()
