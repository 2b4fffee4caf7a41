"""One measured figure beside its limit."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """A figure of ours beside the figure it is judged against, both measured in this run.

    value, limit: in `unit`; ratio: value / limit, NaN where there is nothing beside it. goal: what was aimed for, in
    words. ok: whether it was reached.
    """

    name: str
    value: float
    limit: float
    ratio: float
    goal: str
    unit: str
    ok: bool


def beside(
    name: str, value: float, limit: float, unit: str, *, at_most: float | None = None, at_least: float | None = None
) -> Result:
    """A result whose goal is a bound on the ratio value / limit."""
    ratio = value / limit if limit else math.nan
    goal = f"ratio <= {at_most:g}" if at_most is not None else f"ratio >= {at_least:g}"
    ok = ratio <= at_most if at_most is not None else at_least is not None and ratio >= at_least
    return Result(name, value, limit, ratio, goal, unit, bool(ok))


def below(name: str, value: float, goal: float, unit: str) -> Result:
    """A result whose goal is a bound on the value itself; the bound stands as its limit."""
    return Result(name, value, goal, value / goal, f"value <= {goal:g} {unit}", unit, value <= goal)


def reported(name: str, value: float, unit: str) -> Result:
    """A figure without a goal."""
    return Result(name, value, math.nan, math.nan, "reported", unit, ok=True)


def median_cpu_seconds(call: Callable[[], object], *, repeats: int, warmup: int = 3) -> float:
    """Median CPU seconds of one call, all threads of this process: on an idle machine, with one thread, wall time."""
    for _ in range(warmup):
        call()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return sorted(taken)[len(taken) // 2]


def write(by_command: Mapping[str, Iterable[Result]], path: Path, *, load: float) -> None:
    """Writes the machine and each figure with its command as JSON; a ratio of NaN becomes null.

    load: processes that wanted to run in the minute before, on the average: what else the machine was doing.
    """
    rows = [{"command": command, **asdict(r)} for command, results in by_command.items() for r in results]
    for row in rows:
        row.update({k: None for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)})
    path.write_text(json.dumps({"machine": machine(load), "results": rows}, indent=2) + "\n")


def machine(load: float) -> dict[str, object]:
    """What a figure was measured on. load: see `write`."""
    return {"cores": os.cpu_count(), "processor": _processor(), "python": platform.python_version(), "load": load}


def _processor() -> str:
    """The processor's name; its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
