"""Simulated throughput of a recorded trace at several concurrencies, with the worker's own budget code.

A request plays its recorded blocks in order whatever was verified of them: a trimmed block emits
min(accepted, admitted) + 1 tokens and the next block follows unchanged. Prompts are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acceptd.errors import ConfigError
from estimator_service.lab.blocks import concatenate
from estimator_service.lab.policies import Adaptive, Outcome, fixed, threshold
from estimator_service.lab.schedule import schedule
from vllm_client_hook.exploration import Exploration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from estimator_service.lab.blocks import Blocks
    from estimator_service.lab.cost_model import CostModel
    from estimator_service.lab.estimators.base import Estimator
    from estimator_service.lab.trace import Trace

#: q_max thresholds swept, each applied throughout a run.
THRESHOLDS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

#: The limit that shares refer to.
LIMIT: Final = "oracle"

#: Whose AV is also run with fewer drafted tokens, where drafting them takes time.
DEPTH_OF: Final = "link+segments"

#: The budget binds where the limit's policy verifies less than this share of the drafted tokens.
BINDS_BELOW: Final = 0.99

#: Whose probabilities adaptive verification is simulated with, as the lab's registry names them, the limit last.
POLICIES: Final = ("raw", "round", "line", "link", "link+segments", "confidence", LIMIT)

#: Those with nothing to learn: they explore nothing.
_STATIC: Final = frozenset({"raw", "confidence", LIMIT})


@dataclass
class Comparison:
    """All policies at one concurrency. fixed: by k; thresholds: by least q_max; av: by estimator, drafting K tokens.

    by_depth: AV with the estimator `Simulation.depth_of`, by tokens drafted; empty where drafting fewer saves nothing.
    """

    concurrency: int
    fixed: dict[int, Outcome] = field(default_factory=dict)
    thresholds: dict[float, Outcome] = field(default_factory=dict)
    av: dict[str, Outcome] = field(default_factory=dict)
    by_depth: dict[int, Outcome] = field(default_factory=dict)

    @property
    def best_depth(self) -> int | None:
        """The number of drafted tokens at which AV has the highest throughput; None without `by_depth`."""
        return max(self.by_depth, key=lambda depth: self.by_depth[depth].throughput, default=None)

    @property
    def best_fixed(self) -> int:
        """The k >= 1 with the highest throughput."""
        return max((k for k in self.fixed if k), key=lambda k: self.fixed[k].throughput)

    @property
    def best_threshold(self) -> float:
        """The threshold with the highest throughput."""
        return max(self.thresholds, key=lambda t: self.thresholds[t].throughput)

    @property
    def drafting_pays(self) -> bool:
        """Whether any policy that drafts beats drafting nothing."""
        drafting = [*self.fixed.values(), *self.thresholds.values(), *self.av.values(), *self.by_depth.values()]
        return any(o.throughput > self.fixed[0].throughput for o in drafting if o is not self.fixed[0])

    @property
    def binds(self) -> bool | None:
        """Whether the budget leaves draft tokens out; None without an oracle."""
        return self.av[LIMIT].verified_share < BINDS_BELOW if LIMIT in self.av else None

    def share(self, outcome: Outcome) -> float | None:
        """Throughput over the oracle's; None without an oracle."""
        return outcome.throughput / self.av[LIMIT].throughput if LIMIT in self.av else None

    def as_json(self) -> dict[str, Any]:
        """Throughputs in tokens/s by policy, and the counts behind them in `details`."""
        return {
            "fixed": {str(k): o.throughput for k, o in self.fixed.items()},
            "threshold": {f"{t:g}": o.throughput for t, o in self.thresholds.items()},
            "av": {name: o.throughput for name, o in self.av.items()},
            "av_by_depth": {str(depth): o.throughput for depth, o in self.by_depth.items()},
            "share_of_oracle": {name: self.share(o) for name, o in self.av.items()},
            "best_fixed": self.best_fixed,
            "binds": self.binds,
            "drafting_pays": self.drafting_pays,
            "details": {name: o.as_json() for name, o in self.av.items()},
        }


