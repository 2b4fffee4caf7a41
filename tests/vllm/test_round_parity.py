"""`method = "round"` against vLLM's own estimator on the same rows: ten refits, coefficients within 1e-4."""

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.spec_decode import acceptance_estimator as vllm_estimator

from acceptd.codec import Observations
from acceptd.types import prior
from estimator_service.fit.model import PairModel
from estimator_service.fit.settings import FitSettings

REQUESTS, K, ROUNDS = 16, 4, 10


def as_vllm_counts(accepted, admitted):
    """(num_sampled with the bonus token, num_rejected) of graded blocks."""
    return torch.tensor(accepted + 1, dtype=torch.int32), torch.tensor(admitted - accepted, dtype=torch.int32)


@pytest.mark.parametrize(("level", "steps"), [(0.0, 20), (-0.8, 10)])
def test_ten_refits_agree(level, steps):
    rng = np.random.default_rng(0)
    theirs = vllm_estimator.OnlineAcceptanceEstimator(REQUESTS, K, torch.device("cpu"))
    theirs.REFIT_INTERVAL = steps
    ours, in_force = PairModel(K, FitSettings(method="round")), prior(K)
    mapping = torch.arange(REQUESTS, dtype=torch.int32)
    for _ in range(ROUNDS):
        for _ in range(steps):
            x = rng.normal(1.5, 2.5, (REQUESTS, K)).clip(-40, 40).astype(np.float32)
            confidence = 1 / (1 + np.exp(-(theirs.slope.numpy() * x + theirs.intercepts.numpy())))
            passed = rng.random((REQUESTS, K)) < 1 / (1 + np.exp(-(0.7 * x + level)))
            admitted = rng.integers(1, K + 1, REQUESTS)
            accepted = np.minimum(np.cumprod(passed, axis=1).sum(axis=1), admitted)
            theirs.features.copy_(torch.from_numpy(x))
            theirs.predictions.copy_(torch.from_numpy(confidence.astype(np.float32)))
            theirs.step(mapping, *as_vllm_counts(accepted, admitted))
            observed = np.arange(K) < np.minimum(accepted + 1, admitted)[:, None]
            rows = Observations(
                accepted.astype(np.uint8),
                admitted.astype(np.uint8),
                x[observed],
                np.full(REQUESTS, 3, np.uint8),
                np.zeros(REQUESTS, np.uint8),
                np.zeros(REQUESTS, np.float32),
            )
            ours.observe(rows, used=in_force)
        in_force = ours.close_round(0.0, in_force={"": in_force}).coefficients[""]
        assert in_force.line.slopes[0] == pytest.approx(float(theirs.slope[0]), abs=1e-4)
        assert in_force.line.intercepts == pytest.approx(theirs.intercepts.tolist(), abs=1e-4)
