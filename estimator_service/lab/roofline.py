"""Roofline cost models: a step takes as long as its weights take to read or its products take to compute.

    forward(n tokens) = max(2 B · P / bandwidth, 2 · P · n / FLOP/s) + overhead
    attention(R requests) = R · context · KV bytes a token / bandwidth

P counts the parameters that are multiplied (layers and output head, in bfloat16, not the embedding that is looked up).
n is padded to the next captured graph's size, up to 512 tokens. Drafting: an autoregressive head runs one pass of R
tokens a draft token, a block drafter one pass of R·K tokens. docs/simulator.md has the sources; the two efficiencies
and the overheads are assumptions, not measurements, and a profiled table (`--costs`) replaces all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from acceptd.errors import ConfigError
from estimator_service.lab.cost_model import CostModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES: Final = 2  # bfloat16

#: Mean tokens in the KV cache of a request. Raising it makes a request dearer, and a draft token cheaper beside it.
CONTEXT: Final = 1024

#: Milliseconds a step spends on launches, the sampler and the host's part that nothing hides.
STEP_OVERHEAD_MS: Final = 0.5

#: Milliseconds a draft pass spends on launches and its own sampling.
PASS_OVERHEAD_MS: Final = 0.05

#: Sizes that graphs are captured at, tokens: vLLM's default list.
CAPTURED: Final = np.array([1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)])


@dataclass(frozen=True)
class Card:
    """An accelerator: bytes/s and FLOP/s (bfloat16, dense) from its data sheet, and the shares of them reached."""

    bandwidth: float
    flops: float
    bandwidth_share: float = 0.8
    flops_share: float = 0.6

    def read_ms(self, num_bytes: float) -> float:
        """Milliseconds to read `num_bytes` from memory."""
        return 1e3 * num_bytes / (self.bandwidth * self.bandwidth_share)

    def compute_ms(self, operations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Milliseconds of floating-point `operations`."""
        return 1e3 * operations / (self.flops * self.flops_share)


@dataclass(frozen=True)
class Dense:
    """A dense decoder. Widths in elements; head: rows of the output head that are multiplied; fused: width of extra
    target states projected into a draft's input, 0 for none."""

    layers: int
    hidden: int
    queries: int
    keys: int
    feed_forward: int
    head: int
    fused: int = 0
    inputs: int = 1

    @property
    def parameters(self) -> float:
        """Multiplied parameters. `inputs` is how many hidden states a layer's projections take side by side."""
        attention = self.inputs * self.hidden * (self.queries + 2 * self.keys) + self.queries * self.hidden
        layer = attention + 3 * self.hidden * self.feed_forward
        return float(self.layers * layer + self.hidden * (self.head + self.fused))

    @property
    def kv_bytes(self) -> float:
        """Bytes of keys and values a token."""
        return float(2 * self.layers * self.keys * _BYTES)

    def forward_ms(self, card: Card, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Milliseconds of one pass, without attention over the cache and without overhead; `tokens` any shape."""
        slot = np.searchsorted(CAPTURED, tokens)
        padded = np.where(slot < len(CAPTURED), CAPTURED[np.minimum(slot, len(CAPTURED) - 1)], tokens)
        compute = card.compute_ms(2.0 * self.parameters * padded)
        return np.asarray(np.maximum(compute, card.read_ms(_BYTES * self.parameters)))


@dataclass(frozen=True)
class Preset:
    """A target with a drafter on a card. block: the drafter proposes all K tokens in one pass."""

    card: Card
    target: Dense
    drafter: Dense
    block: bool

    def cost_model(self, name: str, *, num_positions: int, max_requests: int) -> CostModel:
        """The tables for K = `num_positions` and up to `max_requests` requests."""
        requests = np.arange(max_requests + 1)
        cache = CONTEXT * requests
        draft = np.zeros((num_positions + 1, max_requests + 1))
        attention = np.array([self.card.read_ms(n * self.drafter.kv_bytes) for n in cache])
        if self.block:
            pass_ms = self.drafter.forward_ms(self.card, requests * num_positions) + attention + PASS_OVERHEAD_MS
            draft[1:] = pass_ms
        else:
            pass_ms = self.drafter.forward_ms(self.card, requests) + attention + PASS_OVERHEAD_MS
            draft[:] = np.arange(num_positions + 1)[:, None] * pass_ms
        tokens = np.arange(max_requests * (num_positions + 1) + 1)
        return CostModel(
            name,
            draft,
            np.array([self.card.read_ms(n * self.target.kv_bytes) for n in cache]),
            self.target.forward_ms(self.card, tokens) + STEP_OVERHEAD_MS,
        )


#: NVIDIA H200 SXM: 4.8 TB/s of HBM3e, 989 TFLOP/s in bfloat16 without sparsity (data sheet).
H200: Final = Card(bandwidth=4.8e12, flops=989e12)

#: The shape of Llama-3.1-8B and of Qwen3-32B, from their published configurations.
_TARGET_8B: Final = Dense(layers=32, hidden=4096, queries=4096, keys=1024, feed_forward=14336, head=128256)
_TARGET_30B: Final = Dense(layers=64, hidden=5120, queries=8192, keys=1024, feed_forward=25600, head=151936)

#: An EAGLE-3 style head: one layer of the target's widths whose projections take embedding and state side by side,
#: three target states fused into one, and an output head over 32,000 frequent tokens.
_HEAD_8B: Final = Dense(1, 4096, 4096, 1024, 14336, head=32000, fused=3 * 4096, inputs=2)
_HEAD_30B: Final = Dense(1, 5120, 8192, 1024, 25600, head=32000, fused=3 * 5120, inputs=2)

#: A block drafter in the manner of DFlash: five layers of the target's widths and the target's own output head.
_BLOCK_8B: Final = Dense(5, 4096, 4096, 1024, 14336, head=128256, fused=5 * 4096)
_BLOCK_30B: Final = Dense(5, 5120, 8192, 1024, 25600, head=151936, fused=5 * 5120)

PRESETS: Final = {
    "h200-8b-ar": Preset(H200, _TARGET_8B, _HEAD_8B, block=False),
    "h200-8b-block": Preset(H200, _TARGET_8B, _BLOCK_8B, block=True),
    "h200-30b-ar": Preset(H200, _TARGET_30B, _HEAD_30B, block=False),
    "h200-30b-block": Preset(H200, _TARGET_30B, _BLOCK_30B, block=True),
}


def roofline(name: str, *, num_positions: int, max_requests: int) -> CostModel:
    """The preset's tables. Raises ConfigError for a name that is none."""
    if name not in PRESETS:
        raise ConfigError(f"roofline {name!r} is unknown; accepted: {', '.join(PRESETS)}")
    return PRESETS[name].cost_model(name, num_positions=num_positions, max_requests=max_requests)
