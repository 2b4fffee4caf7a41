"""The feature table and the roles against scikit-learn and statsmodels on the rows."""

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn import metrics
from synthetic_trace import INTERCEPTS, SLOPE, K, columns, observed, write

from estimator_service.lab.feature_table import feature_table
from estimator_service.lab.features import FEATURES
from estimator_service.lab.roles import fit_roles, spread
from estimator_service.lab.trace import Trace


def design(value, position):
    return np.column_stack([value, *(position == k for k in range(K))]).astype(float)


def glm(value, position, label, **fit):
    return sm.GLM(label.astype(float), design(value, position), family=sm.families.Binomial()).fit(**fit)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write(tmp_path_factory.mktemp("t") / "t.parquet", [columns(4000)])


def test_features_against_statsmodels_and_scikit_learn(trace):
    path, joined = trace
    rows = {row.feature.name: row for row in feature_table(Trace(path))}
    assert list(rows) == [feature.name for feature in FEATURES]
    row, position, label = observed(joined)
    for feature in FEATURES:
        value = feature.compute(joined[feature.column][row, position].astype(float))
        fitted = glm(value, position, label)
        found = rows[feature.name]
        assert found.observations == len(label)
        assert found.auc == pytest.approx(metrics.roc_auc_score(label, value), abs=2e-4), feature.name
        assert found.fitted_auc == pytest.approx(metrics.roc_auc_score(label, fitted.fittedvalues), abs=2e-4)
        assert found.log_loss == pytest.approx(metrics.log_loss(label, fitted.fittedvalues), rel=1e-4)
        assert found.slope == pytest.approx(fitted.params[0], rel=2e-3, abs=2e-4), feature.name


def test_features_by_their_definitions():
    q = np.array([0.1, 0.5, 0.999])
    x = np.log(q / (1 - q))
    computed = {feature.name: feature.compute(x) for feature in FEATURES if feature.column == "logit_qmax"}
    np.testing.assert_allclose(computed["log q_max"], np.log(q))
    np.testing.assert_allclose(computed["-log(-log q_max)"], -np.log(-np.log(q)))
    np.testing.assert_allclose(computed["raw q_max"], q)
    np.testing.assert_allclose(computed["logit q_max"], x)
    for values in computed.values():
        assert np.isfinite(values).all()


def test_features_without_their_column_are_left_out(tmp_path):
    path, _ = write(tmp_path / "t.parquet", [columns(500)], leave_out=("entropy", "margin", "logit_qsampled"))
    names = {row.feature.name for row in feature_table(Trace(path))}
    assert names == {"log q_max", "-log(-log q_max)", "logit q_max", "raw q_max"}


@pytest.fixture(scope="module")
def correlated(tmp_path_factory):
    parts = [
        columns(3000, 1, workload="code", spread=1.0),
        columns(3000, 2, workload="chat", intercepts=[b - 0.6 for b in INTERCEPTS]),
    ]
    parts[1]["request"] = parts[1]["request"] + 1000
    return write(tmp_path_factory.mktemp("t") / "t.parquet", parts)


def test_roles_and_their_cluster_robust_errors_against_statsmodels(correlated):
    path, joined = correlated
    roles = fit_roles(Trace(path))
    assert [role.workload for role in roles] == ["code", "chat"]
    row, position, label = observed(joined)
    x = joined["logit_qmax"][row, position].astype(float)
    for role in roles:
        own = joined["workload"][row] == role.workload
        cluster = {"groups": joined["request"][row][own]}
        fitted = glm(x[own], position[own], label[own], cov_type="cluster", cov_kwds=cluster)
        found = np.concatenate([[role.slope], role.intercepts])
        errors = np.concatenate([[role.slope_error], role.intercept_errors])
        np.testing.assert_allclose(found, fitted.params, atol=2e-3)
        np.testing.assert_allclose(errors, fitted.bse, rtol=0.01)
        assert role.acceptance == pytest.approx(label[own].mean())
        assert role.entropy == pytest.approx(joined["entropy"][row, position][own].mean(), rel=1e-4)


def test_correlated_labels_widen_the_errors(correlated):
    path, joined = correlated
    role = fit_roles(Trace(path))[0]
    row, position, label = observed(joined)
    own = joined["workload"][row] == "code"
    naive = glm(joined["logit_qmax"][row, position][own], position[own], label[own])
    assert (role.intercept_errors[0] / naive.bse[1]) > 1.2


def test_the_spread_tells_a_shift_of_intercepts_from_one_of_the_slope(tmp_path):
    shifts = [-0.8, -0.4, 0.0, 0.4]
    parts = []
    for index, shift in enumerate(shifts):
        part = columns(6000, index, workload=f"w{index}", intercepts=[b + shift for b in INTERCEPTS])
        part["entropy"] = np.full_like(part["entropy"], 3.0 - shift)
        parts.append(part)
    roles = fit_roles(Trace(write(tmp_path / "t.parquet", parts)[0]))
    found = spread(roles)
    for role, shift in zip(roles, shifts, strict=True):
        assert abs(role.slope - SLOPE) < 4 * role.slope_error
        assert np.all(np.abs(role.intercepts - np.array(INTERCEPTS) - shift) < 4 * role.intercept_errors)
    assert found.slope < 0.05
    np.testing.assert_allclose(found.intercepts, np.std(shifts, ddof=1), atol=0.12)
    assert found.entropy_and_first_intercept < -0.95


def test_one_fit_has_no_spread_and_an_unlabelled_position_no_intercept(tmp_path):
    part = columns(500)
    part["admitted"][:] = 3
    part["accepted"] = part["accepted"].clip(max=3)
    (role,) = fit_roles(Trace(write(tmp_path / "t.parquet", [part], leave_out=("request", "entropy"))[0]))
    assert np.isnan(role.intercepts[3])
    assert np.isnan(role.intercept_errors[3])
    assert np.isfinite(role.intercepts[:3]).all()
    assert np.isfinite(role.intercept_errors[:3]).all()
    assert np.isnan(role.entropy)
    assert np.isnan(spread([role]).slope)
