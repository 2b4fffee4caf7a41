"""What a pair's model learns: link and segments where they are real, a shift within five rounds, and its snapshot."""

import json
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from fit_streams import blocks_of, close, features, log_loss, observations

from acceptd.errors import ConfigError
from acceptd.limits import MAX_SLOPE
from acceptd.segments import NUM_SEGMENTS, Segment
from acceptd.types import Version, prior
from estimator_service.fit.histogram import NUM_SLOTS, UNKNOWN
from estimator_service.fit.model import PairModel
from estimator_service.fit.predict import Predictor, sigmoid
from estimator_service.fit.settings import FitSettings

K = 5
SLOPE, INTERCEPTS = 0.6, [0.4, 0.2, 0.0, -0.2, -0.4]


def bent(x):
    """A link with a bend: nothing to learn from x below 1, much above."""
    return 0.1 * x + 0.9 * np.maximum(x - 1.0, 0.0) - 0.7


def excess(coefficients, link, segment, rng, blocks=4_000):
    """Log-loss above the truth's own, nats an observation."""
    x = features(rng, blocks, K)
    truth = sigmoid(link(x))
    slot = np.full(x.size, segment)
    position = np.broadcast_to(np.arange(K), x.shape).ravel()
    guess = sigmoid(Predictor.of(coefficients).log_odds(slot, position, x.ravel())).reshape(x.shape)
    return float((truth * np.log(truth / guess) + (1 - truth) * np.log((1 - truth) / (1 - guess))).mean())


def test_link_is_published_where_acceptance_bends():
    rng = np.random.default_rng(0)
    model, in_force = PairModel(K), prior(K)
    for _ in range(12):
        x = features(rng, 640, K)
        rows = observations(x, rng.random(x.shape) < sigmoid(bent(x)), segments=np.full(640, Segment.HIGH))
        outcome, in_force = close(model, [rows], in_force)
    assert outcome.link == "link"
    assert 1 <= len(in_force.knots) <= 8
    line = excess(in_force.straight(), bent, Segment.HIGH, rng)
    assert excess(in_force, bent, Segment.HIGH, rng) < line / 3


def test_line_is_enough_where_acceptance_is_logistic():
    rng = np.random.default_rng(1)
    model, in_force = PairModel(K), prior(K)
    original = PairModel(K, FitSettings(method="round"))
    start = prior(K)
    for _ in range(15):
        rows = blocks_of(rng, 640, SLOPE, INTERCEPTS, segments=np.full(640, Segment.HIGH))
        _, in_force = close(model, [rows], in_force)
        _, start = close(original, [rows], start)
    ours, best = log_loss(in_force, SLOPE, INTERCEPTS, segment=Segment.HIGH)
    theirs, _ = log_loss(start, SLOPE, INTERCEPTS)
    assert ours <= theirs
    assert ours <= best * 1.005


@pytest.mark.parametrize("slope", [0.44, 0.6, 0.83])
@pytest.mark.parametrize("level", [-1.0, 0.0, 0.6])
def test_never_above_the_original_round_and_calibrated(slope, level):
    rng = np.random.default_rng(2)
    intercepts = [level] * K
    settings = (FitSettings(), FitSettings(method="round"))
    models, in_force = [PairModel(K, s) for s in settings], [prior(K)] * 2
    losses, gaps = np.zeros(2), []
    for i in range(15):
        rows = blocks_of(rng, 640, slope, intercepts, segments=np.full(640, Segment.HIGH))
        for j in range(2):
            outcome, in_force[j] = close(models[j], [rows], in_force[j])
            if i >= 2:
                losses[j] += outcome.calibration.log_loss
                if j == 0:
                    gaps.append(outcome.calibration.gap)
    assert losses[0] <= losses[1]
    assert abs(np.mean(gaps)) < 0.01


def test_segments_get_their_own_coefficients_and_a_new_one_starts_from_the_pair():
    rng = np.random.default_rng(3)
    links = {Segment.LOW: lambda x: 0.15 * x + 0.8, Segment.HIGH: lambda x: 0.7 * x - 0.4}
    model, in_force = PairModel(K), prior(K)
    for _ in range(12):
        x = features(rng, 640, K)
        segment = rng.choice(list(links), 640)
        z = np.where((segment == Segment.LOW)[:, None], links[Segment.LOW](x), links[Segment.HIGH](x))
        rows = observations(x, rng.random(x.shape) < sigmoid(z), segments=segment)
        outcome, in_force = close(model, [rows], in_force)
    assert outcome.segmented
    for segment, link in links.items():
        assert excess(in_force, link, segment, rng) < 0.005 < excess(in_force.straight(), link, segment, rng)
    assert set(in_force.segments) == set(range(NUM_SEGMENTS))
    for value in in_force.of(Segment.MID).intercepts:
        assert abs(value) < 2


