"""A bad power is seen behind a constant, a leak behind noise; and what is neither is not called one."""

import math
import random

import pytest

from bench.fits import growth, trend

SIZES = (10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("constant", [0.0, 50.0])
def test_the_exponent_of_a_curve_is_found(*, power: float, constant: float) -> None:
    found = growth(SIZES, [constant + size**power for size in SIZES])
    assert found.exponent == pytest.approx(power, abs=0.03)
    assert found.is_within is (power <= 1)


def test_n_log_n_is_within_and_its_neighbours_are_told_apart() -> None:
    assert growth(SIZES, [size * math.log(size) for size in SIZES]).is_within
    assert not growth(SIZES, [size**1.3 for size in SIZES]).is_within


def test_noise_around_a_level_is_flat() -> None:
    found = growth(SIZES, [100, 96, 111, 104, 108])
    assert (found.is_flat, found.is_within, found.exponent) == (True, True, 0.0)


def test_a_peak_before_the_end_is_no_flat_curve() -> None:
    assert not growth(SIZES, [100, 100, 100, 300, 110]).is_flat


def noisy(chance: random.Random, count: int, slope: float) -> list[float]:
    return [100 + slope * at + chance.gauss(0, 5) + (200 if chance.random() < 0.02 else 0) for at in range(count)]


@pytest.mark.parametrize("count", [12, 60, 600])
def test_a_slope_is_within_its_bounds(*, count: int) -> None:
    chance = random.Random(count)
    for slope in (0.0, 0.1, -0.1):
        found = trend(range(count), noisy(chance, count, slope))
        assert found.low <= slope * (count - 1) <= found.high
        assert found.low <= found.growth <= found.high


def test_a_leak_of_one_each_is_certain_after_a_dozen_samples() -> None:
    assert trend(range(12), [20 + at + at % 3 for at in range(12)]).low > 8


def test_a_flat_count_has_no_growth_at_all() -> None:
    found = trend(range(100), [7.0 + (at % 10 == 0) for at in range(100)])
    assert found.growth == 0
    assert found.low <= 0 <= found.high
