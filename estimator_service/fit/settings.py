"""What the fit of a pair may be told. Every number says why it has its value and what raising it does."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

from acceptd.errors import ConfigError

#: Fits a pair can run. "auto": of straight line, link, and link with segments, whichever predicted the latest rounds
#: better. "line": the straight line alone. "round": vLLM's original one damped Newton step a round.
Method = Literal["auto", "line", "round"]

METHODS: Final[tuple[Method, ...]] = ("auto", "line", "round")


@dataclass(frozen=True)
class FitSettings:
    """Settings of one pair's fit. An infinite deviation turns that prior off.

    method: see `Method`.
    knots, segments: whether "auto" may publish the piecewise-linear link, and coefficients a segment of their own.
        Segments come with the link: without knots neither is fitted.
    half_life_observations: graded draft tokens after which a round's weight has halved, for the shape (slopes, and how
        positions and segments differ). 24,000 make a standard error of .01 on a slope. Raising it makes the shape
        steadier and slower to follow another mix of requests.
    recent_half_life_observations: the same for the recent window, which moves what the long one found, mostly the
        common level: that is what a workload changes. 3,000 are one to two rounds of 640 blocks. Raising it follows a
        shift later; at or above half_life_observations there is no recent window.
    half_life_seconds: the same in time, for both, so that a quiet pair grows uncertain and drifts to its prior. A day:
        a night without traffic keeps most of what the evening taught. Raising it trusts old traffic longer.
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
    half_life_observations: float = 24_000.0
    recent_half_life_observations: float = 3_000.0
    half_life_seconds: float = 86_400.0
    slope_deviation: float = 0.2
    intercept_deviation: float = 1.0
    neighbour_deviation: float = 0.3
    hold_tolerance: float = 0.01

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method is {self.method!r}; accepted: {', '.join(METHODS)}")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "hold_tolerance":
                if not value >= 0:
                    raise ConfigError(f"{item.name} is {value}; accepted: 0 or more")
            elif item.type == "float" and not value > 0:
                raise ConfigError(f"{item.name} is {value}; accepted: above 0")
