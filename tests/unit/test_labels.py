"""Which requests give labels, from sampling parameters by name."""

from types import SimpleNamespace

import pytest

from acceptd.v1 import types_pb2
from vllm_client_hook import labels, rows

NEUTRAL = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 0.95,
    "top_k": 0,
    "min_p": 0.0,
    "min_tokens": 0,
    "bad_words": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "structured_outputs": None,
    "thinking_token_budget": None,
    "stop_token_ids": [1, 2],
    "seed": 3,
}


def params(**changes):
    return SimpleNamespace(**{**NEUTRAL, **changes})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"repetition_penalty": 1.2}, "PENALTIES"),
        ({"presence_penalty": -0.5}, "PENALTIES"),
        ({"frequency_penalty": 0.1}, "PENALTIES"),
        ({"bad_words": ["x"]}, "BAD_WORDS"),
        ({"logit_bias": {3: 1.0}}, "LOGIT_BIAS"),
        ({"allowed_token_ids": [1]}, "ALLOWED_TOKENS"),
        ({"min_tokens": 1}, "MIN_TOKENS"),
        ({"structured_outputs": SimpleNamespace(json="{}")}, "GRAMMAR"),
        ({"thinking_token_budget": 0}, "THINKING_BUDGET"),
        ({"trace_decode_token_ids": [1]}, "LOGITS_PROCESSOR"),
    ],
)
def test_altered_requests_are_excluded_by_the_protocols_reason(changes, name):
    expected = types_pb2.ExclusionReason.Value(f"EXCLUSION_REASON_{name}")
    assert labels.exclusion(params(**changes)) == expected


@pytest.mark.parametrize("changes", [{}, {"bad_words": []}, {"logit_bias": {}}, {"top_k": 1}, {"temperature": 0}])
def test_what_the_draft_sees_or_merely_narrows_gives_labels(changes):
    assert labels.exclusion(params(**changes)) == 0


def test_custom_processors_exclude_everybody():
    assert labels.exclusion(params(), custom_processors=True) == labels.LOGITS_PROCESSOR
    assert labels.exclusion(params(bad_words=["x"]), custom_processors=True) == labels.BAD_WORDS


@pytest.mark.parametrize(
    ("changes", "narrow"),
    [
        ({}, False),
        ({"top_k": 8}, True),
        ({"top_k": 9}, False),
        ({"top_k": -1}, False),
        ({"top_p": 0.79}, True),
        ({"top_p": 0.8}, False),
        ({"min_p": 0.11}, True),
        ({"min_p": 0.1}, False),
    ],
)
def test_narrow_cut_offs_are_flagged(changes, narrow):
    assert bool(labels.flag_byte(params(**changes)) & labels.NARROW_BIT) is narrow


def test_absent_fields_are_neutral():
    assert labels.flag_byte(SimpleNamespace()) == 0
    assert labels.flag_byte(None) == 0


def test_the_numbers_are_the_protocols():
    for module in (labels, rows):
        for name, number in types_pb2.ExclusionReason.items():
            short = name.removeprefix("EXCLUSION_REASON_")
            assert getattr(module, short, number) == number
    assert max(types_pb2.ExclusionReason.values()) < rows.NUM_REASONS
