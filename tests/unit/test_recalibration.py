"""Each worker's own line through the scores of all, against statsmodels on that worker's rows."""

import dataclasses

import numpy as np
import pytest
import statsmodels.api as sm

from estimator_service.fit.predict import sigmoid
from estimator_service.fit.workers import recalibrate

K = 3


def reports(seed, sizes, slopes):
    """Rows of workers whose log-odds are a line of their own through the score: (worker, position, score, accepted)."""
    rng = np.random.default_rng(seed)
    worker = np.repeat(np.arange(len(sizes)), sizes)
    position, score = rng.integers(0, K, len(worker)), rng.normal(0.5, 1.5, len(worker))
    accepted = rng.random(len(worker)) < sigmoid(np.array(slopes)[worker] * score - 0.3 * position)
    return worker, position, score, accepted.astype(np.int64)


@pytest.mark.parametrize("seed", range(3))
def test_slopes_are_those_of_statsmodels(seed):
    worker, position, score, accepted = reports(seed, [8_000, 5_000, 6_000], [1.0, 0.5, -1.0])
    found = recalibrate(worker, position, score, accepted, shape=(3, K))
    for w in range(3):
        mine = worker == w
        design = np.column_stack((score[mine], np.eye(K)[position[mine]]))
        fit = sm.GLM(accepted[mine], design, family=sm.families.Binomial()).fit()
        # Bins of a nat, each with its mean, flatten a line by a few percent.
        assert found.slope[w] == pytest.approx(fit.params[0], rel=0.05)
        assert found.information[w] == pytest.approx(fit.bse[0] ** -2, rel=0.1)


def test_workers_with_too_few_rows_to_be_judged_change_nothing_for_the_others():
    sizes = [400, 29, 0, 900, 5]
    worker, position, score, accepted = reports(4, sizes, [1.0] * 5)
    found = recalibrate(worker, position, score, accepted, shape=(5, K))
    heard = np.isin(worker, [0, 3])
    alone = recalibrate(worker[heard] // 3, position[heard], score[heard], accepted[heard], shape=(2, K))
    assert found.n.tolist() == sizes
    for item in dataclasses.fields(found):
        values = getattr(found, item.name)
        np.testing.assert_array_equal(values[[0, 3]], getattr(alone, item.name))
        if item.name != "n":
            assert not values[[1, 2, 4]].any()


def test_nobody_with_enough_rows():
    found = recalibrate(*reports(5, [3, 7], [1.0, 1.0]), shape=(2, K))
    assert found.n.tolist() == [3, 7]
    assert not found.information.any()
