"""Inspect messages as plain dictionaries: the `--json` output of the commands (docs/cli.md) and the status page's data.

Coefficients travel as float32 and are shown as the very same numbers: parsing the JSON and rounding to float32 gives
the bits a worker holds.
"""

from __future__ import annotations

import math
from typing import Any

from acceptd.segments import Segment
from acceptd.v1 import inspect_pb2, types_pb2


def finite(value: Any) -> Any:
    """`value` with null in place of NaN and infinity, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def reason_name(value: int) -> str:
    """ExclusionReason 7 → "penalties"; an unknown number stays a number."""
    return _enum_name(types_pb2.ExclusionReason, value, "EXCLUSION_REASON_")


def mode_name(value: int) -> str:
    """Mode 1 → "trim"; "" for one that was not reported."""
    return _enum_name(types_pb2.Mode, value, "MODE_") if value else ""


def segment_name(value: int) -> str:
    """Segment 0 → "greedy"."""
    return Segment(value).name.lower() if value in Segment._value2member_map_ else str(value)


def _enum_name(enum: Any, value: int, prefix: str) -> str:
    return str(enum.Name(value)).removeprefix(prefix).lower() if value in enum.values() else str(value)


def parse_version(text: str) -> types_pb2.Version | None:
    """The reverse of `version_text`; None for what is no version."""
    epoch, dot, counter = text.partition(".")
    if not (dot and epoch.isdecimal() and counter.isdecimal() and len(epoch) < 20 and len(counter) < 20):
        return None
    return types_pb2.Version(epoch=int(epoch), counter=int(counter))


def version_text(message: types_pb2.Version) -> str:
    """`epoch.counter`."""
    return f"{message.epoch}.{message.counter}"


def version(message: types_pb2.Version) -> dict[str, int]:
    """A version."""
    return {"epoch": message.epoch, "counter": message.counter}


def pair_key(message: types_pb2.PairKey) -> dict[str, Any]:
    """Every field of a pair's key."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def summary(message: inspect_pb2.PairSummary) -> dict[str, Any]:
    """One line of `acceptd pairs`."""
    return {
        "id": message.id,
        "key": pair_key(message.key),
        "version": version(message.version),
        "workers": message.workers,
        "observations": message.observations,
        "published_at_seconds": message.published_at_seconds,
    }


def coefficients(message: types_pb2.Coefficients) -> dict[str, Any]:
    """One version of the coefficients, float32-exact."""
    return {
        "version": version(message.version),
        "slope": message.line.slopes[0] if message.line.slopes else None,
        "intercepts": list(message.line.intercepts),
        "knots": list(message.knots),
        "segments": {
            segment_name(s.segment): {"slopes": list(s.slopes), "intercepts": list(s.intercepts)}
            for s in message.segments
        },
        "evidence": list(message.evidence),
    }


def calibration(message: inspect_pb2.Calibration) -> dict[str, Any] | None:
    """A round's scores; None before the first one."""
    if not message.observations:
        return None
    return {field.name: _value(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _value(value: Any) -> Any:
    if isinstance(value, float | int | str):
        return value
    return [_fields(item) if isinstance(item, inspect_pb2.ReliabilityBin) else item for item in value]


def _fields(message: inspect_pb2.ReliabilityBin | inspect_pb2.DriftEntry) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def exclusions(messages: Any) -> dict[str, int]:
    """Blocks by the reason for which they carry no label."""
    return {reason_name(item.reason): item.blocks for item in messages}


def pair_state(message: inspect_pb2.PairState) -> dict[str, Any]:
    """Everything `acceptd show` knows."""
    refit, totals = message.refit, message.totals
    return {
        **summary(message.summary),
        "mode": mode_name(message.mode),
        "exploration_rate": message.exploration_rate,
        "pinned": version(message.pinned) if message.HasField("pinned") else None,
        "coefficients": coefficients(message.coefficients),
        "standard_errors": list(message.standard_errors),
        "observations_by_position": list(message.observations),
        "acceptances_by_position": list(message.acceptances),
        "blocks": message.blocks,
        "exclusions": exclusions(message.exclusions),
        "rejects": dict(message.rejects),
        "refit": {
            "done": refit.done,
            "held": dict(refit.held),
            "last_held": refit.last_held,
            "last_seconds": refit.last_seconds,
            "pending_blocks": refit.pending_blocks,
            "published_link": refit.published_link,
        },
        "calibration": calibration(message.calibration),
        "totals": {
            field.name: exclusions(totals.exclusions) if field.name == "exclusions" else getattr(totals, field.name)
            for field in totals.DESCRIPTOR.fields
        },
        "notices": list(message.notices),
        "drifts": [_fields(item) for item in message.drifts],
    }


def history_entry(message: inspect_pb2.HistoryEntry) -> dict[str, Any]:
    """One published version."""
    return {
        "coefficients": coefficients(message.coefficients),
        "published_at_seconds": message.published_at_seconds,
        "cause": message.cause,
        "origin": version(message.origin) if message.HasField("origin") else None,
        "calibration": calibration(message.calibration),
    }


def worker_costs(message: inspect_pb2.WorkerCosts) -> dict[str, Any]:
    """What one worker's steps take; `costs` is None before it has a table."""
    table = message.costs
    return {
        "worker": message.worker,
        "incarnation": f"{message.incarnation:016x}",
        "pair": message.pair,
        "costs": {
            "can_trim": table.can_trim,
            "notices": list(table.notices),
            "draft": {"sizes": list(table.draft.sizes), "milliseconds": list(table.draft.milliseconds)},
            "verify": {"sizes": list(table.verify.sizes), "milliseconds": list(table.verify.milliseconds)},
        }
        if message.HasField("costs")
        else None,
    }


def worker(message: inspect_pb2.WorkerState) -> dict[str, Any]:
    """One worker; the incarnation as 16 hex digits, since JSON readers round large integers."""
    return {
        "worker": message.worker,
        "incarnation": f"{message.incarnation:016x}",
        "pair": message.pair,
        "workload": message.workload,
        "peer": message.peer,
        "connected": message.connected,
        "connected_at_seconds": message.connected_at_seconds,
        "version_applied": version(message.version_applied),
        "blocks": message.blocks,
        "last_sequence": message.last_sequence,
        "quarantined": message.quarantined,
        "last_rejected_update": message.last_rejected_update,
        "max_knots": message.capabilities.max_knots,
        "max_segments": message.capabilities.max_segments,
        "mode": mode_name(message.mode),
        "hook_version": message.hook_version,
        "vllm_version": message.vllm_version,
    }
