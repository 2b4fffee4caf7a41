"""The kernels' numbers in torch: for machines without Triton, and what the tests hold the kernels against.

Like the kernels, nothing here waits for the device. Signatures as in `vllm_client_hook.kernels`.
"""

from __future__ import annotations

from typing import Any

import torch

from acceptd.limits import MAX_KNOTS, MAX_LOG_ODDS
from acceptd.segments import MAX_SEGMENTS, TEMPERATURE_BOUNDS, Segment
from vllm_client_hook import block as layout
from vllm_client_hook import labels, rows, slots

_LOW, _MID = TEMPERATURE_BOUNDS[1], TEMPERATURE_BOUNDS[2]


def predict(
    state: slots.Slots,
    words: Any,
    floats: Any,
    logits: Any,
    idx_mapping: Any,
    draft_step: Any,
    confidence_probs: Any,
    temperature: Any,
) -> None:
    """Scores one draft step."""
    count, positions = logits.shape[0], state.num_positions
    if count == 0:
        return
    padded = idx_mapping < 0
    slot = torch.where(padded, state.max_num_reqs, idx_mapping).long()
    sampled_at = temperature[torch.where(padded, 0, idx_mapping).long()].float()
    x, entropy, margin, bad = _features(logits, torch.where(sampled_at > 0, sampled_at, 1.0), full=state.full)

    segment = torch.where(sampled_at <= _LOW, 1, torch.where(sampled_at <= _MID, 2, 3))
    segment = torch.where(state.flags[slot] >= labels.NARROW_BIT, int(Segment.NARROW), segment)
    segment = torch.where(sampled_at > 0, segment, 0)
    row = torch.arange(count, device=logits.device)
    step = draft_step.long().expand(count)
    place = row // positions if draft_step.dim() > 0 else row

    knots = floats[layout.KNOTS : layout.SLOPES]
    slopes = floats[layout.SLOPES : layout.INTERCEPTS].view(MAX_SEGMENTS, 1 + MAX_KNOTS)[segment]
    intercepts = floats[layout.INTERCEPTS :].view(MAX_SEGMENTS, positions)
    bends = (slopes[:, 1:] * (x[:, None] - knots).clamp(min=0)).sum(dim=1)
    probability = torch.sigmoid(slopes[:, 0] * x + bends + intercepts[segment, step])

    state.features[slot, step] = x
    state.predictions[slot, step] = probability
    if state.full:
        state.entropies[slot, step] = entropy
        state.margins[slot, step] = margin
    state.valid[slot, step] = torch.where(bad, slots.NOT_FINITE, slots.PREDICTED).to(torch.uint8)
    state.segment[slot] = segment.to(torch.uint8)
    state.version[slot] = words[layout.INDEX].expand(count)
    confidence_probs[place, step] = torch.where(padded, confidence_probs[place, step], probability)


def _features(logits: Any, temperature: Any, *, full: bool) -> tuple[Any, Any, Any, Any]:
    """x, entropy, margin (nats; the latter two None unless full) and whether the row is not finite, each [N]."""
    raw = logits.float()
    values = torch.where(raw.isnan(), -torch.inf, raw)
    top, at = values.max(dim=1, keepdim=True)
    scaled = torch.where(top == -torch.inf, -torch.inf, (values - top) / temperature[:, None])
    weight = scaled.exp().scatter(1, at, 0.0)
    complement = weight.sum(dim=1)
    bad = raw.isnan().any(dim=1) | complement.isnan() | (top[:, 0] == -torch.inf)
    some = complement > 0
    x = torch.where(some, -torch.where(some, complement, 1.0).log(), MAX_LOG_ODDS)
    x = torch.where(bad, -MAX_LOG_ODDS, x.clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS))
    if not full:
        return x, None, None, bad
    mean = torch.where(weight > 0, weight * scaled, 0.0).sum(dim=1) / (1 + complement)
    entropy = torch.where(bad, 0.0, (1 + complement).log() - mean)
    second = scaled.scatter(1, at, -torch.inf).max(dim=1).values
    return x, entropy, torch.where(bad, 0.0, (-second).clamp(max=MAX_LOG_ODDS)), bad


