"""Scores against scikit-learn, and against hand counts where scikit-learn has none."""

import numpy as np
import pytest
from sklearn import metrics

from estimator_service.lab.scores import ECE_BINS, LOSS_FLOOR, Scores, log_loss


def scored(probability, label, position=None, cell=None, num_positions=3):
    scores = Scores(num_positions)
    number = len(probability)
    position = np.zeros(number, np.uint8) if position is None else position.astype(np.uint8)
    cell = np.zeros(number, np.int32) if cell is None else cell.astype(np.int32)
    half = number // 2
    for part in (slice(None, half), slice(half, None)):
        scores.add(probability[part], label[part], position[part], cell[part])
    return scores


def stream(seed, number=20_000, saturated=False):
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(1.0, 3.0, number)
    if saturated:
        log_odds[rng.random(number) < 0.3] = 40.0
    probability = 1.0 / (1.0 + np.exp(-log_odds))
    label = rng.random(number) < 1.0 / (1.0 + np.exp(-0.6 * log_odds + 0.3))
    return probability, label, rng.integers(0, 3, number), rng.integers(0, 5, number)


@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_auc_and_log_loss_equal_scikit_learn(seed, saturated):
    probability, label, position, cell = stream(seed, saturated=saturated)
    scores = scored(probability, label, position, cell)

    def check(summary, chosen):
        assert summary.observations == chosen.sum()
        assert summary.acceptance == pytest.approx(label[chosen].mean(), abs=1e-12)
        assert summary.auc == pytest.approx(metrics.roc_auc_score(label[chosen], probability[chosen]), abs=2e-5)
        clipped = np.clip(probability[chosen], LOSS_FLOOR, 1 - LOSS_FLOOR)
        assert summary.log_loss == pytest.approx(metrics.log_loss(label[chosen], clipped), rel=1e-6)

    check(scores.overall(), np.ones(len(label), bool))
    check(scores.without_first(), position > 0)
    for k, summary in enumerate(scores.positions()):
        check(summary, position == k)
    for c in range(5):
        check(scores.cells([c]), cell == c)
    check(scores.cells([1, 4]), (cell == 1) | (cell == 4))


def test_tied_predictions_count_half_as_in_scikit_learn():
    rng = np.random.default_rng(0)
    probability = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0], 5000)
    label = rng.random(5000) < 0.3 + 0.5 * probability
    expected = metrics.roc_auc_score(label, probability)
    assert scored(probability, label).overall().auc == pytest.approx(expected, abs=1e-12)


def test_ece_and_gap_by_hand():
    probability = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    label = np.array([False, True, True, True, False])
    summary = scored(probability, label).overall()
    # Bin 0 holds two: |0.05 - 0.5| · 2/5; bin 14 three: |2.9/3 - 2/3| · 3/5.
    assert summary.ece == pytest.approx(0.45 * 0.4 + 0.3 * 0.6)
    assert summary.gap == pytest.approx((3.0 - 3) / 5)


def test_ece_equals_the_definition_on_a_stream():
    probability, label, _, _ = stream(7)
    which = np.minimum((probability * ECE_BINS).astype(int), ECE_BINS - 1)
    expected = sum(
        abs(probability[which == b].mean() - label[which == b].mean()) * (which == b).mean() for b in np.unique(which)
    )
    scores = scored(probability, label)
    assert scores.overall().ece == pytest.approx(expected, abs=1e-12)
    for b, (number, predicted, observed) in enumerate(scores.reliability()):
        assert number == (which == b).sum()
        assert predicted == pytest.approx(probability[which == b].mean())
        assert observed == pytest.approx(label[which == b].mean())


def test_one_class_has_no_auc_and_an_empty_group_no_scores():
    scores = scored(np.full(4, 0.7), np.ones(4, bool))
    assert scores.overall().as_json()["auc"] is None
    assert scores.overall().log_loss == pytest.approx(-np.log(0.7))
    empty = scores.positions()[2].as_json()
    assert empty == {"observations": 0, "acceptance": None, "auc": None, "log_loss": None, "ece": None, "gap": None}
    assert scores.cells([9]).observations == 0


def test_a_sure_and_wrong_prediction_costs_a_finite_amount():
    assert log_loss(np.array([1.0, 0.0]), np.array([False, True])) == pytest.approx(-np.log(LOSS_FLOOR))
