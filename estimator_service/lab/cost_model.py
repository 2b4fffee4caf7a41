"""What a decode step costs, in milliseconds: a worker's table or a roofline, for every way to draft and verify."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptd.errors import ConfigError
from vllm_client_hook.costs import CostTable, build_cost_table

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_ACCEPTED = (
    'accepted: JSON {"draft": [[requests, ms], …], "verify": [[tokens, ms], …]} and optionally "capture_limit" '
    '(tokens) and "drafter" ("autoregressive" or "block")'
)


@dataclass(frozen=True, eq=False)
class CostModel:
    """Milliseconds of a step's parts.

    draft: float64[K + 1, largest number of requests + 1], drafting k tokens a request; row 0 is 0. requests:
    float64[largest number of requests + 1], what a step pays a request whatever is verified (reading its KV cache).
    verify: float64[largest number of tokens + 1]. name, notices: for people.
    """

    name: str
    draft: NDArray[np.float64]
    requests: NDArray[np.float64]
    verify: NDArray[np.float64]
    notices: tuple[str, ...] = ()

    def step_ms(self, drafted: int, requests: int, tokens: NDArray[np.int64] | int) -> Any:
        """Milliseconds of a step that drafts `drafted` tokens for each of `requests` and verifies `tokens` in all."""
        return self.draft[drafted, requests] + self.requests[requests] + self.verify[tokens]

    def table(self, drafted: int) -> CostTable:
        """What the budget decides with, as a worker that drafts `drafted` tokens a request would have profiled it."""
        return CostTable(self.draft[drafted] + self.requests, self.verify, self.notices)

    @property
    def depth_costs(self) -> bool:
        """Whether drafting more tokens takes longer; a block drafter's one pass does not."""
        return bool((self.draft[1] < self.draft[-1]).any())


def load_cost_model(path: Path, *, num_positions: int, max_requests: int) -> CostModel:
    """The model of a file of profiled samples. Raises ConfigError that names file and key.

    num_positions: K; the file's draft curve is of drafting K tokens. An autoregressive drafter takes k of K passes
    for k tokens, a block drafter always one.
    """
    try:
        raw = json.loads(path.read_text())
        draft, verify = ([(int(size), float(ms)) for size, ms in raw[key]] for key in ("draft", "verify"))
        capture_limit, drafter = int(raw.get("capture_limit", 0)), raw.get("drafter", "autoregressive")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}; {_ACCEPTED}") from error
    if drafter not in {"autoregressive", "block"}:
        raise ConfigError(f"{path}: drafter is {drafter!r}; {_ACCEPTED}")
    table = build_cost_table(
        draft,
        verify,
        max_requests=max_requests,
        max_tokens=max_requests * (num_positions + 1),
        capture_limit=capture_limit,
    )
    share = np.arange(num_positions + 1) / num_positions
    if drafter == "block":
        share = np.ceil(share)
    return CostModel(
        path.name, share[:, None] * table.draft_ms, np.zeros(max_requests + 1), table.verify_ms, table.notices
    )
