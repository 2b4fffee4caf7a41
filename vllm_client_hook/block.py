"""The fixed-size block of 32-bit words that rank 0 broadcasts and every rank's kernels read in place.

Words (int32; floats by their bits), J = MAX_KNOTS, S = MAX_SEGMENTS, K positions:

    0 STATUS     bit 0: holds coefficients; bit 1: fitted by the worker itself (the service is lost)
    1 INDEX      counts the adoptions proposed; rows carry it as the version they were predicted with
    2-5          version: epoch low, high, counter low, high
    6 GENERATION weights generation
    7 MODE       acceptd.modes.Mode
    8 EXPLORATION float32, share of drafted slots
    9 K          positions
    10 NONCE low, 11 NONCE high: the push it answers; 0: none
    12-15        spare, 0
    16           knots[J], slopes[S, 1 + J], intercepts[S, K]

Unused knots lie at 0 with slope 0; a segment without coefficients of its own holds the line. So the layout, and with
it what a captured graph reads, depends on K alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from acceptd.errors import IncompatiblePeer, WireError
from acceptd.limits import MAX_INTERCEPT, MAX_KNOTS, MAX_LOG_ODDS, MAX_SLOPE
from acceptd.modes import Mode
from acceptd.segments import MAX_SEGMENTS
from acceptd.types import Version

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from acceptd.types import Coefficients

    Words = NDArray[np.int32]
    Floats = NDArray[np.float32]

STATUS: Final = 0
INDEX: Final = 1
VERSION: Final = 2
GENERATION: Final = 6
MODE: Final = 7
EXPLORATION: Final = 8
POSITIONS: Final = 9
NONCE: Final = 10
HEADER_WORDS: Final = 16

HAS_COEFFICIENTS: Final = 1
LOCAL: Final = 2

KNOTS: Final = HEADER_WORDS
SLOPES: Final = KNOTS + MAX_KNOTS
SLOPE_STRIDE: Final = 1 + MAX_KNOTS
INTERCEPTS: Final = SLOPES + MAX_SEGMENTS * SLOPE_STRIDE

#: float32 rounding of 1 + MAX_KNOTS summed slopes.
_SLACK: Final = 1e-5


def block_words(num_positions: int) -> int:
    """Words of the block of a pair with K = `num_positions`."""
    return INTERCEPTS + MAX_SEGMENTS * num_positions


#: Version of coefficients that no service sent: the prior, or the worker's own round.
OWN: Final = Version()

#: Segment that requests never have while the protocol knows fewer: its place holds the line over all segments.
LINE_SEGMENT: Final = MAX_SEGMENTS - 1


@dataclass(frozen=True)
class Block:
    """What a block says. knots: float32[J]; slopes: float32[S, 1 + J]; intercepts: float32[S, K], nats.

    version OWN stands for the worker's own coefficients.
    """

    knots: Floats
    slopes: Floats
    intercepts: Floats
    index: int = 0
    version: Version = OWN
    local: bool = False
    generation: int = 0
    mode: Mode = Mode.TRIM
    exploration_rate: float = 0.0
    nonce: int = 0

    @property
    def num_positions(self) -> int:
        """K."""
        return int(self.intercepts.shape[1])

    def log_odds(self, x: Floats, segments: NDArray[np.uint8]) -> Floats:
        """float32[n, K]: what the kernels compute for x[n, K] (nats) of rows in these segments[n]."""
        slopes = self.slopes[segments]
        value = slopes[:, :1] * x + self.intercepts[segments]
        for j in np.flatnonzero(self.slopes[:, 1:].any(axis=0)):
            value += slopes[:, 1 + j, None] * np.maximum(x - self.knots[j], 0)
        return np.asarray(value, np.float32)

    def moved(self, slope: float, intercepts: Floats) -> Block:
        """The same shape with `slope` added to every segment's first slope and intercepts[K] to its intercepts."""
        slopes = self.slopes.copy()
        slopes[:, 0] += np.float32(slope)
        bounded = np.clip(self.intercepts + intercepts, -MAX_INTERCEPT, MAX_INTERCEPT).astype(np.float32)
        return replace(self, slopes=slopes, intercepts=bounded)

    def encode(self) -> Words:
        """int32[block_words(K)]."""
        words = np.zeros(block_words(self.num_positions), np.int32)
        words[STATUS] = HAS_COEFFICIENTS | (LOCAL if self.local else 0)
        words[INDEX] = self.index
        _put64(words, VERSION, self.version.epoch)
        _put64(words, VERSION + 2, self.version.counter)
        words[GENERATION] = self.generation
        words[MODE] = self.mode
        words[POSITIONS] = self.num_positions
        _put64(words, NONCE, self.nonce)
        floats = words.view(np.float32)
        floats[EXPLORATION] = self.exploration_rate
        floats[KNOTS:SLOPES] = self.knots
        floats[SLOPES:INTERCEPTS] = self.slopes.ravel()
        floats[INTERCEPTS:] = self.intercepts.ravel()
        return words


