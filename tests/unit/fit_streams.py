"""Streams of graded blocks with a known truth, for tests of the fit."""

import numpy as np

from acceptd.codec import UNKNOWN_SEGMENT, Observations
from acceptd.limits import MAX_LOG_ODDS
from estimator_service.fit.predict import Predictor, sigmoid


def observations(x, passed, *, admitted=None, segments=None, explored=None, propensities=None):
    """Blocks from x and labels, both [B, K]: what a worker would send of them."""
    blocks, k = x.shape
    admitted = np.full(blocks, k) if admitted is None else admitted
    accepted = np.minimum(np.cumprod(passed, axis=1).sum(axis=1), admitted)
    observed = np.minimum(accepted + 1, admitted)
    return Observations(
        accepted.astype(np.uint8),
        admitted.astype(np.uint8),
        np.clip(x, -MAX_LOG_ODDS, MAX_LOG_ODDS).astype(np.float32)[np.arange(k) < observed[:, None]],
        np.full(blocks, UNKNOWN_SEGMENT, np.uint8) if segments is None else segments.astype(np.uint8),
        np.zeros(blocks, np.uint8) if explored is None else explored.astype(np.uint8),
        np.zeros(blocks, np.float32) if propensities is None else propensities.astype(np.float32),
    )


def features(rng, blocks, k, mean=2.0, deviation=2.5):
    return np.clip(rng.normal(mean, deviation, (blocks, k)), -11.0, 30.0)


def blocks_of(rng, blocks, slope, intercepts, **columns):
    """Blocks whose acceptance is logistic in x with these coefficients."""
    x = features(rng, blocks, len(intercepts))
    passed = rng.random(x.shape) < sigmoid(slope * x + np.asarray(intercepts))
    return observations(x, passed, **columns)


def log_loss(coefficients, slope, intercepts, *, segment=UNKNOWN_SEGMENT, blocks=20_000):
    """Expected log-loss of coefficients, nats an observation, where the truth is logistic; and that of the truth."""
    k = len(intercepts)
    x = features(np.random.default_rng(99), blocks, k)
    truth = sigmoid(slope * x + np.asarray(intercepts))
    reached = np.cumprod(np.concatenate((np.ones((blocks, 1)), truth[:, :-1]), axis=1), axis=1)
    slot = np.full(x.size, min(segment, 5))
    position = np.broadcast_to(np.arange(k), x.shape).ravel()
    guess = sigmoid(Predictor.of(coefficients).log_odds(slot, position, x.ravel())).reshape(x.shape)

    def score(p):
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return float(-(reached * (truth * np.log(p) + (1 - truth) * np.log1p(-p))).sum() / reached.sum())

    return score(guess), score(truth)


def close(model, batches, in_force, **names):
    """Observe batches with the coefficients in force, close the round, and return (round, coefficients in force)."""
    for i, batch in enumerate(batches):
        model.observe(batch, used=in_force, **{name: values[i] for name, values in names.items()})
    outcome = model.close_round(0.0, in_force={"": in_force})
    return outcome, outcome.coefficients[""] if outcome.held is None else in_force
