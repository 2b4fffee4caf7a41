"""Which vLLM the hook acts on, against signatures recorded from the releases (tools/record_vllm_signatures.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acceptd.errors import UnsupportedVllm
from vllm_client_hook import gate

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "vllm_signatures.json").read_text())
SUPPORTED = ["0.30.0", "0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_supported_release_fits(version):
    gate.require_release(version)
    gate.require_signatures(RECORDED[version], gate.ESTIMATOR)
    gate.require_signatures(RECORDED[version], gate.BINDING)


def test_a_release_before_the_built_in_estimator_does_not():
    with pytest.raises(UnsupportedVllm, match=r"0\.29\.0 .* >= 0\.30, < 0\.34"):
        gate.require_release("0.29.0")
    with pytest.raises(UnsupportedVllm, match=r"no OnlineAcceptanceEstimator.__init__"):
        gate.require_signatures(RECORDED["0.29.0"], gate.ESTIMATOR)


@pytest.mark.parametrize("version", ["0.30.0", "0.32.0+cpu", "0.33.1rc2", "0.33.0.dev12+gabc"])
def test_releases_inside(version):
    gate.require_release(version)


@pytest.mark.parametrize("version", ["0.29.9", "0.34.0", "1.0", "0.9.2", "unknown", ""])
def test_releases_outside(version):
    with pytest.raises(UnsupportedVllm, match=r"supported: >= 0\.30, < 0\.34"):
        gate.require_release(version)


@pytest.mark.parametrize("name", [*gate.ESTIMATOR, *gate.BINDING])
def test_a_missing_method_is_named(name):
    found = dict(RECORDED["0.32.0"]) | {name: None}
    with pytest.raises(UnsupportedVllm, match=f"has no {name}"):
        gate.require_signatures(found, gate.ESTIMATOR if name in gate.ESTIMATOR else gate.BINDING)


@pytest.mark.parametrize("name", [*gate.ESTIMATOR, *gate.BINDING])
def test_another_name_in_a_signature_is_refused(name):
    found = dict(RECORDED["0.32.0"])
    found[name] = [found[name][0], "renamed", *found[name][2:]]
    with pytest.raises(UnsupportedVllm, match=name):
        gate.require_signatures(found, gate.ESTIMATOR if name in gate.ESTIMATOR else gate.BINDING)


def test_the_verdict_may_gain_arguments_but_a_prediction_may_not():
    found = dict(RECORDED["0.32.0"])
    for name in ("DraftModelSpeculator.observe_verification", "OnlineAcceptanceEstimator.step"):
        found[name] = [*found[name], "mask"]
    gate.require_signatures(found, gate.BINDING)
    gate.require_signatures({name: found[name] for name in gate.ESTIMATOR}, gate.ESTIMATOR)
    found["OnlineAcceptanceEstimator.predict"] = [*found["OnlineAcceptanceEstimator.predict"], "bias"]
    with pytest.raises(UnsupportedVllm, match="predict takes"):
        gate.require_signatures(found, gate.ESTIMATOR)


def test_parameters_of_a_live_class():
    class Owner:
        def method(self, one, *, two=2):
            return one, two

    assert gate.parameters_of(Owner, "method") == ("self", "one", "two")
    assert gate.parameters_of(Owner, "other") is None
    assert gate.parameters_of(None, "method") is None
