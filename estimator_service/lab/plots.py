"""Pictures of a replay as PNG files. Drawn with matplotlib's Agg, so no display is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from estimator_service.lab.replay import BASELINE, LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from estimator_service.lab.replay import Course, Replay

#: Okabe and Ito's colours, told apart by the colour-blind too; an estimator keeps its own in every picture.
_COLOURS: Final = {
    "raw": "#999999",
    "round": "#D55E00",
    "line": "#E69F00",
    "line+slopes": "#CC79A7",
    "link": "#56B4E9",
    "link+segments": "#0072B2",
    "link+segments+labels": "#56388C",
    "confidence": "#009E73",
    "oracle": "#000000",
}

#: Points of a curve over time at most: more rounds are averaged, which also calms the noise of single rounds.
_POINTS: Final = 60

#: Bins of the reliability diagram with fewer observations are left out: they show noise.
_MIN_OBSERVATIONS: Final = 50

#: Lines that a legend names at most; more would cover the picture.
_LEGEND_ENTRIES: Final = 16

_STYLE: Final[dict[str, Any]] = {
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def draw(replay: Replay, directory: Path, *, title: str) -> list[Path]:
    """Writes reliability.png, auc-by-position.png, coefficients.png and log-loss.png; returns what was written.

    coefficients.png needs an estimator with coefficients. Raises OSError where the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {
        "reliability": _reliability,
        "auc-by-position": _auc_by_position,
        "coefficients": _coefficients,
        "log-loss": _log_loss,
    }
    written = []
    with mpl.rc_context(_STYLE):
        for name, picture in pictures.items():
            figure = picture(replay, title)
            if figure is not None:
                path = directory / f"{name}.png"
                FigureCanvasAgg(figure)
                figure.savefig(path, dpi=120)
                written.append(path)
    return written


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _colour(name: str) -> str:
    return _COLOURS.get(name, "#555555")


def _reliability(replay: Replay, title: str) -> Figure:
    figure, (axes,) = _figure(8.2, 5.6)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, linestyle="--", zorder=1)
    axes.annotate("perfect", (0.04, 0.04), xytext=(6, -4), textcoords="offset points", color="#888888", fontsize=9)
    for name, scores in replay.scores.items():
        number, predicted, observed = scores.reliability().T
        shown = number >= _MIN_OBSERVATIONS
        label = f"{name}  (ECE {scores.overall().ece:.3f})"
        axes.plot(predicted[shown], observed[shown], marker="o", markersize=4, color=_colour(name), label=label)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted P(accept)", ylabel="observed acceptance", aspect="equal")
    axes.set_title(f"Reliability · {title}")
    _legend_beside(axes)
    return figure


def _auc_by_position(replay: Replay, title: str) -> Figure:
    figure, (axes,) = _figure(7.2, 4.6)
    for name, scores in replay.scores.items():
        auc = [summary.auc for summary in scores.positions()]
        axes.plot(range(len(auc)), auc, marker="o", markersize=4, color=_colour(name), label=name)
    axes.set(xlabel="position in the block", ylabel="AUC")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"AUC by position · {title}")
    _legend_beside(axes)
    return figure


def _coefficients(replay: Replay, title: str) -> Figure | None:
    """Slope and intercepts of the straight lines, which every worker understands; the prior is left out."""
    names = [name for name, course in replay.courses.items() if any(c is not None for c in course.coefficients[1:])]
    names = [name for name in names if name in {BASELINE, "line"}] or names[:1]
    if not names:
        return None
    figure, axes = _figure(4.6 * (1 + len(names)), 4.6, 1 + len(names))
    for name in names:
        blocks, slopes, _ = _lines(replay, name)
        axes[0].plot(blocks, slopes, color=_colour(name), label=name)
    axes[0].set_title("Slope ω")
    shades = mpl.colormaps["viridis"]
    for axis, name in zip(axes[1:], names, strict=True):
        blocks, _, intercepts = _lines(replay, name)
        positions = intercepts.shape[1]
        for k in range(positions):
            shade = shades(0.9 * k / max(positions - 1, 1))
            axis.plot(blocks, intercepts[:, k], color=shade, linewidth=1.3, label=f"{k}")
        axis.set_title(f"Intercepts β of {name}, nats")
    low = min(axis.get_ylim()[0] for axis in axes[1:])
    high = max(axis.get_ylim()[1] for axis in axes[1:])
    for axis in axes:
        if axis is not axes[0]:
            axis.set_ylim(low, high)
        _time_axis(axis, replay)
    axes[0].legend(loc="best")
    if intercepts.shape[1] <= _LEGEND_ENTRIES:
        axes[-1].legend(title="position", fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle(f"Coefficients over time · {title}", x=0.01, ha="left", weight="bold")
    return figure


def _lines(replay: Replay, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Blocks seen [R], slope [R], intercepts [R, K] of the straight line, by round from the second on."""
    lines = [c.line for c in replay.courses[name].coefficients[1:] if c is not None]
    blocks = np.arange(1, len(lines) + 1, dtype=np.float64) * replay.round_size
    return blocks, np.array([line.slopes[0] for line in lines]), np.array([line.intercepts for line in lines])


def _log_loss(replay: Replay, title: str) -> Figure:
    """The level, and beside it what each estimator gains on `round`, where that was replayed."""
    compared = BASELINE in replay.courses and len(replay.courses) > 1
    figure, axes = _figure(11.6 if compared else 7.2, 4.6, 2 if compared else 1)
    for name, course in replay.courses.items():
        axes[0].plot(*_averaged(replay, course, course.loss), color=_colour(name), label=name)
        if compared and name not in {LIMIT, "raw"}:
            gain = np.array(course.loss) - np.array(replay.courses[BASELINE].loss)
            axes[1].plot(*_averaged(replay, course, gain), color=_colour(name))
    axes[0].set_title("Log-loss, nats")
    if compared:
        axes[1].set_title(f"Log-loss minus that of {BASELINE} (lower is better)")
    for axis in axes:
        _time_axis(axis, replay)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(f"Log-loss over time · {title}", x=0.01, ha="left", weight="bold")
    return figure


def _averaged(
    replay: Replay, course: Course, loss: Sequence[float] | NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Blocks seen and mean loss an observation, at most `_POINTS` of each."""
    number = np.array(course.observations, float)
    width = max(1, -(-len(number) // _POINTS))
    starts = np.arange(0, len(number), width)
    mean = np.add.reduceat(np.asarray(loss), starts) / np.maximum(np.add.reduceat(number, starts), 1)
    middle = (starts + np.minimum(starts + width, len(number))) / 2 * replay.round_size
    return middle, np.asarray(mean)


def _time_axis(axes: Axes, replay: Replay) -> None:
    """Blocks along x, and where another workload begins if there are few such places."""
    axes.set_xlabel("blocks")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    names = replay.workloads
    changes = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    if not 1 < len(changes) <= _LEGEND_ENTRIES // 2:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.3 * (high - low))
    for i in changes:
        if i:
            axes.axvline(i * replay.round_size, color="#bbbbbb", linewidth=0.8, linestyle=":")
        place = (i * replay.round_size, 1.0)
        axes.annotate(
            names[i],
            place,
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            fontsize=7.5,
            color="#777777",
            rotation=90,
            va="top",
        )


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
