"""The penalised Newton on bins against dense algebra and against statsmodels on the rows."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import optimize

from acceptd.bins import NUM_BINS
from acceptd.limits import MAX_INTERCEPT, MAX_SLOPE
from estimator_service.fit.arrowhead import solve_arrowhead
from estimator_service.fit.histogram import bins_of, histogram
from estimator_service.fit.likelihood import Cells, Point, linear_predictor, loss, normal_equations
from estimator_service.fit.newton import Prior, fit
from estimator_service.fit.predict import sigmoid


def rows(seed, n=40_000, k=5, slope=0.6):
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(1.5, 3.0, n), -12, 30)
    position = rng.integers(0, k, n)
    intercepts = np.linspace(0.4, -0.8, k)
    accepted = (rng.random(n) < sigmoid(slope * x + intercepts[position])).astype(float)
    return x, position, accepted


def binned(x, position, accepted, k=5, knots=()):
    cell = position * NUM_BINS + bins_of(x)
    return Cells.of(histogram(cell, x, accepted, k * NUM_BINS).reshape(3, 1, k, NUM_BINS), knots)


def no_prior(k=5, pieces=1):
    start = Point(np.full((1, pieces), 0.5), np.full((1, k), -0.2))
    return Prior.about(start, slope=0.0, intercept=0.0), start


@pytest.mark.parametrize("seed", range(3))
def test_line_agrees_with_statsmodels_on_the_rows(seed):
    x, position, accepted = rows(seed)
    design = np.column_stack((x, np.eye(5)[position]))
    expected = sm.GLM(accepted, design, family=sm.families.Binomial()).fit().params
    point = fit(binned(x, position, accepted), *no_prior())
    assert np.concatenate((point.slopes[0], point.intercepts[0])) == pytest.approx(expected, abs=1e-3)


def test_link_agrees_with_statsmodels_on_the_rows():
    x, position, accepted = rows(7)
    knots = (-2.0, 1.0, 3.5)
    bends = [np.maximum(x - knot, 0.0) for knot in knots]
    design = np.column_stack((x, *bends, np.eye(5)[position]))
    expected = sm.GLM(accepted, design, family=sm.families.Binomial()).fit().params
    point = fit(binned(x, position, accepted, knots=knots), *no_prior(pieces=4))
    found = np.concatenate((np.diff(point.slopes[0], prepend=0.0), point.intercepts[0]))
    # A bend between neighbouring knots has a standard error of .02 here; binning moves it by a fifth of that.
    assert found == pytest.approx(expected, abs=5e-3)


def test_arrowhead_equals_a_dense_solve():
    rng = np.random.default_rng(0)
    s, k, p = 3, 6, 4
    b = rng.normal(size=(s, k, p))
    c = rng.uniform(5, 9, (s, k))
    a = np.eye(p) * 40 + np.zeros((s, p, p))
    g, h = rng.normal(size=(s, p)), rng.normal(size=(s, k))
    u, v = solve_arrowhead(a, b, c, g, h)
    for i in range(s):
        dense = np.block([[a[i], b[i].T], [b[i], np.diag(c[i])]])
        assert np.concatenate((u[i], v[i])) == pytest.approx(np.linalg.solve(dense, np.concatenate((g[i], h[i]))))


def test_tied_arrowhead_equals_a_dense_solve():
    rng = np.random.default_rng(1)
    s, k, p = 2, 5, 3
    b = rng.normal(size=(s, k, p))
    c, t = rng.uniform(5, 9, (s, k)), rng.uniform(1, 4, (s, k))
    d = (t**2 / c).sum(axis=1) + 3.0
    a = np.eye(p) * 40 + np.zeros((s, p, p))
    g, h = rng.normal(size=(s, p)), rng.normal(size=(s, k))
    u, v = solve_arrowhead(a, b, c, g, h, tie=(t, d))
    for i in range(s):
        tied = np.diag(c[i]) - np.outer(t[i], t[i]) / d[i]
        dense = np.block([[a[i], b[i].T], [b[i], tied]])
        assert np.concatenate((u[i], v[i])) == pytest.approx(np.linalg.solve(dense, np.concatenate((g[i], h[i]))))


@pytest.mark.parametrize("knots", [(), (-1.0, 2.0)])
def test_a_common_shift_and_smoothness_give_the_mode_of_the_joint_posterior(knots):
    x, position, accepted = rows(5, n=400)
    cells = binned(x, position, accepted, knots=knots)
    pieces = 1 + len(knots)
    centre = Point(np.full((1, pieces), 0.4), np.linspace(-0.5, 1.0, 5)[None])
    slope, intercept, smoothness, shift = 30.0, 60.0, 11.0, 5.0
    prior = Prior.about(centre, slope=slope, intercept=intercept, smoothness=smoothness, shift=shift)

    def objective(values):
        point, moved = Point(values[None, :pieces], values[None, pieces:-1]), values[-1]
        bend = np.diff(values[:pieces])
        return (
            loss(cells, point)[0]
            + 0.5 * slope * ((point.slopes - centre.slopes) ** 2).sum()
            + 0.5 * intercept * ((point.intercepts - centre.intercepts - moved) ** 2).sum()
            + 0.5 * shift * moved**2
            + 0.5 * smoothness * (bend**2).sum()
        )

    start = np.concatenate((centre.values[0], [0.0]))
    expected = optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-5}).x
    found = fit(cells, prior, centre)
    assert found.values[0] == pytest.approx(expected[:-1], abs=2e-5)


def test_features_far_beyond_the_range_are_finite():
    n = np.full((1, 1, 4), 3.0)
    cells = Cells.straight(n, n / 3.0, np.array([[[-900.0, -1.0, 1.0, 900.0]]]))
    point = Point(np.full((1, 1), MAX_SLOPE), np.zeros((1, 1)))
    normal = normal_equations(cells, point)
    assert all(np.isfinite(values).all() for values in normal)
    # 1 of 3 accepted everywhere. Log-odds of ±3,600 count as −700 and as they are.
    eta = np.array([-700.0, -4.0, 4.0, 3600.0])
    expected = (np.logaddexp(0.0, -eta) + 2.0 * np.logaddexp(0.0, eta)).sum()
    assert normal.loss[0] == pytest.approx(expected)
    assert loss(cells, point)[0] == pytest.approx(expected)
    assert np.isfinite(fit(cells, Prior.about(point, slope=0.0, intercept=0.0), point).values).all()


def test_no_segments_have_no_equations():
    cells = Cells.of(np.zeros((3, 0, 4, NUM_BINS)))
    normal = normal_equations(cells, Point(np.zeros((0, 1)), np.zeros((0, 4))))
    assert [len(values) for values in normal] == [0] * 6


def test_a_sum_without_rows_is_no_row():
    sums = np.zeros((3, 1, 1, NUM_BINS))
    sums[:, 0, 0, 60], sums[2, 0, 0, 70] = (4.0, 2.0, -2.0), 40.0
    sums[0, 0, 0, 80] = 1.0
    cells = Cells.of(sums)
    assert np.count_nonzero(cells.x) == 1
    start = Point(np.full((1, 1), 0.5), np.zeros((1, 1)))
    assert np.isfinite(fit(cells, Prior.about(start, slope=1.0, intercept=1.0), start).values).all()


def test_normal_equations_are_the_derivatives_of_the_loss():
    x, position, accepted = rows(3, n=3_000)
    cells = binned(x, position, accepted, knots=(-1.0, 2.0))
    point = Point(np.array([[0.3, 0.5, 0.7]]), np.linspace(0.2, -0.4, 5)[None])
    normal = normal_equations(cells, point)
    step = 1e-5

    def moved(i, size):
        values = np.concatenate((point.slopes[0], point.intercepts[0]))
        values[i] += size
        return Point(values[None, :3], values[None, 3:])

    numeric = [-(loss(cells, moved(i, step)) - loss(cells, moved(i, -step)))[0] / (2 * step) for i in range(8)]
    gradient = np.concatenate((normal.slope_gradient[0], normal.intercept_gradient[0]))
    assert gradient == pytest.approx(numeric, rel=1e-4, abs=1e-3)
    curvature = []
    for i in range(8):
        up, down = normal_equations(cells, moved(i, step)), normal_equations(cells, moved(i, -step))
        change = np.concatenate(
            (up.slope_gradient - down.slope_gradient, up.intercept_gradient - down.intercept_gradient), 1
        )
        curvature.append(-change[0] / (2 * step))
    expected = np.block([[normal.a[0], normal.b[0].T], [normal.b[0], np.diag(normal.c[0])]])
    assert np.array(curvature) == pytest.approx(expected, rel=1e-4, abs=1e-2)


def test_negative_slope_is_held_at_zero_and_intercepts_are_solved_for_that():
    x, position, accepted = rows(1, slope=-0.5)
    point = fit(binned(x, position, accepted), *no_prior())
    assert point.slopes[0, 0] == 0.0
    rates = np.array([accepted[position == k].mean() for k in range(5)])
    assert sigmoid(point.intercepts[0]) == pytest.approx(rates, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_any_counts_give_a_finite_bounded_point_that_is_no_worse_than_the_start(seed):
    rng = np.random.default_rng(seed)
    n = rng.integers(0, 4, (2, 3, NUM_BINS)) * rng.integers(0, 2, (2, 3, NUM_BINS)) * 10.0 ** rng.integers(0, 5)
    accepted = np.floor(n * rng.choice([0.0, 0.5, 1.0], n.shape))
    centres = np.concatenate((np.full(40, -20.0), np.linspace(-9, 9, 48), np.full(40, 39.0)))
    cells = Cells.of(np.stack((n, accepted, n * centres)), (-1.0, 4.0))
    start = Point(np.full((2, 3), 0.5), np.full((2, 3), -0.2))
    point = fit(cells, Prior.about(start, slope=0.0, intercept=0.0), start)
    assert np.isfinite(point.slopes).all()
    assert np.isfinite(point.intercepts).all()
    assert (point.slopes >= 0).all()
    assert (point.slopes <= MAX_SLOPE).all()
    assert (np.abs(point.intercepts) <= MAX_INTERCEPT).all()
    assert (loss(cells, point) <= loss(cells, start) * (1 + 1e-6) + 1e-6).all()


def test_piece_slopes_are_the_slopes_of_the_link():
    x, position, accepted = rows(5, n=2_000)
    cells = binned(x, position, accepted, knots=(0.0, 2.0))
    eta = linear_predictor(cells, Point(np.array([[0.2, 0.6, 0.1]]), np.zeros((1, 5))))
    at = cells.x[cells.n > 0]
    expected = 0.2 * np.minimum(at, 0) + 0.6 * np.clip(at, 0, 2) + 0.1 * np.maximum(at - 2, 0)
    assert eta[cells.n > 0] == pytest.approx(expected)
