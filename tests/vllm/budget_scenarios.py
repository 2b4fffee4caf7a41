"""Scenarios of the budget; see `engine.run`. The address leads nowhere: modes come from the harness."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import engine
import tiny_models

if TYPE_CHECKING:
    from pathlib import Path

#: Nothing listens there: the hook is active and never served.
NOWHERE = "127.0.0.1:9"


def _pair(directory: Path) -> tuple[str, str]:
    target, draft = tiny_models.write_pair(directory)
    return str(target), str(draft)


def budget(directory: Path) -> dict[str, Any]:
    """Never served, then shadow, then trimming with exploration: one engine for all of it."""
    os.environ["ACCEPTD_ADDRESS"] = NOWHERE
    llm = engine.start(_pair(directory))
    answer: dict[str, Any] = {}
    engine.generate(llm, 4, 30)
    answer["never_served"] = llm.collective_rpc("budget_watched")[0]
    llm.collective_rpc("adopt", args=("shadow", 0.0))
    answer["shadow_tokens"] = engine.generate(llm, 3, 24, seed=70)
    answer["shadow"] = llm.collective_rpc("budget_watched")[0]
    llm.collective_rpc("adopt", args=("trim", 0.3))
    engine.generate(llm, 4, 30, seed=90)
    answer["trim"] = llm.collective_rpc("budget_watched")[0]
    return answer


def plain(directory: Path) -> dict[str, Any]:
    """The same requests as in shadow mode, with adaptive verification off."""
    llm = engine.start(_pair(directory), adaptive=False)
    return {"tokens": engine.generate(llm, 3, 24, seed=70)}


def budget_ranks(
    directory: Path, *, tensor_parallel: int = 2, length: int, switch: bool, times: int = 1
) -> dict[str, Any]:
    """Two ranks, one of which sees other last bits, `times` over; with `switch` rank 0 then hears of shadow mode."""
    os.environ["ACCEPTD_ADDRESS"] = NOWHERE
    llm = engine.start(_pair(directory), tensor_parallel=tensor_parallel)
    for seed in range(times):
        engine.generate(llm, 2, length, seed=seed)
    if switch:
        llm.collective_rpc("push", args=("shadow",))
        engine.generate(llm, 2, length // 2, seed=30)
    return {"watched": llm.collective_rpc("budget_watched")}
