"""What trimming cost: accepted tokens lost, estimated from verdicts on blocks that were verified whole.

A trimmed token's verdict is unknown. A block that exploration verified to its last token, and any block in shadow mode,
has all of its verdicts, and was not chosen by its confidences: the tokens of it that passed although the budget alone
would have left them out are the loss, and it stands for 1 / propensity blocks (Horvitz & Thompson, 1952).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acceptd.modes import Mode
from vllm_client_hook.budget import split

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from vllm_client_hook.policy import Decision

#: Units of a block's weight: running totals are integers on the device, and weights are not.
UNITS: Final = 256

#: In shadow mode every so many steps are judged, for all of those between. Fewer would cost more launches a step.
SHADOW_STEPS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Which blocks of a step to judge.

    blocks: int64[3, R] by request: request-state slot, scheduled draft tokens, 1 for those to judge. alone: draft
    tokens that the budget verifies without exploration, or would verify in trim mode. weight: blocks that each of
    them stands for, in 1 / `UNITS`.
    """

    blocks: NDArray[np.int64]
    alone: int
    weight: int


def judgement(
    step: int,
    decision: Decision,
    mode: Mode,
    *,
    slots: NDArray[np.integer[Any]],
    scheduled: NDArray[np.integer[Any]],
    num_positions: int,
    alone: Callable[[], int],
) -> Judgement | None:
    """What to judge of a step that was decided so; None for most steps.

    slots: int[R], request-state slots; scheduled: int[R]; num_positions: K; alone: the budget of this step without
    exploration, asked for only where it is needed.
    """
    choice, explored = decision.choice, decision.explored
    if choice is None:
        return None
    if mode is Mode.SHADOW and not decision.clamped and step % SHADOW_STEPS == 0:
        return Judgement(np.stack([slots, scheduled, scheduled > 0]), choice.drafts, SHADOW_STEPS * UNITS)
    if explored is None or explored.depth < num_positions:
        return None
    chosen = np.zeros(len(slots), np.int64)
    chosen[list(explored.rows)] = 1
    weight = round(UNITS / (explored.chance * explored.propensity))
    return Judgement(np.stack([slots, scheduled, chosen]), alone(), weight)


def lost(
    confidences: NDArray[np.float32],
    scheduled: NDArray[np.integer[Any]],
    accepted: NDArray[np.integer[Any]],
    alone: int,
) -> NDArray[np.int32]:
    """int32[R], tokens of each request that passed and would not, had only the `alone` best slots been verified.

    confidences: float32[R, K] of this step, of all slots, verified or not; scheduled, accepted: int[R]. Meaningful for
    blocks that were verified whole.
    """
    kept = split(confidences, np.asarray(scheduled, np.int32), alone)
    return np.asarray(np.maximum(accepted - kept, 0), np.int32)
