"""Estimators by the name that `--estimator` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from acceptd.errors import ConfigError
from estimator_service.fit.settings import FitSettings
from estimator_service.lab.estimators.attached import Attached
from estimator_service.lab.estimators.labelled import Labelled
from estimator_service.lab.estimators.pair import Pair
from estimator_service.lab.estimators.raw import Raw
from estimator_service.lab.estimators.slope_per_position import SlopePerPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from estimator_service.lab.estimators.base import Estimator
    from estimator_service.lab.trace import Trace

#: In the order of the table: what costs nothing, the original, ours from plain to full, and what was attached.
ESTIMATORS: Final[dict[str, Callable[[int], Estimator]]] = {
    "raw": lambda _: Raw(),
    "round": lambda k: Pair(k, FitSettings(method="round")),
    "line": lambda k: Pair(k, FitSettings(method="line")),
    "line+slopes": lambda k: SlopePerPosition(k, FitSettings(method="line")),
    "link": lambda k: Pair(k, FitSettings(segments=False)),
    "link+segments": lambda k: Pair(k, FitSettings()),
    "link+segments+labels": lambda k: Labelled(k, FitSettings()),
    "confidence": lambda _: Attached("confidence"),
    "oracle": lambda _: Attached("oracle"),
}

#: Those that read a column which a trace may lack.
ATTACHED: Final = frozenset({"confidence", "oracle"})

#: Those that run only when named: they answer a question of their own.
ASKED_FOR: Final = frozenset({"link+segments+labels"})


def build(trace: Trace, names: Sequence[str] = ()) -> dict[str, Estimator]:
    """The estimators called `names`, fresh; without names all that the trace allows but `ASKED_FOR`.

    Raises ConfigError for an unknown name, and for an attached one whose column the trace lacks.
    """
    for name in names:
        if name not in ESTIMATORS:
            raise ConfigError(f"estimator {name!r} is unknown; accepted: {', '.join(ESTIMATORS)}")
        if name in ATTACHED - trace.names:
            raise ConfigError(f"{trace.path}: estimator {name!r} needs column {name}, which this trace lacks")
    left_out = ASKED_FOR | (ATTACHED - trace.names)
    chosen = [name for name in ESTIMATORS if (name in names if names else name not in left_out)]
    return {name: ESTIMATORS[name](trace.num_positions) for name in chosen}
