"""Cells: the workload × temperature groups of a trace, numbered as they appear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from acceptd.codec import UNKNOWN_SEGMENT
from acceptd.segments import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from estimator_service.lab.blocks import Blocks

#: Cells told apart; what comes after them shares the last one. Scores keep 160 kB a cell and estimator.
MAX_CELLS: Final = 256

#: Stands for an unknown temperature among those counted in 1e-4.
_UNKNOWN: Final = 0xFFFFFFFF


class Cell(NamedTuple):
    """A workload ("" where unknown) at a temperature (or a segment's name where only that was recorded)."""

    workload: str
    temperature: str


class Cells:
    """Gives each (workload, temperature) a number, in order of appearance."""

    def __init__(self) -> None:
        self.found: list[Cell] = []
        self._numbers: dict[Cell, int] = {}

    def number(self, blocks: Blocks) -> NDArray[np.int32]:
        """int32[B]: the cell of each block."""
        tenth_milli = np.where(np.isnan(blocks.temperature), _UNKNOWN, np.rint(blocks.temperature * 1e4))
        key = (blocks.workload.astype(np.int64) << 40) | (blocks.segment.astype(np.int64) << 32)
        key |= np.minimum(tenth_milli, _UNKNOWN).astype(np.int64)
        distinct, inverse = np.unique(key, return_inverse=True)
        codes = [self._number(self._cell(int(code), blocks)) for code in distinct]
        return np.asarray(np.array(codes, np.int32)[inverse])

    def of(self, workload: str) -> list[int]:
        """Numbers of a workload's cells."""
        return [i for i, cell in enumerate(self.found) if cell.workload == workload]

    @property
    def workloads(self) -> list[str]:
        """Names, in order of appearance."""
        return list(dict.fromkeys(cell.workload for cell in self.found))

    @staticmethod
    def _cell(code: int, blocks: Blocks) -> Cell:
        temperature, segment = code & 0xFFFFFFFF, (code >> 32) & 0xFF
        workload = blocks.workloads[code >> 40]
        if temperature != _UNKNOWN:
            return Cell(workload, f"{temperature / 1e4:g}")
        return Cell(workload, "any" if segment == UNKNOWN_SEGMENT else Segment(segment).name.lower())

    def _number(self, cell: Cell) -> int:
        if cell not in self._numbers and len(self.found) == MAX_CELLS:
            return MAX_CELLS - 1
        if cell not in self._numbers and len(self.found) == MAX_CELLS - 1:
            cell = Cell("other", "any")
        if cell not in self._numbers:
            self._numbers[cell] = len(self.found)
            self.found.append(cell)
        return self._numbers[cell]