@pytest.mark.parametrize("seed", range(6))
def test_few_observations_a_segment_cost_at_most_one_percent(seed):
    rng = np.random.default_rng(seed)
    model, in_force = PairModel(K), prior(K)
    for _ in range(15):
        rows = blocks_of(rng, 100, SLOPE, INTERCEPTS, segments=rng.integers(0, NUM_SEGMENTS, 100))
        _, in_force = close(model, [rows], in_force)
        plain = log_loss(in_force.straight(), SLOPE, INTERCEPTS, blocks=4_000)[0]
        for segment in range(NUM_SEGMENTS):
            assert log_loss(in_force, SLOPE, INTERCEPTS, segment=segment, blocks=4_000)[0] <= plain * 1.01


def test_a_shift_of_workload_is_followed_within_five_rounds():
    rng = np.random.default_rng(4)
    model, in_force = PairModel(K), prior(K)
    chat = [b - 1.0 for b in INTERCEPTS]
    for intercepts, rounds in ((INTERCEPTS, 30), (chat, 5)):
        for _ in range(rounds):
            rows = blocks_of(rng, 640, SLOPE, intercepts, segments=np.full(640, Segment.HIGH))
            _, in_force = close(model, [rows], in_force)
    ours, steady = log_loss(in_force, SLOPE, chat, segment=Segment.HIGH)
    assert ours <= steady * 1.02


def test_workload_label_moves_intercepts_and_keeps_the_slope():
    rng = np.random.default_rng(5)
    model, in_force = PairModel(K, FitSettings(method="line")), prior(K)
    chat = [b - 1.0 for b in INTERCEPTS]
    for _ in range(12):
        batches = [blocks_of(rng, 320, SLOPE, INTERCEPTS), blocks_of(rng, 320, SLOPE, chat)]
        outcome, in_force = close(model, batches, in_force, workload=["code", "chat"])
    found = outcome.coefficients
    assert set(found) == {"", "code", "chat"}
    assert found["code"].line.slopes == found["chat"].line.slopes == found[""].line.slopes
    assert log_loss(found["code"], SLOPE, INTERCEPTS)[0] < log_loss(found[""], SLOPE, INTERCEPTS)[0]
    assert found["chat"].line.intercepts == pytest.approx(chat, abs=0.25)


def test_more_labels_than_there_is_room_for_are_served_by_the_pair_and_named():
    rng = np.random.default_rng(6)
    names = [f"label{i:02d}" for i in range(12)]
    batches = [blocks_of(rng, 50, SLOPE, INTERCEPTS) for _ in names]
    outcome, _ = close(PairModel(K), batches, prior(K), workload=names)
    assert len(outcome.coefficients) == 8
    assert any("too many workload labels" in notice for notice in outcome.notices)


def test_a_label_takes_the_place_of_one_that_has_faded():
    """Labels change with deployments: the first seven of a pair's life must not be all it ever keeps apart."""
    rng = np.random.default_rng(11)
    model, in_force = PairModel(K), prior(K)

    def round_of(elapsed, **blocks):
        for label, count in blocks.items():
            model.observe(blocks_of(rng, count, SLOPE, INTERCEPTS), workload=label, worker="w", used=in_force)
        return model.close_round(elapsed)

    round_of(10.0, **{f"old{i}": 300 for i in range(7)})
    outcome = round_of(10.0, new=50)
    assert "new" not in outcome.coefficients, "less was seen of it than is left of each of the others"
    assert any("too many workload labels" in notice for notice in outcome.notices)
    outcome = round_of(5 * 86_400.0, old3=300, new=600)
    assert {"new", "old3"} < set(outcome.coefficients)
    assert len(outcome.coefficients) == 1 + 7
    assert not any("too many workload labels" in notice for notice in outcome.notices)


def test_a_fit_that_is_worse_on_the_newest_round_is_held():
    rng = np.random.default_rng(7)
    model = PairModel(K, FitSettings(method="line", recent_half_life_observations=1e9, half_life_observations=1e9))
    for _ in range(10):
        model.observe(blocks_of(rng, 640, SLOPE, INTERCEPTS), used=prior(K))
        good = model.close_round(0.0).coefficients[""]
    far = [b - 1.5 for b in INTERCEPTS]
    better = PairModel(K)
    for _ in range(4):
        better.observe(blocks_of(rng, 640, SLOPE, far), used=good)
        right = better.close_round(0.0).coefficients[""]
    model.observe(blocks_of(rng, 640, SLOPE, far), used=right)
    outcome = model.close_round(0.0, in_force={"": right})
    assert outcome.held == "worse than the coefficients in force on the newest round"


