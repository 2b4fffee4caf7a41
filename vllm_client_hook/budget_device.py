"""The split on the device: twin of `budget.split`, from confidences that never leave it."""

from __future__ import annotations

import torch

from vllm_client_hook.budget import FORCED


def split(
    confidences: torch.Tensor,
    idx_mapping: torch.Tensor,
    capacities: torch.Tensor,
    drafts: int | torch.Tensor,
    forced: torch.Tensor | None = None,
) -> None:
    """Turns scheduled into admitted counts, in place: the `drafts` best slots of the batch.

    confidences: float32[slots, K], by request state. idx_mapping: int[R], the request state of each batch row.
    capacities: int32[R], draft tokens scheduled on entry, admitted on return. drafts: how many to admit, at most the
    sum of `capacities`. forced: int32[R] leading draft tokens admitted in any case, at most `capacities`.

    Ties go to the lower row, then to the lower position: a stable sort, so every rank that holds the same confidences
    admits the same slots. No host sync and no shape that depends on a value, so it can be captured; `drafts` as a
    tensor is then read at replay.
    """
    scores = torch.nan_to_num(confidences[idx_mapping], nan=0.0).cumprod(dim=1)
    positions = torch.arange(scores.shape[1], device=scores.device)
    if forced is not None:
        scores = scores.masked_fill(positions < forced[:, None], FORCED)
    scores = scores.masked_fill(positions >= capacities[:, None], -1.0)
    order = torch.sort(scores.flatten(), descending=True, stable=True).indices
    wins = torch.arange(order.shape[0], device=order.device) < drafts
    admitted = torch.empty_like(wins).scatter_(0, order, wins)
    torch.sum(admitted.view_as(scores), dim=1, dtype=capacities.dtype, out=capacities)