@dataclass
class Simulation:
    """The outcome of `simulate`: by concurrency, ascending. depth_of: whose AV was also run at smaller depths."""

    trace: str
    costs: str
    num_positions: int
    comparisons: dict[int, Comparison] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    depth_of: str = ""

    @property
    def drafting_stops_paying(self) -> int | None:
        """The lowest concurrency from which on drafting nothing wins; None if it pays at the highest one."""
        found = None
        for concurrency, comparison in sorted(self.comparisons.items(), reverse=True):
            if comparison.drafting_pays:
                break
            found = concurrency
        return found

    def as_json(self) -> dict[str, Any]:
        """What `acceptd simulate --json` prints; docs/simulator.md describes the fields."""
        return {
            "trace": self.trace,
            "costs": self.costs,
            "K": self.num_positions,
            "depth_of": self.depth_of,
            "drafting_stops_paying": self.drafting_stops_paying,
            "notices": list(self.notices),
            "concurrency": {str(c): comparison.as_json() for c, comparison in self.comparisons.items()},
        }


def simulate(
    trace: Trace,
    costs: CostModel,
    estimators: Mapping[str, Callable[[], Estimator]],
    concurrencies: Sequence[int],
    *,
    exploration_share: float,
    seed: int,
    round_size: int,
    max_steps: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Simulation:
    """Plays `trace` under every policy. estimators: makers of a fresh one, by name; those whose column the trace lacks
    must not be among them. `on_progress` gets 1 after each policy of each concurrency.

    Raises TraceError or ConfigError for a trace that cannot be played: trimmed blocks, too few requests.
    """
    blocks = whole_blocks(trace)
    result = Simulation(str(trace.path), costs.name, trace.num_positions, notices=costs.notices)
    result.depth_of = DEPTH_OF if costs.depth_costs and DEPTH_OF in estimators else ""
    for concurrency in sorted(concurrencies):
        plan = schedule(blocks, concurrency, max_steps)
        comparison = result.comparisons[concurrency] = Comparison(concurrency)
        comparison.fixed = {k: fixed(blocks, plan, costs, k) for k in range(trace.num_positions + 1)}
        comparison.thresholds = {t: threshold(blocks, plan, costs, t) for t in THRESHOLDS}
        on_progress(1)
        for name, make in estimators.items():
            explore = None if name in _STATIC else Exploration(seed, share=exploration_share)
            run = Adaptive(costs, make(), explore, round_size=round_size)
            comparison.av[name] = run.run(blocks, plan)
            on_progress(1)
        for depth in range(1, trace.num_positions) if result.depth_of else ():
            explore = Exploration(seed, share=exploration_share)
            run = Adaptive(costs, estimators[result.depth_of](), explore, round_size=round_size, depth=depth)
            comparison.by_depth[depth] = run.run(blocks, plan)
            on_progress(1)
        if result.depth_of:
            comparison.by_depth[trace.num_positions] = comparison.av[result.depth_of]
    return result


def whole_blocks(trace: Trace) -> Blocks:
    """All blocks of a trace. Raises ConfigError unless each was verified whole and has all its features."""
    parts = list(trace.chunks(("oracle", "confidence")))
    if not parts:
        raise ConfigError(f"{trace.path}: no blocks; accepted: a trace with at least one")
    blocks = concatenate(parts)
    lacking = (blocks.admitted < trace.num_positions) | ~np.isfinite(blocks.x).all(axis=1)
    if lacking.any():
        row = int(np.flatnonzero(lacking)[0])
        raise ConfigError(
            f"{trace.path}: row {row} was trimmed, or lacks features beyond its first rejection; "
            f"accepted: blocks verified whole, with features at all {trace.num_positions} positions"
        )
    return blocks
