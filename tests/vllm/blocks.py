"""Blocks of coefficients and their value by the formula, in numpy float64."""

import numpy as np
import torch

from acceptd.limits import MAX_KNOTS
from acceptd.segments import MAX_SEGMENTS
from vllm_client_hook.block import SLOPE_STRIDE, Block


def random_block(rng: np.random.Generator, num_positions: int, index: int = 1) -> Block:
    """Every segment its own line, knots and intercepts; slopes of all pieces within bounds."""
    slopes = rng.uniform(0.2, 0.8, (MAX_SEGMENTS, SLOPE_STRIDE)).astype(np.float32)
    slopes[:, 1:] = rng.uniform(-0.02, 0.1, (MAX_SEGMENTS, MAX_KNOTS))
    return Block(
        np.sort(rng.uniform(-8, 8, MAX_KNOTS)).astype(np.float32),
        slopes,
        rng.uniform(-1, 1, (MAX_SEGMENTS, num_positions)).astype(np.float32),
        index=index,
    )


def probability(block: Block, x: float, segment: int, position: int) -> float:
    """The formula of DESIGN.md."""
    slopes = block.slopes[segment].astype(np.float64)
    z = slopes[0] * x + float(block.intercepts[segment, position])
    for knot, slope in zip(block.knots.astype(np.float64), slopes[1:], strict=True):
        z += slope * max(x - knot, 0.0)
    return 1 / (1 + np.exp(-z))


def views(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.from_numpy(block.encode())
    return words, words.view(torch.float32)


def float64_feature(logits: np.ndarray, temperature: float) -> float:
    """x = log q_max - log(1 - q_max), the complement summed without the largest, in float64."""
    scaled = logits.astype(np.float64) / (temperature if temperature > 0 else 1.0)
    top = int(np.argmax(scaled))
    with np.errstate(divide="ignore"):
        x = -np.log(np.exp(np.delete(scaled, top) - scaled[top]).sum())
    return float(np.clip(x, -40, 40))
