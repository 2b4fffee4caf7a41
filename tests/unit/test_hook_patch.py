"""Pieces of the patch that need neither vLLM nor torch; whole engines are in tests/vllm."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from acceptd.errors import UnsupportedVllm
from vllm_client_hook import patch
from vllm_client_hook.admission import admitting
from vllm_client_hook.config import HookSettings
from vllm_client_hook.engine_pair import pair_key
from vllm_client_hook.methods import after_method, before_method


class Estimator:
    def __init__(self, error: Exception | None = None) -> None:
        self.frozen = ""
        self.admitted = []
        self._error = error

    def admit(self, slot, params, *, custom_processors=False):
        if self._error is not None:
            raise self._error
        self.admitted.append((slot, params, custom_processors))


def test_admissions_of_every_release_are_noted():
    calls = []

    def newer(req_idx, sampling_params):  # 0.31 and later
        calls.append((req_idx, sampling_params))

    def older(req_idx, prompt_len, sampling_params):  # 0.30
        calls.append((req_idx, prompt_len, sampling_params))

    estimator = Estimator()
    admitting(newer, estimator, custom=False)(3, "params")
    admitting(older, estimator, custom=True)(4, 17, sampling_params="more")
    assert calls == [(3, "params"), (4, 17, "more")]
    assert estimator.admitted == [(3, "params", False), (4, "more", True)]


def test_a_sampler_with_other_arguments_is_not_bound():
    with pytest.raises(UnsupportedVllm, match=r"takes requests as \(request\)"):
        admitting(lambda request: None, Estimator(), custom=False)


def test_an_admission_that_cannot_be_noted_stops_reports_and_nothing_else(caplog):
    estimator = Estimator(ValueError("odd parameters"))
    noted = admitting(lambda req_idx, sampling_params: req_idx * 2, estimator, custom=False)
    assert [noted(i, None) for i in range(3)] == [0, 2, 4]
    assert estimator.frozen == "admission: ValueError: odd parameters"
    assert len(caplog.records) == 1


def engine(target="org/Target-8B", draft="org/draft", **changes):
    def model(name):
        return SimpleNamespace(
            model=name,
            revision=None,
            quantization=None,
            hf_config=SimpleNamespace(to_dict=lambda: {"layers": 2, "_name_or_path": name}),
        )

    speculative = SimpleNamespace(
        draft_model_config=model(draft),
        num_speculative_tokens=4,
        method="eagle",
        draft_sample_method="probabilistic",
    )
    for name, value in changes.items():
        setattr(speculative, name, value)
    return SimpleNamespace(model_config=model(target), speculative_config=speculative)


def test_the_pair_key_names_what_differs():
    key = pair_key(engine(), HookSettings())
    key.validate()
    assert (key.target, key.draft, key.method, key.num_speculative_tokens) == ("org/Target-8B", "org/draft", "eagle", 4)
    # The same models from another directory are the same pair.
    assert pair_key(engine("/a/Target-8B/", "/a/draft"), HookSettings()) == pair_key(
        engine("/mnt/b/Target-8B", "./draft"), HookSettings()
    )
    for changed in ({"num_speculative_tokens": 5}, {"method": "mtp"}, {"draft_sample_method": "greedy"}):
        assert pair_key(engine(**changed), HookSettings()) != key
    renamed = pair_key(engine(), HookSettings(target_name="t", draft_name="d"))
    assert (renamed.target, renamed.draft) == ("t", "d")


def test_revision_and_quantisation_are_part_of_it():
    plain = engine()
    revised, quantised = engine(), engine()
    revised.model_config.revision = "abc"
    quantised.model_config.quantization = "fp8"
    keys = {pair_key(one, HookSettings()).id for one in (plain, revised, quantised)}
    assert len(keys) == 3
    assert pair_key(revised, HookSettings()).target_revision == "abc"
    assert pair_key(quantised, HookSettings()) == replace(pair_key(plain, HookSettings()), quantization="fp8+")


def test_what_follows_a_method_can_neither_fail_nor_change_it(caplog):
    seen = []

    class Worker:
        def wake_up(self, tags=None):
            return f"woke {tags}"

    def broken(self, *args, **kwargs):
        raise RuntimeError("ours")

    after_method(Worker, "wake_up", lambda self, tags=None, **_: seen.append(tags))
    before_method(Worker, "wake_up", broken)
    after_method(Worker, "not_in_this_release", broken)
    assert Worker().wake_up(tags=["weights"]) == "woke ['weights']"
    assert seen == [["weights"]]
    assert "vLLM goes on" in caplog.text


@pytest.mark.parametrize(("tags", "wakes"), [(None, True), (["weights"], True), (["kv_cache"], False)])
def test_only_waking_the_weights_reseeds(tags, wakes):
    assert patch._wakes_weights(tags) is wakes
