"""Cost tables from profiles: clean ones as they are, flawed ones repaired or refused."""

from __future__ import annotations

import numpy as np
import pytest

from acceptd.errors import ConfigError
from vllm_client_hook.costs import CostTable, build_cost_table, non_decreasing

DRAFT = [(1, 1.0), (8, 1.2)]


def build(verify: list[tuple[int, float]], capture_limit: int = 0, max_tokens: int = 64) -> CostTable:
    return build_cost_table(DRAFT, verify, max_requests=8, max_tokens=max_tokens, capture_limit=capture_limit)


def test_padded_below_the_capture_limit_and_continuous_above() -> None:
    table = build([(8, 2.0), (16, 3.0), (32, 6.0), (64, 10.0)], capture_limit=16)
    assert table.verify_ms[[1, 8, 9, 16]].tolist() == [2.0, 2.0, 3.0, 3.0]
    assert table.verify_ms[[17, 32, 48, 64]].tolist() == [6.0, 6.0, 8.0, 10.0]
    assert table.notices == ()
    assert table.can_trim


def test_several_samples_a_size_give_their_median() -> None:
    table = build([(8, 2.0), (8, 2.2), (8, 90.0), (64, 4.0)])
    assert table.verify_ms[8] == 2.2


def test_a_shape_that_cannot_be_scheduled_is_refused_and_named() -> None:
    """cases.md 20 (vLLM 54046)."""
    table = build([(8, 2.0), (64, 4.0), (65, 0.1), (0, 0.1)])
    assert table.verify_ms[64] == 4.0
    assert table.verify_ms.shape == (65,)
    assert table.notices == ("verify curve: refused sizes that cannot be scheduled: 0, 65; accepted: 1 to 64",)
    with pytest.raises(ConfigError, match="65 tokens: cannot be scheduled; accepted: 0 to 64"):
        table.step_ms(1, 65)
    with pytest.raises(ConfigError, match="9 requests"):
        table.step_ms(9, 1)
    with pytest.raises(ConfigError, match="verify curve has no usable sample; accepted: sizes 1 to 64"):
        build([(65, 1.0), (8, float("nan"))])


def test_one_size_never_makes_larger_batches_free() -> None:
    """cases.md 20 (local-inference-lab/vllm 748)."""
    table = build([(8, 2.0)])
    assert table.verify_ms[8] == 2.0
    assert (np.diff(table.verify_ms[8:]) > 0).all()
    assert table.verify_ms[64] == pytest.approx(16.0)
    assert any("one size" in notice for notice in table.notices)


def test_a_flat_end_is_not_extrapolated_flat() -> None:
    table = build([(8, 2.0), (16, 4.0), (32, 4.0)])
    assert table.verify_ms[64] == pytest.approx(4.0 + 32 * (4.0 - 2.0) / (32 - 8))


def test_a_flat_table_is_reported() -> None:
    """cases.md 20 (SGLang 35413)."""
    table = build([(8, 5.0), (64, 5.01)])
    assert not table.can_trim
    assert table.notices[-1].startswith("cannot trim: verifying 64 tokens takes 5.01 ms")


@pytest.mark.parametrize("at", [1, 2, 3])
def test_one_spike_does_not_dig_a_hole(at: int) -> None:
    """cases.md 20 (vLLM 52057): past a spike each further token costs what it costs without the spike."""
    sizes = [8, 16, 24, 32, 48, 64]
    times = [2.0, 3.0, 4.0, 5.0, 7.0, 9.0]
    clean = build(list(zip(sizes, times, strict=True)))
    times[at] = 100.0
    table = build(list(zip(sizes, times, strict=True)))
    after = sizes[at + 1]
    assert (table.verify_ms[after:] == clean.verify_ms[after:]).all()
    assert table.verify_ms.max() == clean.verify_ms.max()
    assert any("smoothed" in notice for notice in table.notices)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_one_dip_does_not_dig_a_hole(at: int) -> None:
    sizes = [8, 16, 24, 32, 48, 64]
    times = [2.0, 3.0, 4.0, 5.0, 7.0, 9.0]
    times[at] = 0.1
    table = build(list(zip(sizes, times, strict=True)))
    assert table.verify_ms[1] >= 2.0
    assert (np.diff(table.verify_ms) >= 0).all()


def test_isotonic_values_by_hand() -> None:
    assert non_decreasing([1, 2, 3]) == [1, 2, 3]
    assert non_decreasing([3, 2, 1]) == [2, 2, 2]
    assert non_decreasing([1, 5, 2, 6]) == [1, 2, 2, 6]
    assert non_decreasing([]) == []


def test_isotonic_fit_has_the_least_absolute_error() -> None:
    """Against every non-decreasing sequence over the same values."""
    import itertools

    rng = np.random.default_rng(3)
    for _ in range(50):
        values = rng.integers(0, 6, 5).tolist()
        fitted = non_decreasing(values)
        best = min(
            sum(abs(v - c) for v, c in zip(values, candidate, strict=True))
            for candidate in itertools.combinations_with_replacement(range(6), 5)
        )
        assert fitted == sorted(fitted)
        assert sum(abs(v - f) for v, f in zip(values, fitted, strict=True)) == best


@pytest.mark.parametrize(
    ("draft", "verify"),
    [([1.0], [1.0, 2.0]), ([0.0, -1.0], [1.0, 2.0]), ([0.0, 0.0], [0.0, 1.0]), ([0.0, 0.0], [1.0, float("inf")])],
)
def test_a_table_no_argmax_can_use_is_refused(draft: list[float], verify: list[float]) -> None:
    with pytest.raises(ConfigError, match="cost table: accepted"):
        CostTable(np.array(draft), np.array(verify))
