"""predict: kernels and torch reference against float64 and the formula, on the shapes that drafters use."""

import numpy as np
import pytest
import torch
from blocks import float64_feature, probability, random_block, views

from acceptd.segments import segment_of
from vllm_client_hook import kernels, reference
from vllm_client_hook.labels import NARROW_BIT
from vllm_client_hook.slots import NOT_FINITE, NOT_PREDICTED, PREDICTED, Slots

BACKENDS = pytest.mark.parametrize("backend", [kernels, reference], ids=["triton", "torch"])
R, K = 6, 4


def run(backend, logits, temperatures, *, idx=None, step=0, block=None, flags=None, full=False, slots=None):
    slots = slots or Slots(R, K, "cpu", full=full)
    if flags is not None:
        slots.flags[: len(flags)] = torch.tensor(flags, dtype=torch.uint8)
    count = len(logits)
    idx = torch.arange(count) if idx is None else torch.tensor(idx)
    step = torch.tensor(step)
    confidence = torch.full((R, K), -1.0)
    temperature = torch.zeros(R)
    temperature[: len(temperatures)] = torch.tensor(temperatures)
    words, floats = views(block or random_block(np.random.default_rng(0), K))
    backend.predict(slots, words, floats, logits, idx, step, confidence, temperature)
    return slots, confidence


def random_logits(rng, rows, vocab, scale, dtype):
    return torch.from_numpy(rng.normal(0, scale, (rows, vocab)).astype(np.float32)).to(dtype)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab", [1, 2, 320, 4096, 4097, 32000, 129280])
def test_feature_is_right_to_a_thousandth_against_float64(backend, dtype, vocab):
    rng = np.random.default_rng(vocab)
    temperatures = [1.0, 0.3, 0.05, 0.0, 1.7, 0.7]
    logits = random_logits(rng, R, vocab, 3.0, dtype)
    logits[0, 0] = 30.0
    slots, _ = run(backend, logits, temperatures)
    for row, temperature in enumerate(temperatures):
        exact = float64_feature(logits[row].double().numpy(), temperature)
        got = slots.features[row, 0].item()
        assert abs(got) <= 40
        if abs(exact) < 30:
            assert got == pytest.approx(exact, abs=1e-3)


@BACKENDS
def test_the_complement_survives_where_subtracting_from_one_loses_it(backend):
    gaps = [1.0, 12.0, 17.0, 20.0, 25.0, 29.0]
    logits = torch.zeros(len(gaps), 2)
    logits[:, 1] = torch.tensor(gaps)
    slots, _ = run(backend, logits, [1.0] * len(gaps))
    assert slots.features[: len(gaps), 0].tolist() == pytest.approx(gaps, abs=1e-3)


@BACKENDS
def test_a_tie_for_the_largest_excludes_one_token_only(backend):
    logits = torch.full((2, 5000), -50.0)
    logits[0, [3, 4]] = 2.0  # within one block of the vocabulary
    logits[1, [3, 4999]] = 2.0  # across two
    slots, _ = run(backend, logits, [1.0, 1.0])
    assert slots.features[:2, 0].tolist() == pytest.approx([0.0, 0.0], abs=1e-5)


@BACKENDS
def test_rows_without_a_distribution_are_finite_and_marked(backend):
    inf, nan = float("inf"), float("nan")
    logits = torch.zeros(R, 5000)
    logits[0] = -inf
    logits[1] = -inf
    logits[1, 4500] = 1.0  # one token with all the mass
    logits[2, 7] = nan
    logits[3, 7] = inf
    logits[4, [7, 4998]] = inf
    slots, confidence = run(backend, logits, [0.7] * R)
    assert torch.isfinite(slots.features[:R, 0]).all()
    assert slots.features[1, 0] == 40
    assert slots.features[3, 0] == 40
    assert slots.features[5, 0].item() == pytest.approx(-np.log(4999), abs=1e-4)
    assert slots.valid[:R, 0].tolist() == [NOT_FINITE, PREDICTED, NOT_FINITE, PREDICTED, NOT_FINITE, PREDICTED]
    assert torch.isfinite(confidence[:R, 0]).all()


@BACKENDS
def test_padded_rows_touch_nothing(backend):
    rng = np.random.default_rng(3)
    slots, confidence = run(backend, random_logits(rng, 4, 50, 2, torch.float32), [1.0] * R, idx=[2, -1, 0, -1], step=1)
    assert (confidence[[1, 3]] == -1).all()
    assert (confidence[[0, 2], 1] > 0).all()
    assert slots.valid[:R].sum(dim=1).tolist() == [1, 0, 1, 0, 0, 0]
    assert slots.features[1].abs().sum() == 0