def from_coefficients(value: Coefficients, *, index: int = 0, generation: int = 0) -> Block:
    """The block of checked coefficients; absent segments hold the line, absent knots slope 0."""
    knots = np.zeros(MAX_KNOTS, np.float32)
    knots[: len(value.knots)] = value.knots
    slopes = np.zeros((MAX_SEGMENTS, SLOPE_STRIDE), np.float32)
    intercepts = np.zeros((MAX_SEGMENTS, value.num_positions), np.float32)
    for s in range(MAX_SEGMENTS):
        part = value.of(s)
        slopes[s, : len(part.slopes)] = part.slopes
        intercepts[s] = part.intercepts
    return Block(knots, slopes, intercepts, index=index, version=value.version, generation=generation)


def decode(words: Words, num_positions: int) -> Block:
    """The block in `words` (int32[block_words(K)]), checked again: finite, bounded, of K positions.

    Raises IncompatiblePeer (K) or WireError (field and index of the first bad value).
    """
    if len(words) != block_words(num_positions) or words[POSITIONS] != num_positions:
        raise IncompatiblePeer(f"block has K = {words[POSITIONS]}; accepted: {num_positions}")
    floats = words.view(np.float32)
    rate = float(floats[EXPLORATION])
    if not 0.0 <= rate <= 1.0:
        raise WireError(f"exploration_rate is {rate}; accepted: 0 to 1", field="exploration_rate")
    if int(words[MODE]) not in _MODES:
        raise WireError(f"mode is {words[MODE]}; accepted: {_MODES}", field="mode")
    block = Block(
        floats[KNOTS:SLOPES].copy(),
        floats[SLOPES:INTERCEPTS].reshape(MAX_SEGMENTS, SLOPE_STRIDE).copy(),
        floats[INTERCEPTS:].reshape(MAX_SEGMENTS, num_positions).copy(),
        index=int(words[INDEX]),
        version=Version(_get64(words, VERSION), _get64(words, VERSION + 2)),
        local=bool(words[STATUS] & LOCAL),
        generation=int(words[GENERATION]),
        mode=Mode(int(words[MODE])),
        exploration_rate=rate,
        nonce=_get64(words, NONCE),
    )
    _within(block.knots, MAX_LOG_ODDS, "knots")
    # Each prefix sum is the slope of one linear piece.
    pieces = np.cumsum(block.slopes, axis=1)
    _within(pieces - MAX_SLOPE / 2, MAX_SLOPE / 2 + _SLACK, "slopes")
    _within(block.intercepts, MAX_INTERCEPT, "intercepts")
    return block


def nonce_of(words: Words) -> int:
    """The push that a block answers, whatever else is wrong with it; 0: none."""
    return _get64(words, NONCE)


_MODES: Final = tuple(int(mode) for mode in Mode)


def _within(values: Floats, bound: float, field: str) -> None:
    bad = ~(np.abs(values) <= bound)  # true for NaN, too
    if bad.any():
        index = int(np.argmax(bad))
        raise WireError(f"{field}[{index}] is out of bounds or not finite", field=field, index=index)


def _put64(words: Words, at: int, value: int) -> None:
    words[at : at + 2] = np.array([value], np.uint64).view(np.int32)


def _get64(words: Words, at: int) -> int:
    return int(np.ascontiguousarray(words[at : at + 2]).view(np.uint64)[0])
