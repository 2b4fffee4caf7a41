from collections import Counter
from itertools import chain

import numpy as np
import pytest
from drift_streams import K, drawn, recorded, sums
from river.drift import ADWIN, PageHinkley

from acceptd.bins import EDGES, NUM_BINS
from acceptd.segments import Segment
from estimator_service.fit import drift as drift_module
from estimator_service.fit.baseline import KNOTS, LEVELS
from estimator_service.fit.cusum import share_ratio
from estimator_service.fit.drift import KINDS as PARTS
from estimator_service.fit.drift import DriftDetector, DriftKind
from estimator_service.fit.histogram import NUM_SLOTS
from estimator_service.fit.snapshot import pack, unpack
from estimator_service.fit.streams import SLOPE, evidence

KINDS = {kind.__name__: kind for kind in PARTS}


def detector():
    return DriftDetector(NUM_SLOTS, K)


def watch(rounds, found=None):
    found = found or detector()
    return [drift for one in rounds if (drift := found.update(one)) is not None]


def shifted(seed, before, after, quiet=40, rest=30):
    """All drifts of a synthetic stream whose truth changes after `quiet` rounds."""
    rng = np.random.default_rng(seed)
    return watch(drawn(rng, **(before if i < quiet else after)) for i in range(quiet + rest))


CALM = {"slope": 0.5, "intercept": -0.2}
OTHER_DRAFT = {"slope": 0.65, "intercept": -0.4, "mean": 3.0, "deviation": 2.5}


@pytest.mark.parametrize("blocks", [640, 320, 256])
def test_recorded_code_then_chat_is_workload_drift_and_not_pair_drift(blocks):
    code, chat = recorded()
    drifts = watch(chain(code.in_order(blocks), chat.in_order(blocks)))
    assert [drift.kind for drift in drifts] == [DriftKind.WORKLOAD]
    change = 4_992 // blocks + 1
    assert drifts[0].round > change - 1
    assert abs(drifts[0].onset - change) <= 2


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_recorded_pair_with_features_of_another_scale_is_pair_drift_within_ten_rounds(scale):
    chat = recorded()[1]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        drifts = watch(chain(chat.resampled(rng, 40), chat.resampled(rng, 20, scale=scale)))
        assert [drift.kind for drift in drifts] == [DriftKind.PAIR]
        assert 40 < drifts[0].round <= 50
        assert np.sign(drifts[0].slope) == np.sign(1 / scale - 1)


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (OTHER_DRAFT, DriftKind.PAIR),
        ({**CALM, "slope": 0.65}, DriftKind.PAIR),
        ({**CALM, "slope": 0.35}, DriftKind.PAIR),
        ({**CALM, "intercept": -0.5}, DriftKind.WORKLOAD),
        ({"slope": 0.54, "intercept": 0.0}, DriftKind.WORKLOAD),
        ({**CALM, "mean": 1.5}, DriftKind.WORKLOAD),
    ],
)
def test_a_change_is_named_once_within_ten_rounds_and_the_new_state_is_the_next_baseline(after, kind):
    named = Counter()
    for seed in range(8):
        drifts = shifted(seed, CALM, after)
        assert len(drifts) == 1, (seed, drifts)
        assert 40 < drifts[0].round <= 50
        assert 38 <= drifts[0].onset <= drifts[0].round
        named[drifts[0].kind] += 1
    assert named[kind] == 8


def test_a_draft_that_bends_elsewhere_is_pair_drift():
    """The recorded pair is flat for x below 0; one that is straight has another slope there, not along the bend."""
    chat = recorded()[1]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        straight = (drawn(rng, 0.55, 0.2, mean=0.0, deviation=1.7) for _ in range(12))
        drifts = watch(chain(chat.resampled(rng, 30), straight))
        assert [drift.kind for drift in drifts] == [DriftKind.PAIR]
        assert 30 < drifts[0].round <= 40
        assert drifts[0].slope > 0.1