@BACKENDS
def test_a_step_for_each_row_fills_a_requests_whole_block(backend):
    # The block-parallel drafters' shape: K consecutive rows a request, one position each.
    rng = np.random.default_rng(4)
    logits = random_logits(rng, 3 * K, 700, 3, torch.bfloat16)
    idx = np.repeat([4, -1, 1], K).tolist()
    block = random_block(rng, K)
    slots, confidence = run(backend, logits, [0.8] * R, idx=idx, step=list(range(K)) * 3, block=block)
    for place, slot in [(0, 4), (2, 1)]:
        for k in range(K):
            x = float64_feature(logits[place * K + k].double().numpy(), 0.8)
            assert slots.features[slot, k].item() == pytest.approx(x, abs=1e-3)
            expected = probability(block, x, int(segment_of(0.8)), k)
            assert confidence[place, k].item() == pytest.approx(expected, abs=1e-3)
    assert (confidence[1] == -1).all()
    assert slots.valid[[0, 2, 3, 5]].sum() == 0


@BACKENDS
@pytest.mark.parametrize("narrow", [False, True])
def test_each_rows_segment_and_knots_follow_the_protocol(backend, narrow):
    temperatures = [0.0, 0.5, 0.50001, 0.9, 0.90001, 1.2]
    rng = np.random.default_rng(5)
    block = random_block(rng, K, index=77)
    logits = random_logits(rng, R, 300, 4, torch.float32)
    flags = [NARROW_BIT | 9 if narrow else 9] * R
    slots, confidence = run(backend, logits, temperatures, step=2, block=block, flags=flags)
    for row, temperature in enumerate(temperatures):
        segment = int(segment_of(temperature, narrow=narrow))
        assert slots.segment[row] == segment
        expected = probability(block, slots.features[row, 2].item(), segment, 2)
        assert confidence[row, 2].item() == pytest.approx(expected, abs=1e-5)
        assert slots.predictions[row, 2] == confidence[row, 2]
    assert slots.version[:R].tolist() == [77] * R


def test_kernel_and_reference_agree():
    rng = np.random.default_rng(6)
    logits = random_logits(rng, R, 9000, 4, torch.float16)
    logits[2] = -torch.inf
    logits[2, 8000] = 0
    pair = [run(backend, logits, [1, 0.2, 0.6, 0, 1.5, 0.95], full=True) for backend in (kernels, reference)]
    (a, confidence_a), (b, confidence_b) = pair
    for name in ("features", "predictions", "entropies", "margins"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-5, atol=1e-5)
    assert torch.equal(a.valid, b.valid)
    torch.testing.assert_close(confidence_a, confidence_b, rtol=1e-5, atol=1e-6)


@BACKENDS
def test_entropy_and_margin_against_float64(backend):
    rng = np.random.default_rng(7)
    logits = random_logits(rng, R, 9000, 4, torch.float32)
    temperatures = [1, 0.2, 0.6, 0, 1.5, 0.95]
    slots, _ = run(backend, logits, temperatures, full=True)
    for row, temperature in enumerate(temperatures):
        z = logits[row].double().numpy() / (temperature or 1.0)
        log_q = z - z.max() - np.log(np.exp(z - z.max()).sum())
        assert slots.entropies[row, 0].item() == pytest.approx(-(np.exp(log_q) * log_q).sum(), abs=1e-4)
        first, second = np.sort(log_q)[::-1][:2]
        assert slots.margins[row, 0].item() == pytest.approx(first - second, abs=1e-4)


@BACKENDS
def test_prediction_sees_coefficients_written_in_place(backend):
    rng = np.random.default_rng(8)
    slots = Slots(R, K, "cpu", full=False)
    words, floats = views(random_block(rng, K, index=1))
    confidence, temperature = torch.zeros(R, K), torch.ones(R)
    args = (
        random_logits(rng, 2, 100, 3, torch.float32),
        torch.tensor([0, 1]),
        torch.tensor(0),
        confidence,
        temperature,
    )
    backend.predict(slots, words, floats, *args)
    before = confidence.clone()
    newer = random_block(rng, K, index=2)
    words.copy_(torch.from_numpy(newer.encode()))
    backend.predict(slots, words, floats, *args)
    assert not torch.equal(before, confidence)
    expected = probability(newer, slots.features[0, 0].item(), 3, 0)
    assert confidence[0, 0].item() == pytest.approx(expected, abs=1e-5)
    assert slots.version[:2].tolist() == [2, 2]
    assert slots.valid[2:, :].sum() == NOT_PREDICTED
