"""The numbers that are missing from a log, by runs: one line can leave out any number of them. Pure."""

from bisect import bisect_right, insort
from collections.abc import Iterator

type Place = tuple[str, int]
type Run = tuple[int, int, Place]


class Gaps:
    """What was left out so far, in order. Runs never overlap: numbers go up, and what was filled is gone."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def add(self, first: int, last: int, place: Place) -> None:
        """The numbers from `first` to `last` are not there, as was noticed at `place`."""
        insort(self._runs, (first, last, place))

    def fill(self, number: int) -> bool:
        """Take a number that is there after all out of its run; whether it was missing."""
        at = bisect_right(self._runs, number, key=lambda run: run[0]) - 1
        if at < 0 or self._runs[at][1] < number:
            return False
        first, last, place = self._runs[at]
        self._runs[at : at + 1] = [
            (*part, place) for part in ((first, number - 1), (number + 1, last)) if part[0] <= part[1]
        ]
        return True

    def runs(self) -> Iterator[Run]:
        """Each run with the place where it was noticed."""
        yield from self._runs
