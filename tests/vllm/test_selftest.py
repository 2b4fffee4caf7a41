"""A Triton that computes something else is found when the worker loads."""

from types import SimpleNamespace

import pytest
import torch

from acceptd.errors import HookError
from vllm_client_hook import estimator, kernels, reference
from vllm_client_hook.selftest import self_test


@pytest.mark.parametrize("full", [False, True])
def test_the_kernels_pass(full):
    self_test(kernels, "cpu", full=full)


def broken_feature(slots, *arguments):  # called for each of two positions
    reference.predict(slots, *arguments)
    slots.features += 0.01


def broken_confidence(slots, words, floats, logits, idx, step, confidence, temperature):
    reference.predict(slots, words, floats, logits, idx, step, confidence, temperature)
    confidence.fill_(float("nan"))


def broken_pack(slots, page, totals, *arguments):
    reference.pack(slots, page, totals, *arguments)
    totals[1] += 1


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"predict": broken_feature}, "feature differs by 0.02"),
        ({"predict": broken_confidence}, "probability differs by nan"),
        ({"pack": broken_pack}, "packed rows differ"),
    ],
)
def test_wrong_numbers_keep_the_estimator_from_being_built(parts, what, monkeypatch):
    broken = SimpleNamespace(**{"predict": reference.predict, "pack": reference.pack, **parts})
    monkeypatch.setattr(estimator, "numerics_of", lambda device: broken)
    with pytest.raises(HookError, match=what):
        estimator.AcceptanceEstimator(4, 3, torch.device("cpu"))
