"""The loss to trimming on the device: twin of `trimming_cost.lost`, from verdicts and predictions that stay there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_client_hook import budget_device, rows
from vllm_client_hook.slots import PREDICTED

if TYPE_CHECKING:
    from vllm_client_hook.slots import Slots
    from vllm_client_hook.trimming_cost import Judgement


def judge(
    state: Slots, totals: Any, idx_mapping: Any, num_sampled: Any, num_rejected: Any, *, judged: Judgement
) -> None:
    """Adds the loss of the judged blocks and what they stand for to `totals`, before the step is packed; never waits.

    totals: int64[NUM_COUNTERS]. idx_mapping, num_sampled, num_rejected: int[N], as for packing. Blocks that were not
    verified whole after all, or without predictions of their own, are left out.
    """
    where, scheduled, chosen = state.upload(judged.blocks)
    kept = scheduled.int()
    budget_device.split(state.predictions, where, kept, judged.alone)
    # By request-state slot, since verdicts come in another order.
    table = torch.zeros((3, state.max_num_reqs + 1), dtype=torch.int64, device=where.device)
    table[:, where] = torch.stack([scheduled, kept.long(), chosen])
    count = idx_mapping.shape[0]
    real = idx_mapping >= 0
    slot = torch.where(real, idx_mapping, state.max_num_reqs).long()
    scheduled, kept, chosen = table[:, slot]
    accepted = torch.where(real, num_sampled[:count] - 1, 0).clamp(min=0)
    admitted = accepted + torch.where(real, num_rejected[:count], 0)
    position = torch.arange(state.num_positions, device=slot.device)
    predicted = ((position >= admitted[:, None]) | (state.valid[slot] == PREDICTED)).all(dim=1)
    counted = chosen * (real & predicted & (admitted == scheduled))
    totals[rows.JUDGED_LOST] += (counted * (accepted - kept).clamp(min=0)).sum() * judged.weight
    totals[rows.JUDGED_BLOCKS] += counted.sum() * judged.weight