def test_first_rounds_are_shorter():
    model = PairModel(K)
    lengths = []
    for _ in range(7):
        lengths.append(model.round_blocks(640))
        model.close_round(0.0)
    assert lengths == [40, 80, 160, 360, 640, 640, 640]
    assert PairModel(K, FitSettings(method="round")).round_blocks(640) == 640


def test_snapshot_continues_bit_by_bit_with_an_open_round():
    rng = np.random.default_rng(8)

    def batch():
        return blocks_of(rng, 200, SLOPE, INTERCEPTS, segments=rng.integers(0, NUM_SEGMENTS, 200))

    model, in_force = PairModel(K), prior(K)
    for _ in range(6):
        _, in_force = close(model, [batch(), batch()], in_force, worker=["a", "b"], workload=["", "code"])
    model.observe(batch(), used=in_force, worker="a", workload="chat")
    copy = PairModel.from_bytes(model.to_bytes())
    assert copy.pending_blocks == model.pending_blocks == 200
    rest = batch()
    outcomes = []
    for each in (model, copy):
        each.observe(rest, used=in_force, worker="b")
        outcomes.append(each.close_round(3.0, in_force={"": in_force}))
    assert repr(outcomes[0]) == repr(outcomes[1])


@pytest.mark.parametrize("every", [20, 101])
def test_the_fit_does_not_depend_on_when_snapshots_were_taken(every):
    """Small batches of two labels, two versions and explored rows, more than a journal holds, one worker at fault."""
    rng = np.random.default_rng(15)
    versions = [prior(K), replace(prior(K), version=Version(1, 1))]
    batches = []
    for i in range(1500):
        rows = blocks_of(rng, 4, SLOPE if i % 5 else -SLOPE, INTERCEPTS)
        if i % 3 == 0:
            rows = replace(rows, explored=rows.admitted, propensities=np.full(4, 0.5, np.float32))
        batches.append((rows, versions[i % 2], ("", "code")[i % 4 == 0], f"w{i % 5}"))
    steady, watched = PairModel(K), PairModel(K)
    outcomes = []
    for model in (steady, watched):
        for i, (rows, used, workload, worker) in enumerate(batches):
            model.observe(rows, used=used, workload=workload, worker=worker)
            if model is watched and i % every == 0:
                model = PairModel.from_bytes(model.to_bytes())  # noqa: PLW2901
                watched = model
            if i % 700 == 699:
                outcome = model.close_round(1.0)
        outcomes.append((repr(outcome.coefficients), outcome.quarantined, model.statistics().tobytes()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"acceptd-pair", b"acceptd-pair\x63abc", b"acceptd-pair\x01abc"])
def test_what_is_no_snapshot_is_refused(data):
    with pytest.raises(ValueError, match="snapshot"):
        PairModel.from_bytes(data)


def test_truncated_snapshot_is_refused():
    data = PairModel(K).to_bytes()
    for length in range(0, len(data), 97):
        with pytest.raises(ValueError, match="snapshot"):
            PairModel.from_bytes(data[:length])


def edited(data, edit):
    """A snapshot whose description was changed, whole otherwise."""
    body = zlib.decompress(data[13:])
    size = int.from_bytes(body[:8], "little")
    head = json.loads(body[8 : 8 + size])
    edit(head)
    text = json.dumps(head).encode()
    return data[:13] + zlib.compress(len(text).to_bytes(8, "little") + text + body[8 + size :])


