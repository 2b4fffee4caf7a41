"""What the fit of a pair may be told. Every number says why it has its value and what raising it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from acceptd.errors import ConfigError

#: Fits a pair can run. "auto": of straight line and link, with and without segments, whichever predicted the latest
#: rounds better. "line": the straight line alone. "round": vLLM's original one damped Newton step a round.
Method = Literal["auto", "line", "round"]

METHODS: Final[tuple[Method, ...]] = ("auto", "line", "round")

#: Workload labels a pair keeps apart, "" included; rows of further labels are pooled under "". Memory grows with it.
MAX_WORKLOADS: Final = 8


@dataclass(frozen=True)
class FitSettings:
    """Settings of one pair's fit.

    method: see `Method`.
    knots, segments: whether "auto" may publish the piecewise-linear link and coefficients a segment; off, neither is
        fitted.
    half_life_observations: graded draft tokens after which a round's weight has halved. 8,000 make a standard error of
        about .03 on an intercept and are replaced within a few rounds of a busy pair. Raising it makes coefficients
        steadier and slower to follow a shift.
    half_life_seconds: the same in time, so that a quiet pair grows uncertain and drifts to its prior. A day: a night
        without traffic keeps most of what the evening taught. Raising it trusts old traffic longer.
    slope_deviation: standard deviation of a pair's slope about the prior .5, dimensionless; the method's range is .44
        to .83. Raising it lets thin data move the slope further.
    intercept_deviation: the same of an intercept about -.2, nats; the method's range is -1 to +.6.
    neighbour_deviation: standard deviation of the difference of adjacent intercepts, nats. Raising it lets a thin
        position leave its neighbours sooner.
    hold_tolerance: relative excess of log-loss on the newest round, over the coefficients in force, above which a fit
        is held. Raising it publishes more noise.

    Raises ConfigError, naming the field.
    """

    method: Method = "auto"
    knots: bool = True
    segments: bool = True
    half_life_observations: float = 8_000.0
    half_life_seconds: float = 86_400.0
    slope_deviation: float = 0.2
    intercept_deviation: float = 1.0
    neighbour_deviation: float = 0.3
    hold_tolerance: float = 0.01

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method is {self.method!r}; accepted: {', '.join(METHODS)}")
        for name in (
            "half_life_observations",
            "half_life_seconds",
            "slope_deviation",
            "intercept_deviation",
            "neighbour_deviation",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; accepted: above 0")
        if self.hold_tolerance < 0:
            raise ConfigError(f"hold_tolerance is {self.hold_tolerance}; accepted: 0 or more")
