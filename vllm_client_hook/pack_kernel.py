"""Triton: packing of graded rows into a page, after the verdict."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from vllm_client_hook import labels, rows, slots

#: Rows the program takes at once; it loops over larger batches.
PACK_BLOCK = 128

# What the kernel reads of the layouts, as compile-time constants.
_HEADER = tl.constexpr(rows.HEADER_WORDS)
_BLOCK_ROWS = tl.constexpr(PACK_BLOCK)
_REASONS = tl.constexpr(rows.NUM_REASONS)
_REASON_MASK = tl.constexpr(labels.REASON_MASK)
_PADDED = tl.constexpr(rows.PADDED)
_PREFILL = tl.constexpr(rows.PREFILL)
_INVALID = tl.constexpr(rows.INVALID_DRAFT)
_STALE = tl.constexpr(rows.STALE_PREDICTION)
_WARMUP = tl.constexpr(rows.WARMUP)
_REJECTION = tl.constexpr(rows.REJECTION_METHOD)
_QUEUE_FULL = tl.constexpr(rows.QUEUE_FULL)
_INFINITE = tl.constexpr(rows.NON_FINITE)
_PACKED = tl.constexpr(rows.PACKED)
_VERIFIED = tl.constexpr(rows.VERIFIED)
_ACCEPTED = tl.constexpr(rows.ACCEPTED)
_EXPLORED = tl.constexpr(rows.EXPLORED)


# The number of rows changes from step to step: specialising on what follows from it would compile while serving.
@triton.jit(do_not_specialize=["num_rows", "capacity", "gate", "untrimmed"])
def _pack_kernel(
    records_ptr,
    head_ptr,
    totals_ptr,
    idx_ptr,
    sampled_ptr,
    rejected_ptr,
    drafts_ptr,
    drafts_stride,
    features_ptr,
    entropies_ptr,
    margins_ptr,
    valid_ptr,
    segment_ptr,
    version_ptr,
    flags_ptr,
    explored_ptr,
    propensity_ptr,
    num_rows,
    capacity,
    gate,
    untrimmed,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    HAS_DRAFTS: tl.constexpr,
    FULL: tl.constexpr,
):
    head = tl.load(head_ptr)
    first_head = head
    names = tl.arange(0, _REASONS)
    excluded = tl.zeros((_REASONS,), tl.int64)
    verified = tl.zeros((), tl.int64)
    passed = tl.zeros((), tl.int64)
    explored_total = tl.zeros((), tl.int64)
    for start in range(0, num_rows, _BLOCK_ROWS):
        row = start + tl.arange(0, _BLOCK_ROWS)
        inside = row < num_rows
        slot = tl.load(idx_ptr + row, mask=inside, other=-1).to(tl.int64)
        real = slot >= 0
        sampled = tl.load(sampled_ptr + row, mask=real, other=0).to(tl.int32)
        rejected = tl.load(rejected_ptr + row, mask=real, other=0).to(tl.int32)
        # The bonus (or corrected) token is no draft.
        accepted = tl.maximum(sampled - 1, 0)
        admitted = accepted + rejected
        drafted = real & (admitted > 0)

        stale = drafted & (admitted < 0)
        invalid = stale
        infinite = stale
        for k in tl.static_range(K):
            verdict = drafted & (k < admitted)
            state = tl.load(valid_ptr + slot * K + k, mask=verdict, other=1).to(tl.int32)
            stale = stale | (state == 0)
            infinite = infinite | (state == 2)
            if HAS_DRAFTS:
                token = tl.load(drafts_ptr + slot * drafts_stride + k, mask=verdict, other=0)
                invalid = invalid | (token < 0)
            tl.store(valid_ptr + slot * K + k, tl.zeros((_BLOCK_ROWS,), tl.uint8), mask=real)

        altered = tl.load(flags_ptr + slot, mask=real, other=0).to(tl.int32) & _REASON_MASK
        reason = tl.where(infinite, _INFINITE, 0)
        reason = tl.where(stale, _STALE, reason)
        reason = tl.where(invalid, _INVALID, reason)
        reason = tl.where(altered > 0, altered, reason)
        reason = tl.where(admitted > K, _REJECTION, reason)
        reason = tl.where(gate > 0, gate, reason)
        reason = tl.where(drafted, reason, 0)
        reason = tl.where(real & (sampled == 0) & (rejected == 0), _PREFILL, reason)
        reason = tl.where(inside & (slot < 0), _PADDED, reason)

        keep = drafted & (reason == 0)
        kept = keep.to(tl.int32)
        place = head + tl.cumsum(kept, axis=0) - kept
        fits = keep & (place < capacity)
        reason = tl.where(keep & (place >= capacity), _QUEUE_FULL, reason)
        head += tl.sum(fits.to(tl.int32), axis=0)

        depth = tl.load(explored_ptr + slot, mask=real, other=0).to(tl.int32)
        depth = tl.where(untrimmed > 0, admitted, tl.minimum(depth, admitted))
        propensity = tl.load(propensity_ptr + slot, mask=real, other=0.0)
        propensity = tl.where(untrimmed > 0, 1.0, propensity)
        propensity = tl.where(depth > 0, propensity, 0.0)
        tl.store(explored_ptr + slot, tl.zeros((_BLOCK_ROWS,), tl.uint8), mask=real)

        segment = tl.load(segment_ptr + slot, mask=fits, other=0).to(tl.int32)
        version = tl.load(version_ptr + slot, mask=fits, other=0)
        out = records_ptr + place.to(tl.int64) * WORDS
        tl.store(out, accepted | (admitted << 8) | (segment << 16) | (depth << 24), mask=fits)
        tl.store(out + 1, propensity.to(tl.int32, bitcast=True), mask=fits)
        tl.store(out + 2, version, mask=fits)
        for k in tl.static_range(K):
            observed = fits & (k <= accepted) & (k < admitted)
            at = slot * K + k
            x = tl.load(features_ptr + at, mask=observed, other=0.0)
            tl.store(out + _HEADER + k, x.to(tl.int32, bitcast=True), mask=fits)
            if FULL:
                entropy = tl.load(entropies_ptr + at, mask=observed, other=0.0)
                tl.store(out + _HEADER + K + k, entropy.to(tl.int32, bitcast=True), mask=fits)
                margin = tl.load(margins_ptr + at, mask=observed, other=0.0)
                tl.store(out + _HEADER + 2 * K + k, margin.to(tl.int32, bitcast=True), mask=fits)

        excluded += tl.sum((reason[None, :] == names[:, None]).to(tl.int64), axis=1)
        counted = drafted & (gate != _WARMUP)
        verified += tl.sum(tl.where(counted, admitted, 0).to(tl.int64), axis=0)
        passed += tl.sum(tl.where(counted, accepted, 0).to(tl.int64), axis=0)
        explored_total += tl.sum(tl.where(counted & (untrimmed == 0), depth, 0).to(tl.int64), axis=0)

    tl.store(head_ptr, head)
    tl.store(totals_ptr + names, tl.load(totals_ptr + names) + excluded, mask=names > 0)
    tl.store(totals_ptr + _PACKED, tl.load(totals_ptr + _PACKED) + (head - first_head).to(tl.int64))
    tl.store(totals_ptr + _VERIFIED, tl.load(totals_ptr + _VERIFIED) + verified)
    tl.store(totals_ptr + _ACCEPTED, tl.load(totals_ptr + _ACCEPTED) + passed)
    tl.store(totals_ptr + _EXPLORED, tl.load(totals_ptr + _EXPLORED) + explored_total)


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
    """Grades a step's blocks into `page` and counts the excluded ones in `totals` (int64[NUM_COUNTERS]); no sync.

    idx_mapping, num_sampled, num_rejected: int[N]. draft_tokens: int64[R, K] by slot, or None. gate: reason that
    excludes every block of this step, 0 for none. untrimmed: whether every drafted token was verified.
    """
    full = state.full
    _pack_kernel[(1,)](
        page.records,
        page.head,
        totals,
        idx_mapping,
        num_sampled,
        num_rejected,
        state.valid if draft_tokens is None else draft_tokens,
        0 if draft_tokens is None else draft_tokens.stride()[0],
        state.features,
        state.entropies if full else state.features,
        state.margins if full else state.features,
        state.valid,
        state.segment,
        state.version,
        state.flags,
        state.explored,
        state.propensity,
        idx_mapping.shape[0],
        page.capacity,
        gate,
        int(untrimmed),
        K=state.num_positions,
        WORDS=page.words,
        HAS_DRAFTS=draft_tokens is not None,
        FULL=full,
        num_warps=4,
    )