def test_the_size_of_a_named_change_covers_the_truth():
    covered = 0
    for seed in range(8):
        (drift,) = shifted(seed, CALM, {**CALM, "slope": 0.7}, rest=10)
        covered += abs(drift.slope - 0.2) < 3 * drift.slope_error
    assert covered >= 7


def test_slopes_within_one_pair_are_no_pair_drift():
    rng = np.random.default_rng(3)
    drifts = watch(drawn(rng, slope=0.51 if (i // 50) % 2 else 0.55, intercept=-0.2) for i in range(200))
    assert not [drift for drift in drifts if drift.kind is DriftKind.PAIR]


def test_another_mix_of_temperatures_is_no_pair_drift():
    """Each segment has a slope of its own; what changes is how much traffic each has."""
    rng = np.random.default_rng(4)

    def mixed(share):
        cold = drawn(rng, 0.9, 0.6, mean=5.0, blocks=int(640 * share), segment=Segment.LOW)
        return cold + drawn(rng, 0.45, -0.2, blocks=640 - int(640 * share), segment=Segment.HIGH)

    drifts = watch(mixed(0.2 if i < 60 else 0.8) for i in range(120))
    assert {drift.kind for drift in drifts} == {DriftKind.WORKLOAD}


def test_no_false_alarm_in_resampled_rounds():
    """`python -m benchmarks.drift_run_length` does the same for as long as it takes to bound the mean run length."""
    chat = recorded()[1]
    assert watch(chat.resampled(np.random.default_rng(0), 2_000)) == []


def test_nothing_is_named_before_there_is_a_baseline():
    rng = np.random.default_rng(5)
    found = detector()
    assert watch((drawn(rng, slope, -0.2, blocks=64) for slope in (0.2, 0.9, 0.2, 0.9)), found) == []
    assert found.baseline is None
    assert set(found.scores.values()) == {0.0}


@pytest.mark.parametrize("x", [0.0, 40.0])
def test_features_that_say_nothing_stay_finite_and_an_intercept_shift_is_workload_drift(x):
    rng = np.random.default_rng(6)
    drifts = watch(drawn(rng, 0.0, 1.5 if i < 60 else 0.5, mean=x, deviation=0.0) for i in range(120))
    assert [drift.kind for drift in drifts] == [DriftKind.WORKLOAD]
    assert np.isfinite([drifts[0].intercept, drifts[0].intercept_error]).all()


def test_rounds_without_rows_change_nothing():
    rng = np.random.default_rng(7)
    found = detector()
    watch((drawn(rng, 0.5, -0.2) for _ in range(20)), found)
    scores = found.scores
    assert watch((np.zeros_like(drawn(rng, 0.5, -0.2)) for _ in range(50)), found) == []
    assert found.scores == scores


def test_trimmed_rounds_leave_the_shares_of_first_drafts_alone():
    rng = np.random.default_rng(8)
    found = detector()
    for i in range(80):
        assert found.update(drawn(rng, 0.5, -0.2, mean=2.0 if i < 40 else 3.0), untrimmed=i < 40) is None


def test_a_snapshot_continues_bit_for_bit():
    rng = np.random.default_rng(9)
    rounds = [drawn(rng, 0.5 if i < 30 else 0.65, -0.2) for i in range(45)]
    whole = detector()
    expected = watch(rounds, whole)
    for cut in (3, 12, 33):
        first = detector()
        before = watch(rounds[:cut], first)
        second = unpack(bytes(pack(first, KINDS)), KINDS)
        assert bytes(pack(second, KINDS)) == bytes(pack(first, KINDS))
        assert before + watch(rounds[cut:], second) == expected
        assert bytes(pack(second, KINDS)) == bytes(pack(whole, KINDS))


def test_merged_bins_keep_knots_and_levels_on_edges():
    edges = EDGES[:: drift_module._MERGED]
    assert NUM_BINS % drift_module._MERGED == 0
    assert {*KNOTS, *LEVELS} <= set(edges)


def test_state_is_small():
    found = DriftDetector(NUM_SLOTS, 64)
    assert len(bytes(pack(found, KINDS))) < 50_000


def test_share_ratio_is_the_binomial_log_likelihood_ratio():
    from scipy.stats import binom

    shares, counts, total = np.array([0.02, 0.5]), np.array([31.0, 300.0]), 640.0
    up, down = share_ratio(counts, total, shares, 0.16, (0.01, 0.99))
    step = 0.16 * np.sqrt(shares * (1 - shares))
    still = binom.logpmf(counts, total, shares)
    np.testing.assert_allclose(up, binom.logpmf(counts, total, shares + step) - still)
    np.testing.assert_allclose(down, binom.logpmf(counts, total, np.maximum(shares - step, 0.01)) - still)


def test_slope_score_is_the_profile_score_of_a_logistic_regression():
    """Against statsmodels: a step from the baseline along the slope, intercepts profiled out, is the GLM's move."""
    import statsmodels.api as sm

    rng = np.random.default_rng(10)
    found = detector()
    watch((drawn(rng, 0.5, -0.2, blocks=6_400) for _ in range(20)), found)
    x = rng.normal(2.0, 2.0, (20_000, 1))
    accepted = (rng.random(x.shape) < 1 / (1 + np.exp(-(0.53 * x + 0.4)))).astype(int)
    padded = np.concatenate((x, np.zeros((len(x), K - 1))), axis=1)
    rows = sums(padded, accepted[:, 0])
    rows[:, :, 1:] = 0.0
    gradient, information, _ = evidence(found.baseline, found.baseline.score(rows), untrimmed=True)
    glm = sm.GLM(accepted[:, 0], sm.add_constant(x), family=sm.families.Binomial()).fit()
    step = gradient[SLOPE] / information[SLOPE]
    assert found.baseline.line_slope + step == pytest.approx(glm.params[1], abs=0.02)
    assert information[SLOPE] ** -0.5 == pytest.approx(glm.bse[1], rel=0.1)


def test_river_agrees_on_the_same_stream_of_slope_scores():
    """Page–Hinkley with our size and threshold names the same shift within a few rounds of us; ADWIN never earlier."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rounds = [drawn(rng, 0.5 if i < 60 else 0.65, -0.2) for i in range(90)]
        (drift,) = watch(rounds)
        frozen = detector()
        watch(rounds[:40], frozen)
        scores = []
        for one in rounds:
            gradient, information, _ = evidence(frozen.baseline, frozen.baseline.score(one), untrimmed=True)
            scores.append(gradient[SLOPE] / information[SLOPE])
        # In Δω: an excess of 0.06 a round is size, 17 nats of 2·0.06·J a round is about 0.3 at J of 500.
        hinkley = PageHinkley(min_instances=10, delta=0.06, threshold=0.3, alpha=1.0)
        adwin = ADWIN(delta=1e-5, clock=1, min_window_length=3, grace_period=5)
        when = {}
        for name, other in (("page-hinkley", hinkley), ("adwin", adwin)):
            for i, score in enumerate(scores, start=1):
                other.update(score)
                if other.drift_detected:
                    when.setdefault(name, i)
        assert drift.kind is DriftKind.PAIR
        assert abs(when["page-hinkley"] - drift.round) <= 5
        assert when.get("adwin", len(rounds)) >= drift.round


def test_a_pair_names_its_drift_and_goes_on_doing_so_after_a_restart():
    from fit_streams import blocks_of, close

    from acceptd.types import prior
    from estimator_service.fit.model import PairModel

    rng = np.random.default_rng(11)
    model, in_force, found = PairModel(4), prior(4), []
    for i in range(60):
        if i == 35:
            model = PairModel.from_bytes(model.to_bytes())
        batches = [blocks_of(rng, 320, 0.5 if i < 40 else 0.7, (0.2, 0.0, -0.2, -0.4)) for _ in range(2)]
        outcome, in_force = close(model, batches, in_force)
        found += outcome.drifts
        if i == 45:
            assert any("pair drift" in notice for notice in outcome.notices)
            assert set(outcome.drift_scores) == {"pair", "workload"}
    assert [drift.kind for drift in found] == [DriftKind.PAIR]
    assert 40 < found[0].round <= 50
