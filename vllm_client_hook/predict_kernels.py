"""Triton: feature and prediction of one draft step, inside the draft graph.

The vocabulary is read once. Each program reduces a block of one row's logits to (maximum, sum of exponentials of the
others); a second kernel merges the blocks. The complement of the largest probability is therefore summed from positive
terms without the largest one; nothing is subtracted from 1, and x keeps its precision where q_max is close to 1.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from acceptd.limits import MAX_KNOTS, MAX_LOG_ODDS
from acceptd.segments import TEMPERATURE_BOUNDS, Segment
from vllm_client_hook import block as layout
from vllm_client_hook import labels, slots

#: Logits a program reads. Larger: fewer partial results to merge; smaller: more programs for small batches. At 4096 a
#: row of 128k gives 32 programs and each thread keeps 32 values in registers.
VOCAB_BLOCK = 4096

# What the kernels read of the layouts, as compile-time constants.
_LIMIT = tl.constexpr(MAX_LOG_ODDS)
_LOW = tl.constexpr(TEMPERATURE_BOUNDS[1])
_MID = tl.constexpr(TEMPERATURE_BOUNDS[2])
_NARROW = tl.constexpr(int(Segment.NARROW))
_NARROW_BIT = tl.constexpr(labels.NARROW_BIT)
_INDEX = tl.constexpr(layout.INDEX)
_KNOTS = tl.constexpr(layout.KNOTS)
_SLOPES = tl.constexpr(layout.SLOPES)
_SLOPE_STRIDE = tl.constexpr(layout.SLOPE_STRIDE)
_INTERCEPTS = tl.constexpr(layout.INTERCEPTS)
_MAX_KNOTS = tl.constexpr(MAX_KNOTS)
_PREDICTED = tl.constexpr(slots.PREDICTED)
_NOT_FINITE = tl.constexpr(slots.NOT_FINITE)


# The number of rows changes from step to step: specialising on what follows from it would compile while serving.
@triton.jit(do_not_specialize=["plane_stride"])
def _reduce_kernel(
    partial_ptr,
    plane_stride,
    logits_ptr,
    logits_stride,
    idx_ptr,
    idx_stride,
    temperature_ptr,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(idx_ptr + row * idx_stride).to(tl.int64)
    if slot >= 0:
        temperature = tl.load(temperature_ptr + slot).to(tl.float32)
        temperature = tl.where(temperature > 0.0, temperature, 1.0)
        lane = tl.arange(0, BLOCK)
        offset = block * BLOCK + lane
        raw = tl.load(logits_ptr + row * logits_stride + offset, mask=offset < vocab_size, other=float("-inf"))
        raw = raw.to(tl.float32)
        number = raw == raw
        logits = tl.where(number, raw, float("-inf"))
        top, at = tl.max(logits, axis=0, return_indices=True)
        # The difference is taken before the division: its error is relative, however large logits / T are.
        scaled = tl.where(top == float("-inf"), float("-inf"), (logits - top) / temperature)
        others = lane != at
        weight = tl.where(others, tl.exp(scaled), 0.0)
        rest = tl.sum(weight, axis=0)
        missing = tl.sum(tl.where(number, 0, 1), axis=0)
        rest = tl.where(missing > 0, float("nan"), rest)
        out = partial_ptr + row * num_blocks + block
        tl.store(out, top)
        tl.store(out + plane_stride, rest)
        if FULL:
            tl.store(out + 2 * plane_stride, tl.sum(tl.where(weight > 0.0, weight * scaled, 0.0), axis=0))
            tl.store(out + 3 * plane_stride, tl.max(tl.where(others, scaled, float("-inf")), axis=0))


@triton.jit(do_not_specialize=["plane_stride"])
def _predict_kernel(
    features_ptr,
    predictions_ptr,
    entropies_ptr,
    margins_ptr,
    valid_ptr,
    segment_ptr,
    version_ptr,
    flags_ptr,
    words_ptr,
    floats_ptr,
    confidence_ptr,
    confidence_stride,
    partial_ptr,
    plane_stride,
    idx_ptr,
    idx_stride,
    step_ptr,
    step_stride,
    temperature_ptr,
    num_blocks,
    PER_ROW_STEP: tl.constexpr,
    FULL: tl.constexpr,
    K: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + row * idx_stride).to(tl.int64)
    if slot >= 0:
        # A step for each row: the block was drafted at once and a request owns K consecutive rows.
        if PER_ROW_STEP:
            step = tl.load(step_ptr + row * step_stride).to(tl.int64)
            place = row // K
        else:
            step = tl.load(step_ptr).to(tl.int64)
            place = row
        sampled_at = tl.load(temperature_ptr + slot).to(tl.float32)
        temperature = tl.where(sampled_at > 0.0, sampled_at, 1.0)

        lane = tl.arange(0, LANES)
        inside = lane < num_blocks
        base = partial_ptr + row * num_blocks + lane
        tops = tl.load(base, mask=inside, other=float("-inf"))
        rests = tl.load(base + plane_stride, mask=inside, other=0.0)
        top, winner = tl.max(tops, axis=0, return_indices=True)
        shift = tl.where(tops == float("-inf"), float("-inf"), (tops - top) / temperature)
        scale = tl.exp(shift)
        beaten = lane != winner
        complement = tl.sum(tl.where(beaten, scale * (rests + 1.0), rests), axis=0)

        bad = (complement != complement) | (top == float("-inf"))
        x = tl.where(complement > 0.0, -tl.log(tl.where(complement > 0.0, complement, 1.0)), _LIMIT)
        x = tl.where(bad, -_LIMIT, tl.minimum(tl.maximum(x, -_LIMIT), _LIMIT))

        narrow = tl.load(flags_ptr + slot).to(tl.int32) >= _NARROW_BIT
        segment = tl.where(sampled_at <= _LOW, 1, tl.where(sampled_at <= _MID, 2, 3))
        segment = tl.where(narrow, _NARROW, segment)
        segment = tl.where(sampled_at > 0.0, segment, 0)

        slopes = floats_ptr + _SLOPES + segment * _SLOPE_STRIDE
        knot = tl.arange(0, _MAX_KNOTS)
        bends = tl.load(slopes + 1 + knot) * tl.maximum(x - tl.load(floats_ptr + _KNOTS + knot), 0.0)
        log_odds = tl.load(slopes) * x + tl.sum(bends, axis=0)
        log_odds += tl.load(floats_ptr + _INTERCEPTS + segment * K + step)
        probability = tl.sigmoid(log_odds)

        at = slot * K + step
        tl.store(features_ptr + at, x)
        tl.store(predictions_ptr + at, probability)
        tl.store(valid_ptr + at, tl.where(bad, _NOT_FINITE, _PREDICTED).to(tl.uint8))
        tl.store(segment_ptr + slot, segment.to(tl.uint8))
        tl.store(version_ptr + slot, tl.load(words_ptr + _INDEX))
        tl.store(confidence_ptr + place * confidence_stride + step, probability)
        if FULL:
            weighted = tl.load(base + 2 * plane_stride, mask=inside, other=0.0)
            seconds = tl.load(base + 3 * plane_stride, mask=inside, other=float("-inf"))
            moved = tl.where(scale > 0.0, scale * (weighted + tl.where(scale > 0.0, shift, 0.0) * (rests + 1.0)), 0.0)
            mean = tl.sum(tl.where(beaten, moved, weighted), axis=0) / (1.0 + complement)
            entropy = tl.where(bad, 0.0, tl.log(1.0 + complement) - mean)
            second = tl.max(tl.where(beaten, shift, seconds), axis=0)
            margin = tl.where(bad, 0.0, tl.minimum(-second, _LIMIT))
            tl.store(entropies_ptr + at, entropy)
            tl.store(margins_ptr + at, margin)


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
    """Scores one draft step; graph-capturable.

    words, floats: the block in force (int32 and float32 views of the same memory). logits: [N, V], float16, bfloat16
    or float32, before temperature. idx_mapping: int[N], -1 for padding. draft_step: int scalar tensor, or int[N] with K
    consecutive rows a request. confidence_probs: float32[≥ requests, K], written by batch position. temperature:
    float32 by slot; 0 leaves the logits as they are.
    """
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    num_blocks = triton.cdiv(vocab_size, VOCAB_BLOCK)
    full = state.full
    partial = torch.empty((4 if full else 2, num_rows, num_blocks), dtype=torch.float32, device=logits.device)
    _reduce_kernel[(num_rows, num_blocks)](
        partial,
        partial.stride(0),
        logits,
        logits.stride(0),
        idx_mapping,
        idx_mapping.stride(0),
        temperature,
        vocab_size,
        num_blocks,
        BLOCK=VOCAB_BLOCK,
        FULL=full,
    )
    per_row = draft_step.dim() > 0
    _predict_kernel[(num_rows,)](
        state.features,
        state.predictions,
        state.entropies if full else state.features,
        state.margins if full else state.features,
        state.valid,
        state.segment,
        state.version,
        state.flags,
        words,
        floats,
        confidence_probs,
        confidence_probs.stride(0),
        partial,
        partial.stride(0),
        idx_mapping,
        idx_mapping.stride(0),
        draft_step,
        draft_step.stride(0) if per_row else 0,
        temperature,
        num_blocks,
        PER_ROW_STEP=per_row,
        FULL=full,
        K=state.num_positions,
        LANES=triton.next_power_of_2(num_blocks),
        num_warps=1,
    )