def items(tree):
    """All of a tree's [name, value] lists that name attributes."""
    if isinstance(tree, dict):
        if "kind" in tree:
            yield tree["kind"], tree["own"]["dict"]
        for value in tree.values():
            yield from items(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from items(value)


def test_a_snapshot_whose_parts_lack_or_exceed_an_attribute_is_refused():
    """It could be read, and fail at some later round: each kind, each attribute."""
    rng = np.random.default_rng(14)
    model, in_force = PairModel(K), prior(K)
    for _ in range(3):
        batch = blocks_of(rng, 200, SLOPE, INTERCEPTS)
        _, in_force = close(model, [batch, batch], in_force, worker=["a", "b"], workload=["", "code"])
    model.observe(batch, used=in_force)
    data = model.to_bytes()
    kinds = {}

    def find(head):
        for kind, own in items(head["tree"]):
            kinds[kind] = [name for name, _ in own]

    assert PairModel.from_bytes(edited(data, find)).to_bytes() == data
    assert {"Points", "CalibrationSums", "DriftDetector", "Windows", "WorkerRecord", "Stretch"} <= kinds.keys()
    for kind, names in kinds.items():
        for name in names:

            def misspell(head, kind=kind, name=name):
                own = next(own for each, own in items(head["tree"]) if each == kind)
                next(entry for entry in own if entry[0] == name)[0] = f"{name}_"

            with pytest.raises(ValueError, match="damaged"):
                PairModel.from_bytes(edited(data, misspell))


@pytest.mark.parametrize("other", [["<f8", [3, NUM_SLOTS, 128, K]], ["<i8", [3, NUM_SLOTS, K, 128]], ["<f8", [3, 640]]])
def test_a_snapshot_whose_tables_have_another_shape_or_type_is_refused(other):
    def reshape(head):
        at = head["arrays"].index(["<f8", [3, NUM_SLOTS, K, 128]])
        head["arrays"][at] = other

    data = PairModel(K).to_bytes()
    with pytest.raises(ValueError, match="damaged"):
        PairModel.from_bytes(edited(data, reshape))


@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_memory_stays_below_two_megabytes_whatever_the_traffic(k):
    rng = np.random.default_rng(9)

    def batch(blocks):
        return observations(
            rng.uniform(-40, 40, (blocks, k)),
            rng.random((blocks, k)) < 0.95,
            segments=rng.integers(0, NUM_SEGMENTS, blocks),
            explored=np.full(blocks, k),
            propensities=np.ones(blocks),
        )

    large, small = [batch(2_000) for _ in range(4)], [batch(16) for _ in range(4)]
    used = prior(k)
    np.median(np.zeros(3))  # loads numpy.ma, which is not the pair's
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    model = PairModel(k)
    most = 0
    for i in range(4000):
        batches = large if i < 40 else small
        model.observe(batches[i % 4], used=used, worker=f"w{i % 50}", workload=f"label{i % 10}")
        if i < 40 and i % 10 == 9:
            outcome = model.close_round(1.0)
            used = outcome.coefficients[""]
        del batches
        most = max(most, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert most < 2_000_000, most


def test_memory_of_a_worker_is_small():
    rng = np.random.default_rng(10)
    model = PairModel(K)
    rows = blocks_of(rng, 40, SLOPE, INTERCEPTS)
    sizes = []
    for start in (0, 500):
        for i in range(start, start + 500):
            model.observe(rows, used=prior(K), worker=f"w{i}")
        model.close_round(1.0)
        tracemalloc.start()
        copy = PairModel.from_bytes(model.to_bytes())
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert copy.rounds == model.rounds
    assert (sizes[1] - sizes[0]) / 500 < 100 * K * 8


def test_coefficients_are_float32_exact_and_bounded():
    rng = np.random.default_rng(11)
    outcome, value = close(PairModel(K), [blocks_of(rng, 640, 0.7, INTERCEPTS)], prior(K))
    value.validate(K)
    for number in (*value.line.slopes, *value.line.intercepts):
        assert number == float(np.float32(number))
    assert 0 <= value.line.slopes[0] <= MAX_SLOPE
    assert outcome.standard_errors[0] > 0


def test_rows_of_unknown_segment_are_served_by_the_line():
    rng = np.random.default_rng(12)
    model, in_force = PairModel(K), prior(K)
    for _ in range(8):
        rows = blocks_of(rng, 640, SLOPE, INTERCEPTS)
        _, in_force = close(model, [rows], in_force)
    predictor = Predictor.of(in_force)
    x = np.array([-3.0, 0.0, 5.0])
    zero = np.zeros(3, int)
    expected = in_force.line.slopes[0] * x + in_force.line.intercepts[0]
    assert predictor.log_odds(zero + UNKNOWN, zero, x) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "value"), [("method", "newton"), ("half_life_seconds", 0.0), ("slope_deviation", -1.0)]
)
def test_wrong_setting_is_named(name, value):
    with pytest.raises(ConfigError, match=name):
        FitSettings(**{name: value})


def test_drift_score_of_a_shifted_round_is_far_from_zero_and_of_a_steady_one_is_not():
    rng = np.random.default_rng(13)
    model, in_force = PairModel(K, FitSettings(method="line")), prior(K)
    for _ in range(15):
        outcome, in_force = close(model, [blocks_of(rng, 64, SLOPE, INTERCEPTS) for _ in range(10)], in_force)
    assert abs(outcome.shift.slope) < 4 * outcome.shift.slope_error
    moved = [blocks_of(rng, 64, SLOPE, [b - 1.0 for b in INTERCEPTS]) for _ in range(10)]
    outcome, _ = close(model, moved, in_force)
    assert np.array(outcome.shift.intercepts)[0] < -5 * outcome.shift.intercept_errors[0]
    assert abs(outcome.shift.slope) < 4 * outcome.shift.slope_error


def test_a_snapshot_that_expands_without_end_is_refused_at_a_bound():
    """Bytes that compress a thousandfold: an import of a few megabytes must not cost gigabytes."""
    model = PairModel(3)
    head = model.to_bytes()[:13]
    bomb = head + zlib.compress(bytes(400_000_000), 9)
    assert len(bomb) < 500_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="larger than"):
            PairModel.from_bytes(bomb)
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="end is missing"):
        PairModel.from_bytes(model.to_bytes()[:-3])
