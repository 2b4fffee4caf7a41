"""Live calibration against scikit-learn and hand counts."""

import numpy as np
import pytest
from fit_streams import blocks_of, features, observations
from sklearn.metrics import log_loss, roc_auc_score

from acceptd.types import Coefficients, SegmentCoefficients, Version, prior
from estimator_service.fit.calibration import area_under_curve
from estimator_service.fit.histogram import grade
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import sigmoid

K = 4


def expected_error(confidence, accepted):
    total = 0.0
    for i in range(15):
        inside = (confidence >= i / 15) & ((confidence < (i + 1) / 15) | (i == 14))
        if inside.any():
            total += abs(confidence[inside].mean() - accepted[inside].mean()) * inside.mean()
    return total


@pytest.fixture
def scored():
    rng = np.random.default_rng(0)
    batches = [blocks_of(rng, 700, 0.7, [0.4, 0.1, -0.2, -0.5]) for _ in range(3)]
    used = prior(K)
    model = PairModel(K)
    for batch in batches:
        model.observe(batch, used=used)
    rows = [grade(batch, K) for batch in batches]
    position, x, accepted = (np.concatenate([getattr(r, name) for r in rows]) for name in ("position", "x", "accepted"))
    confidence = sigmoid(0.5 * x + float(np.float32(-0.2)))
    return model.close_round(1.0).calibration, confidence, position, accepted


def test_overall(scored):
    found, confidence, _, accepted = scored
    assert found.observations == len(accepted)
    assert found.log_loss == pytest.approx(log_loss(accepted, confidence), rel=1e-9)
    assert found.auc == pytest.approx(roc_auc_score(accepted, confidence), abs=2e-4)
    assert found.ece == pytest.approx(expected_error(confidence, accepted), abs=1e-9)
    assert found.gap == pytest.approx(confidence.mean() - accepted.mean(), abs=1e-9)


def test_by_position(scored):
    found, confidence, position, accepted = scored
    for k in range(K):
        here = position == k
        assert found.log_loss_by_position[k] == pytest.approx(log_loss(accepted[here], confidence[here]), rel=1e-9)
        assert found.auc_by_position[k] == pytest.approx(roc_auc_score(accepted[here], confidence[here]), abs=1e-3)
        assert found.ece_by_position[k] == pytest.approx(expected_error(confidence[here], accepted[here]), abs=1e-9)
        assert found.gap_by_position[k] == pytest.approx((confidence[here] - accepted[here]).mean(), abs=1e-9)


def test_each_batch_is_scored_with_the_version_it_was_predicted_with():
    rng = np.random.default_rng(1)
    model = PairModel(K)
    rows = [blocks_of(rng, 500, 0.5, [0.0] * K) for _ in range(2)]
    other = Coefficients(Version(1, 1), SegmentCoefficients((1.0,), (1.0,) * K))
    model.observe(rows[0], used=prior(K))
    model.observe(rows[1], used=other)
    graded = [grade(batch, K) for batch in rows]
    z = np.concatenate((0.5 * graded[0].x - np.float32(0.2), graded[1].x + 1.0))
    y = np.concatenate([g.accepted for g in graded])
    assert model.close_round(0.0).calibration.log_loss == pytest.approx(log_loss(y, sigmoid(z)), rel=1e-6)


def test_survival_error_is_small_for_the_truth_and_large_for_overconfidence():
    rng = np.random.default_rng(2)
    intercepts = (0.5, 0.25, 0.0, -0.25)
    truth = Coefficients(Version(1, 1), SegmentCoefficients((0.5,), intercepts))
    sure = Coefficients(Version(1, 1), SegmentCoefficients((0.5,), tuple(b + 1.0 for b in intercepts)))
    errors = []
    for used in (truth, sure):
        model = PairModel(K)
        for _ in range(8):
            x = features(rng, 500, K, deviation=0.5)
            model.observe(observations(x, rng.random(x.shape) < sigmoid(0.5 * x + np.array(intercepts))), used=used)
        errors.append(model.close_round(0.0).calibration.survival_ece)
    assert errors[0] < 0.025
    assert errors[1] > 0.12


def test_area_counts_ties_half_and_is_nan_without_both_labels():
    assert area_under_curve(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.5
    assert area_under_curve(np.array([2.0, 0.0]), np.array([0.0, 3.0])) == 1.0
    assert np.isnan(area_under_curve(np.array([0.0, 0.0]), np.array([1.0, 3.0])))
