"""Features of a draft token that could predict its acceptance, and which of them may decide what is verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from acceptd.errors import ConfigError
from acceptd.limits import MAX_LOG_ODDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Values = NDArray[np.float64]


@dataclass(frozen=True)
class Feature:
    """One candidate.

    column: column of the trace it comes from. compute: that column (float64, any shape) → the feature, same shape,
    oriented so that larger means likelier to be accepted. low, high: its range; values beyond are clamped.
    lossless: whether it is a function of the prefix alone. Verifying by it then leaves the output distribution the
    target's; a feature of the token that was drawn biases it (tests/unit/test_losslessness.py).
    """

    name: str
    column: str
    compute: Callable[[Values], Values]
    low: float
    high: float
    lossless: bool = True


def _log_qmax(x: Values) -> Values:
    return np.asarray(-np.logaddexp(0.0, -x))


def _qmax(x: Values) -> Values:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _cloglog(x: Values) -> Values:
    return np.asarray(-np.log(np.logaddexp(0.0, -x)))


def _itself(values: Values) -> Values:
    return values


#: Entropy and margin are bounded by the vocabulary: ln(1e6) = 13.8 nats, and a margin follows logits of ±40.
FEATURES: Final = (
    Feature("log q_max", "logit_qmax", _log_qmax, -14.0, 0.0),
    Feature("margin", "margin", _itself, 0.0, MAX_LOG_ODDS),
    Feature("entropy", "entropy", np.negative, -14.0, 0.0),
    Feature("-log(-log q_max)", "logit_qmax", _cloglog, -3.0, MAX_LOG_ODDS),
    Feature("logit q_max", "logit_qmax", _itself, -14.0, MAX_LOG_ODDS),
    Feature("logit q_sampled", "logit_qsampled", _itself, -MAX_LOG_ODDS, MAX_LOG_ODDS, lossless=False),
    Feature("raw q_max", "logit_qmax", _qmax, 0.0, 1.0),
)


def trimming_feature(name: str) -> Feature:
    """The feature called `name`, for deciding which draft tokens to verify.

    Raises ConfigError for an unknown name, and for a feature that would change what is generated.
    """
    for feature in FEATURES:
        if feature.name == name:
            if feature.lossless:
                return feature
            raise ConfigError(
                f"feature {name!r} must not decide what is verified: it depends on the token that was drawn, so "
                f"trimming by it changes the output distribution; accepted: {_lossless_names()}"
            )
    raise ConfigError(f"feature {name!r} is unknown; accepted: {_lossless_names()}")


def _lossless_names() -> str:
    return ", ".join(repr(feature.name) for feature in FEATURES if feature.lossless)
