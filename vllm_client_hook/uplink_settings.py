"""What an uplink can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_client_hook.backoff import BackoffSettings


@dataclass(frozen=True)
class Capabilities:
    """What the worker's kernels evaluate: knots of the link, and segments they tell apart; 0: the line alone."""

    max_knots: int = 0
    max_segments: int = 0


@dataclass(frozen=True)
class UplinkSettings:
    """Bounds and times, seconds.

    queue_rows: rows that wait at most; at K = 8 a row is about 48 bytes, so the default is 3 MB, and holds 30 s of a
    worker that grades 2,000 blocks/s. welcome_timeout: how long a peer may take to answer Hello. report_interval: of
    the worker's totals. keepalive: of an idle connection, so that a peer that vanished is noticed.
    """

    queue_rows: int = 65_536
    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    welcome_timeout: float = 10.0
    report_interval: float = 5.0
    keepalive: float = 30.0
