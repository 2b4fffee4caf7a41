"""Per-request state on the device, by request-state slot. Addresses never change: captured graphs read and write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_client_hook.rows import record_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

#: Values of `Slots.valid`.
NOT_PREDICTED, PREDICTED, NOT_FINITE = 0, 1, 2


class Slots:
    """Tensors of R = max_num_reqs request-state slots and K positions.

    They have R + 1 rows: the last is where the torch reference sends the writes of padded rows.

    features, predictions: float32[R + 1, K], x (nats) and probability of the newest draft. entropies, margins: the
    same, nats, or None. valid: uint8[R + 1, K], whether a position holds a prediction of this request that no verdict
    has used yet. segment: uint8[R + 1]; version: int32[R + 1], index of the coefficients of the prediction. flags:
    uint8[R + 1], `vllm_client_hook.labels.flag_byte`. explored: uint8[R + 1] and propensity: float32[R + 1]: depth
    that this step's exploration admits (`write_explored`), cleared once it is graded.
    """

    def __init__(self, max_num_reqs: int, num_positions: int, device: Any, *, full: bool) -> None:
        self.max_num_reqs = max_num_reqs
        self.num_positions = num_positions
        self.device = device
        self.full = full
        rows = max_num_reqs + 1

        def matrix(dtype: Any) -> Any:
            return torch.zeros((rows, num_positions), dtype=dtype, device=device)

        def column(dtype: Any) -> Any:
            return torch.zeros(rows, dtype=dtype, device=device)

        self.features = matrix(torch.float32)
        self.predictions = matrix(torch.float32)
        self.entropies: Any = matrix(torch.float32) if full else None
        self.margins: Any = matrix(torch.float32) if full else None
        self.valid = matrix(torch.uint8)
        self.segment = column(torch.uint8)
        self.version = column(torch.int32)
        self.flags = column(torch.uint8)
        self.explored = column(torch.uint8)
        self.propensity = column(torch.float32)
        self._host_flags = torch.zeros(rows, dtype=torch.uint8)
        self._admitted: dict[int, int] = {}
        self._pins = torch.device(device).type == "cuda"

    def admit(self, slot: int, flags: int) -> None:
        """Another request takes `slot`. Takes effect at the next `write_admissions`; bounded by R."""
        self._admitted[slot] = flags

    def write_admissions(self) -> None:
        """Brings admissions to the device in stream order, without waiting: sets flags, forgets predictions."""
        if not self._admitted:
            return
        slots, flags = list(self._admitted), list(self._admitted.values())
        self._admitted.clear()
        both = torch.tensor([slots, flags], dtype=torch.int64, pin_memory=self._pins).to(self.device, non_blocking=True)
        self._host_flags[slots] = torch.tensor(flags, dtype=torch.uint8)
        self.flags.index_copy_(0, both[0], both[1].to(torch.uint8))
        self.valid.index_fill_(0, both[0], NOT_PREDICTED)
        self.explored.index_fill_(0, both[0], 0)

    def write_explored(self, slots: NDArray[np.int64], depth: int, propensity: float) -> None:
        """Depth that exploration admits in this step in some slots, and with what propensity; does not wait."""
        where = self.upload(slots)
        self.explored.index_fill_(0, where, depth)
        self.propensity.index_fill_(0, where, propensity)

    def upload(self, values: NDArray[np.int64]) -> Any:
        """The same on the device; does not wait."""
        tensor = torch.from_numpy(values)
        if self._pins:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def forget_predictions(self) -> None:
        """Nothing predicted so far will be graded."""
        self.valid.zero_()
        self.explored.zero_()

    def reseed(self) -> None:
        """After the device's memory was discarded: flags from the host, the rest empty."""
        for tensor in self._tensors():
            tensor.zero_()
        self.flags.copy_(self._host_flags)

    def _tensors(self) -> Iterable[Any]:
        yield from (self.features, self.predictions, self.valid, self.segment, self.version)
        yield from (self.explored, self.propensity)
        if self.full:
            yield from (self.entropies, self.margins)


class Page:
    """Device buffer that packed records go to.

    records: int32[capacity + 1, words], the last row for writes that do not count. words: of one row. head: int32[1],
    rows in use.
    """

    def __init__(self, capacity: int, num_positions: int, device: Any, *, full: bool) -> None:
        self.capacity = capacity
        self.words = record_words(num_positions, full=full)
        self.records = torch.zeros((capacity + 1, self.words), dtype=torch.int32, device=device)
        self.head = torch.zeros(1, dtype=torch.int32, device=device)
