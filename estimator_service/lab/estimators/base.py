"""What every estimator in a replay can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from acceptd.types import Coefficients
    from estimator_service.lab.blocks import Blocks


class Estimator(Protocol):
    """Predicts a round, then learns from it. It never sees a label before it predicted that block."""

    def predict(self, blocks: Blocks) -> NDArray[np.float64]:
        """P(accept) of each position, float64[B, K]; only observed positions are looked at."""
        ...

    def learn(self, blocks: Blocks) -> None:
        """One round of graded blocks."""
        ...

    def coefficients(self) -> Coefficients | None:
        """What is in force, None for an estimator without any."""
        ...


@runtime_checkable
class Ramping(Protocol):
    """An estimator that learns sooner in its first rounds, as a live pair does."""

    def next_round(self, target: int) -> int:
        """Blocks it wants to learn from next, at most `target`, a full round."""
        ...