def pack(
    state: slots.Slots,
    page: slots.Page,
    totals: Any,
    idx_mapping: Any,
    num_sampled: Any,
    num_rejected: Any,
    draft_tokens: Any,
    *,
    gate: int = 0,
    untrimmed: bool = False,
) -> None:
    """Grades a step's blocks into `page` and counts the excluded ones in `totals`."""
    count, positions = idx_mapping.shape[0], state.num_positions
    if count == 0:
        return
    real = idx_mapping >= 0
    slot = torch.where(real, idx_mapping, state.max_num_reqs).long()
    sampled = torch.where(real, num_sampled[:count], 0).int()
    rejected = torch.where(real, num_rejected[:count], 0).int()
    accepted = (sampled - 1).clamp(min=0)
    admitted = accepted + rejected
    drafted = admitted > 0
    position = torch.arange(positions, device=slot.device)
    verdict = position < admitted[:, None]
    valid = state.valid[slot]
    reason = torch.zeros_like(sampled)

    def exclude(where: Any, code: Any) -> None:
        nonlocal reason
        reason = torch.where(where, code, reason)

    exclude((verdict & (valid == slots.NOT_FINITE)).any(dim=1), rows.NON_FINITE)
    exclude((verdict & (valid == slots.NOT_PREDICTED)).any(dim=1), rows.STALE_PREDICTION)
    if draft_tokens is not None:
        tokens = draft_tokens[torch.where(real, idx_mapping, 0).long()]
        exclude((verdict & (tokens < 0)).any(dim=1), rows.INVALID_DRAFT)
    altered = (state.flags[slot] & labels.REASON_MASK).int()
    exclude(altered > 0, altered)
    exclude(admitted > positions, rows.REJECTION_METHOD)
    if gate:
        reason = torch.full_like(reason, gate)
    reason = torch.where(drafted, reason, 0)
    exclude(real & (sampled == 0) & (rejected == 0), rows.PREFILL)
    exclude(~real, rows.PADDED)

    keep = drafted & (reason == 0)
    place = page.head + keep.cumsum(0) - keep.long()
    fits = keep & (place < page.capacity)
    exclude(keep & ~fits, rows.QUEUE_FULL)
    place = torch.where(fits, place, page.capacity)

    depth = admitted if untrimmed else torch.minimum(state.explored[slot].int(), admitted)
    propensity = torch.ones_like(state.propensity[slot]) if untrimmed else state.propensity[slot]
    propensity = torch.where(depth > 0, propensity, 0.0)
    observed = (position <= accepted[:, None]) & verdict
    parts = [
        accepted | (admitted << 8) | (state.segment[slot].int() << 16) | (depth << 24),
        propensity.view(torch.int32),
        state.version[slot],
    ]
    planes = [state.features, state.entropies, state.margins] if state.full else [state.features]
    columns = [torch.where(observed, plane[slot], 0.0).view(torch.int32) for plane in planes]
    page.records[place] = torch.cat([torch.stack(parts, dim=1), *columns], dim=1)
    page.head += fits.sum().int()

    state.valid[slot] = slots.NOT_PREDICTED
    state.explored[slot] = 0
    names = torch.arange(1, rows.NUM_REASONS, device=slot.device)
    totals[1 : rows.NUM_REASONS] += (reason[:, None] == names).sum(dim=0)
    totals[rows.PACKED] += fits.sum()
    if gate != rows.WARMUP:
        totals[rows.VERIFIED] += admitted.sum()
        totals[rows.ACCEPTED] += accepted.sum()
        totals[rows.EXPLORED] += 0 if untrimmed else torch.where(drafted, depth, 0).sum()
