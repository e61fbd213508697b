"""What measured points say: how a cost grows with its cause, and whether something watched over time grows. Pure.

A curve is judged by the exponent of its growth; something watched by Sen's slope, the median of the slopes of all
pairs, whose confidence comes from ranks (Sen 1968), so that neither a spike nor a skewed noise moves it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

FLAT: Final = 1.25  # a cost that has grown by no more over the whole curve has not grown
TOLERANCE: Final = 0.1  # of an exponent, for noise
DECADES: Final = 1.5  # of the cause, up to its largest value, that the exponent is fitted to
BLOCKS: Final = 30  # neighbouring samples are alike: so many means of them are compared instead
Z: Final = 2.576  # two-sided 99 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`ratio`: the higher of the last two costs to the first. `exponent`: k of a + b·n^k; `allowed`: of n·log n."""

    ratio: float
    exponent: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.ratio <= FLAT

    @property
    def is_within(self) -> bool:
        """Whether n·log n bounds it."""
        return self.exponent <= self.allowed + TOLERANCE


def growth(x: Sequence[float], y: Sequence[float]) -> Growth:
    """How y grows with x, both in order of x and positive; at least two points.

    What is there at the smallest x already is taken off, so that a large constant does not hide a bad power.
    """
    ratio = max(y[1:][-2:]) / y[0]
    begin = x[-1] / 10**DECADES
    rises = [(a - x[0], b - y[0]) for a, b in zip(x, y, strict=True) if a > x[0] and b > y[0] and a >= begin]
    middle = math.sqrt(max(begin, x[0]) * x[-1])
    allowed = 1 + 1 / max(math.log(middle), 1.0)  # the derivative of log(n·log n) by log n
    if ratio <= FLAT or not rises:
        return Growth(ratio=ratio, exponent=0.0, allowed=allowed)
    if len(rises) == 1:
        return Growth(ratio=ratio, exponent=math.log(ratio) / math.log(x[-1] / x[0]), allowed=allowed)
    steps, heights = ([math.log(pair[side]) for pair in rises] for side in (0, 1))
    return Growth(ratio=ratio, exponent=statistics.linear_regression(steps, heights).slope, allowed=allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Growth from the first sample to the last by the slope, and between which bounds it lies with 99 % confidence."""

    level: float  # the median
    growth: float
    low: float
    high: float


def trend(x: Sequence[float], y: Sequence[float]) -> Trend:
    """The trend of samples y, taken at x in rising order; at least four."""
    size = max(1, len(x) // BLOCKS)
    times, values = ([statistics.fmean(side[i : i + size]) for i in range(0, len(side), size)] for side in (x, y))
    span = x[-1] - x[0]
    slopes = sorted((d - b) / (c - a) for (a, b), (c, d) in combinations(zip(times, values, strict=True), 2))
    n = len(times)
    deviation = Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    last = len(slopes) - 1
    low, high = (min(max(round((last + sign * deviation) / 2), 0), last) for sign in (-1, 1))
    return Trend(
        level=statistics.median(y),
        growth=statistics.median(slopes) * span,
        low=slopes[low] * span,
        high=slopes[high] * span,
    )
