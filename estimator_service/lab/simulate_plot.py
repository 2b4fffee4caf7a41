"""Plots of a simulation: throughput against tokens/s a user, and shares of the oracle's throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

    from estimator_service.lab.policies import Outcome
    from estimator_service.lab.simulate import Comparison, Simulation

#: Fixed colours, so that a policy looks the same in every plot.
_COLOURS: Final = {
    "raw": "#999999",
    "round": "#d95f02",
    "line": "#7570b3",
    "link": "#66a61e",
    "link+segments": "#1b6ca8",
    "confidence": "#a6761d",
    "oracle": "#000000",
}


def save_plots(simulation: Simulation, directory: Path) -> list[Path]:
    """Writes the plots as PNG into `directory`, which is made, and returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in (("throughput", _throughput), ("share_of_oracle", _share), ("verified", _verified)):
        figure, axes = plt.subplots(figsize=(8, 5.5), layout="constrained")
        draw(simulation, axes)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, frameon=False)
        figure.suptitle(f"{simulation.costs}, K = {simulation.num_positions}", fontsize=10)
        path = directory / f"simulate_{name}.png"
        figure.savefig(path, dpi=150)
        plt.close(figure)
        paths.append(path)
    return paths


def _throughput(simulation: Simulation, axes: Any) -> None:
    comparisons = list(simulation.comparisons.values())
    nothing = [c.fixed[0] for c in comparisons]
    _curve(axes, comparisons, nothing, "k = 0: no drafting", ls=":", color="#bbbbbb", lw=2)
    for k in range(1, simulation.num_positions + 1):
        shade = plt.get_cmap("YlGnBu")(0.35 + 0.5 * k / simulation.num_positions)
        _curve(axes, comparisons, [c.fixed[k] for c in comparisons], f"fixed k = {k}", ls=":", color=shade, lw=1)
    stopped = [c.thresholds[c.best_threshold] for c in comparisons]
    _curve(axes, comparisons, stopped, "best q_max threshold", ls="--", color="#e7298a")
    for name in _names(simulation):
        _curve(axes, comparisons, [c.av[name] for c in comparisons], f"AV, {name}", marker="o", ms=3, **_style(name))
    if simulation.depth_of:
        suited = [c.by_depth[c.best_depth or simulation.num_positions] for c in comparisons]
        label = f"AV, {simulation.depth_of}, best depth"
        _curve(axes, comparisons, suited, label, marker="s", ms=4, ls="-.", color=_COLOURS[simulation.depth_of])
    for comparison in comparisons:
        best = max(comparison.av.values(), key=lambda o: o.throughput, default=None)
        if best is not None:
            at = (best.throughput / comparison.concurrency, best.throughput)
            label = f"{comparison.concurrency} user{'s' if comparison.concurrency > 1 else ''}"
            axes.annotate(label, at, fontsize=7, textcoords="offset points", xytext=(6, 4))
    axes.set(
        yscale="log",
        xlabel="tokens/s a user",
        ylabel="tokens/s, all users (log)",
        title="Throughput against speed a user, by concurrency",
    )
    axes.set_xlim(0, 1.1 * axes.get_xlim()[1])


def _curve(axes: Any, comparisons: list[Comparison], outcomes: list[Outcome], label: str, **style: Any) -> None:
    total = [outcome.throughput for outcome in outcomes]
    user = [value / c.concurrency for value, c in zip(total, comparisons, strict=True)]
    axes.plot(user, total, label=label, **style)


def _share(simulation: Simulation, axes: Any) -> None:
    comparisons = simulation.comparisons
    for name in _names(simulation):
        shares = [100 * (c.share(c.av[name]) or float("nan")) for c in comparisons.values()]
        axes.plot(list(comparisons), shares, label=f"AV, {name}", marker="o", ms=4, **_style(name))
    best = [100 * (c.share(c.fixed[c.best_fixed]) or float("nan")) for c in comparisons.values()]
    axes.plot(list(comparisons), best, label="best fixed k ≥ 1", ls=":", color="#1b9e77")
    _concurrency(axes, list(comparisons))
    axes.set(ylabel="% of the oracle's throughput", title="What each probability is worth")


def _verified(simulation: Simulation, axes: Any) -> None:
    for name in _names(simulation):
        shares = [100 * c.av[name].verified_share for c in simulation.comparisons.values()]
        axes.plot(list(simulation.comparisons), shares, label=f"AV, {name}", marker="o", ms=4, **_style(name))
    _concurrency(axes, list(simulation.comparisons))
    axes.set(ylabel="% of drafted tokens verified", title="How far the budget trims")


def _names(simulation: Simulation) -> list[str]:
    return list(next(iter(simulation.comparisons.values())).av)


def _style(name: str) -> dict[str, Any]:
    return {"color": _COLOURS.get(name, "#444444"), "lw": 2.4 if name == "link+segments" else 1.3}


def _concurrency(axes: Any, values: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.set_xlabel("concurrency (requests in flight)")
