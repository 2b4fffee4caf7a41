"""Which requests give labels at all, from their sampling parameters.

A request whose target distribution is altered beyond what the draft sees (penalties, bad words, a grammar, …) is
accepted less for reasons x knows nothing of: none of its rows is learned from. Read by name, so that a release that
lacks or adds a field needs no change here.
"""

from __future__ import annotations

from typing import Any, Final

from acceptd.segments import is_narrow

#: ExclusionReason numbers of types.proto.
PENALTIES: Final = 7
BAD_WORDS: Final = 8
LOGIT_BIAS: Final = 9
ALLOWED_TOKENS: Final = 10
MIN_TOKENS: Final = 11
GRAMMAR: Final = 12
THINKING_BUDGET: Final = 13
LOGITS_PROCESSOR: Final = 14

#: Bit of a slot's flag byte that marks a narrow target cut-off; the bits below hold the exclusion reason.
NARROW_BIT: Final = 0x80
REASON_MASK: Final = 0x7F

_NEUTRAL: Final = (("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0))
# A field that is set to anything but None or an empty collection.
_PRESENT: Final = (
    ("bad_words", BAD_WORDS),
    ("logit_bias", LOGIT_BIAS),
    ("allowed_token_ids", ALLOWED_TOKENS),
    ("structured_outputs", GRAMMAR),
    ("trace_decode_token_ids", LOGITS_PROCESSOR),
)


def exclusion(params: Any, *, custom_processors: bool = False) -> int:
    """ExclusionReason of a request with these sampling parameters; 0: its rows give labels.

    custom_processors: the engine runs logits processors that are not vLLM's own; whom they touch is unknown, so nobody
    is learned from.
    """
    for name, neutral in _NEUTRAL:
        if getattr(params, name, neutral) not in (None, neutral):
            return PENALTIES
    for name, reason in _PRESENT:
        value = getattr(params, name, None)
        if value is not None and not (hasattr(value, "__len__") and len(value) == 0):
            return reason
    if (getattr(params, "min_tokens", 0) or 0) > 0:
        return MIN_TOKENS
    # A budget of 0 is one: it ends the thinking at once.
    if getattr(params, "thinking_token_budget", None) is not None:
        return THINKING_BUDGET
    return LOGITS_PROCESSOR if custom_processors else 0


def flag_byte(params: Any, *, custom_processors: bool = False) -> int:
    """The slot's flag byte: exclusion reason, and NARROW_BIT where the target's cut-offs are narrow."""
    narrow = is_narrow(
        top_k=getattr(params, "top_k", 0) or 0,
        top_p=_or(getattr(params, "top_p", None), 1.0),
        min_p=_or(getattr(params, "min_p", None), 0.0),
    )
    return exclusion(params, custom_processors=custom_processors) | (NARROW_BIT if narrow else 0)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
