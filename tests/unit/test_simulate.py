"""The simulator: schedules, policies and cost models against counts by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acceptd.errors import ConfigError
from estimator_service.lab.blocks import Blocks
from estimator_service.lab.cost_model import CostModel, load_cost_model
from estimator_service.lab.estimators.attached import Attached
from estimator_service.lab.policies import Adaptive, fixed, threshold
from estimator_service.lab.roofline import H200, PRESETS, STEP_OVERHEAD_MS, roofline
from estimator_service.lab.schedule import schedule
from estimator_service.lab.simulate import Comparison, Simulation
from estimator_service.lab.trimmed import trimmed
from vllm_client_hook.exploration import Exploration

K = 3


def blocks(lengths: list[int], rng: np.random.Generator | None = None) -> Blocks:
    """Requests of the given numbers of blocks, interleaved step by step as a recorder sees them."""
    order = [(step, request) for request, n in enumerate(lengths) for step in range(n)]
    order.sort()
    count = len(order)
    rng = rng or np.random.default_rng(0)
    probability = rng.beta(3, 2, (count, K)).astype(np.float32)
    accepted = np.minimum.accumulate(rng.random((count, K)) < probability, axis=1).sum(axis=1)
    return Blocks(
        accepted.astype(np.uint8),
        np.full(count, K, np.uint8),
        {"logit_qmax": np.log(probability / (1 - probability)), "oracle": probability},
        np.zeros(count, np.int32),
        np.ones(count, np.float32),
        np.full(count, 3, np.uint8),
        step=np.array([s for s, _ in order]),
        request=np.array([r for _, r in order]),
    )


def costs(requests: int, per_token: float = 1.0) -> CostModel:
    draft = np.outer(np.arange(K + 1), np.full(requests + 1, 0.5))
    return CostModel("test", draft, np.zeros(requests + 1), 2.0 + per_token * np.arange(requests * (K + 1) + 1))


class Recording(Attached):
    """The oracle, and what it was given to learn from."""

    def __init__(self) -> None:
        super().__init__("oracle")
        self.learned: list[Any] = []

    def learn(self, part: Blocks) -> None:
        self.learned.append(part)


def test_each_slot_plays_whole_requests_in_order() -> None:
    source = blocks([3, 2, 4, 2])
    plan = schedule(source, 2, 100)
    played = source.request[plan.rows]  # type: ignore[index]
    assert played.T.tolist() == [[0, 0, 0, 3, 3], [1, 1, 2, 2, 2]]
    assert plan.first.T.tolist() == [[True, False, False, True, False], [True, False, True, False, False]]
    assert np.unique(plan.rows).size == plan.rows.size


def test_a_long_trace_is_thinned_by_whole_requests() -> None:
    source = blocks([5] * 40)
    plan = schedule(source, 2, 20)
    assert len(plan.rows) <= 25
    assert set(np.unique(source.request[plan.rows])) == set(range(0, 40, 5))  # type: ignore[index]


def test_more_users_than_requests_is_named() -> None:
    with pytest.raises(ConfigError, match="concurrency is 5; accepted: at most 4"):
        schedule(blocks([3, 2, 4, 2]), 5, 100)


def test_fixed_k_by_hand() -> None:
    source = blocks([4, 4])
    plan = schedule(source, 2, 100)
    for k in range(K + 1):
        outcome = fixed(source, plan, costs(2), k)
        assert outcome.tokens == np.minimum(source.accepted, k).sum() + 8
        assert outcome.milliseconds == pytest.approx(4 * (0.5 * k + 2.0 + 2 * (k + 1)))
    assert fixed(source, plan, costs(2), 0).throughput == pytest.approx(1e3 * 8 / (4 * 4.0))


def test_a_threshold_ends_a_block_with_its_first_weak_token() -> None:
    source = blocks([1, 1])
    source.positions["logit_qmax"] = np.array([[2.0, -2.0, 2.0], [-2.0, 2.0, 2.0]], np.float32)
    object.__setattr__(source, "accepted", np.array([3, 3], np.uint8))
    outcome = threshold(source, schedule(source, 2, 10), costs(2), 0.5)
    assert (outcome.scheduled, outcome.verified) == (3, 3)
    assert outcome.tokens == 3 + 2
    assert outcome.milliseconds == pytest.approx(0.5 * 2 + 2.0 + 5)


def test_adaptive_verification_emits_and_pays_for_what_it_admits() -> None:
    rng = np.random.default_rng(4)
    source = blocks([30] * 6, rng)
    estimator = Recording()
    outcome = Adaptive(costs(4), estimator, round_size=40).run(source, plan := schedule(source, 4, 100))
    learned = [(p.accepted.sum(), p.admitted.sum()) for p in estimator.learned]
    assert outcome.steps == len(plan.rows)
    assert outcome.accepted == sum(a for a, _ in learned)
    assert outcome.verified == sum(v for _, v in learned)
    assert outcome.tokens == outcome.accepted + outcome.steps * 4
    expected = outcome.steps * (1.5 + 2.0 + 4) + outcome.verified
    assert outcome.milliseconds == pytest.approx(expected)
    assert 0 < outcome.verified < outcome.scheduled


def test_a_smaller_depth_drafts_pays_and_emits_less() -> None:
    source = blocks([20] * 4)
    plan = schedule(source, 4, 100)
    model = costs(4, per_token=0.0)
    outcome = Adaptive(model, Attached("oracle"), depth=2).run(source, plan)
    assert outcome.throughput == pytest.approx(fixed(source, plan, model, 2).throughput)
    assert outcome.scheduled == outcome.verified == outcome.steps * 4 * 2


def test_free_verification_admits_everything() -> None:
    source = blocks([10] * 4)
    plan = schedule(source, 4, 100)
    outcome = Adaptive(costs(4, per_token=0.0), Attached("oracle")).run(source, plan)
    assert outcome.verified_share == 1.0
    assert outcome.throughput == pytest.approx(fixed(source, plan, costs(4, per_token=0.0), K).throughput)


def test_learners_see_labels_up_to_what_was_admitted_and_what_was_explored() -> None:
    source = blocks([40] * 8)
    estimator = Recording()
    explore = Exploration(1, share=0.2)
    outcome = Adaptive(costs(8, per_token=50.0), estimator, explore, round_size=64).run(source, schedule(source, 8, 99))
    assert 0 < outcome.explored <= outcome.verified
    assert outcome.explored == sum(int(part.observations().explored.sum()) for part in estimator.learned)
    for part in estimator.learned:
        rows = part.observations()
        assert (rows.explored <= rows.admitted).all()
        assert ((rows.propensities > 0) == (rows.explored > 0)).all()
        assert (rows.propensities <= 1).all()
        assert (rows.accepted <= rows.admitted).all()


def test_a_trimmed_block_keeps_its_features_and_loses_its_later_labels() -> None:
    source = blocks([4])
    part = trimmed(source, np.array([0, 1, 2, 3]), np.array([0, 0, 2, 0]), np.array([0, 0, 0.25, 0]))
    assert part.admitted.tolist() == [1, 2, 3]
    assert part.accepted.tolist() == np.minimum(source.accepted[1:], [1, 2, 3]).tolist()
    assert part.observations().propensities.tolist() == [0, 0.25, 0]


def test_the_roofline_is_bound_by_memory_then_by_arithmetic() -> None:
    """8B: 7.5e9 multiplied parameters read at 0.8 x 4.8 TB/s, or 2 FLOP each a token at 0.6 x 989 TFLOP/s."""
    model = roofline("h200-8b-ar", num_positions=7, max_requests=256)
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    parameters = 32 * layer + 4096 * 128256
    assert PRESETS["h200-8b-ar"].target.parameters == parameters
    assert model.verify[1] - STEP_OVERHEAD_MS == pytest.approx(2 * parameters / (0.8 * 4.8e12) * 1e3)
    assert model.verify[2048] - STEP_OVERHEAD_MS == pytest.approx(2 * parameters * 2048 / (0.6 * 989e12) * 1e3)
    assert (np.diff(model.verify) >= 0).all()
    assert model.verify[257] == model.verify[272]  # padded to a captured size
    assert H200.read_ms(4.8e12) == pytest.approx(1e3 / 0.8)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gives_a_table(name: str) -> None:
    model = roofline(name, num_positions=K, max_requests=64)
    assert (model.draft[0] == 0).all()
    passes = model.draft[1:, 8] / model.draft[1, 8]
    assert passes.tolist() == pytest.approx([1, 1, 1] if name.endswith("block") else [1, 2, 3])
    assert model.table(K).verify_ms.shape == (64 * (K + 1) + 1,)


def test_an_unknown_roofline_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'a100' is unknown; accepted: h200-8b-ar"):
        roofline("a100", num_positions=K, max_requests=4)


def test_a_profile_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"draft": [[1, 3.0], [8, 6.0]], "verify": [[1, 5.0], [32, 9.0]]}))
    model = load_cost_model(path, num_positions=K, max_requests=8)
    assert model.step_ms(0, 1, 1) == pytest.approx(5.0)
    assert model.step_ms(1, 1, 1) == pytest.approx(5.0 + 1.0)
    assert model.step_ms(K, 8, 32) == pytest.approx(9.0 + 6.0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("not JSON", "JSONDecodeError"),
        ("[]", "accepted: JSON"),
        ('{"draft": [[1, 2]]}', "verify"),
        ('{"draft": [[1, 2]], "verify": [[1, 2]], "drafter": "tree"}', "drafter is 'tree'"),
        ('{"draft": [[1, 2]], "verify": [[99, 2]]}', "verify curve has no usable sample"),
    ],
)
def test_a_wrong_cost_file_is_one_clear_line(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=part):
        load_cost_model(path, num_positions=K, max_requests=8)


def test_where_drafting_stops_paying() -> None:
    source = blocks([10] * 8)
    simulation = Simulation("t", "c", K)
    for concurrency, per_token in ((1, 0.01), (2, 0.01), (4, 50.0), (8, 50.0)):
        model, plan = costs(concurrency, per_token), schedule(source, concurrency, 99)
        comparison = simulation.comparisons[concurrency] = Comparison(concurrency)
        comparison.fixed = {k: fixed(source, plan, model, k) for k in range(K + 1)}
        comparison.av = {"oracle": Adaptive(model, Attached("oracle")).run(source, plan)}
        comparison.thresholds = {0.5: threshold(source, plan, model, 0.5)}
    assert simulation.drafting_stops_paying == 4
    assert simulation.comparisons[1].drafting_pays
    assert simulation.comparisons[8].binds
