"""Counts with a few examples, and a bounded number of them: what records hold was chosen by payloads."""

from collections.abc import Hashable, Iterator
from typing import Final

import msgspec

EXAMPLES: Final = 3


class Tally(msgspec.Struct):
    """So many, the ids of the first records of them, and the reason code of the first."""

    count: int = 0
    examples: tuple[str, ...] = ()
    reason: str = ""

    def add(self, count: int, example: str) -> None:
        """Count a record that stands for `count`."""
        self.count += count
        if len(self.examples) < EXAMPLES:
            self.examples += (example,)

    def leave(self, count: int, example: str) -> None:
        """Count a record no more."""
        self.count -= count
        self.examples = tuple(one for one in self.examples if one != example)

    def take(self, other: "Tally") -> None:
        """Count what another has counted."""
        self.count += other.count
        self.reason = self.reason or other.reason
        self.examples = (self.examples + other.examples)[:EXAMPLES]


class Tallies[Key: Hashable]:
    """Tallies by key. Beyond `most` keys a new one is counted under the wider key that is given with it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tallies: dict[Key, Tally] = {}

    def at(self, key: Key, *wider: Key) -> Tally:
        """The tally of a key, or of the first wider one that there is or is room for; the last always finds it."""
        for one in (key, *wider[:-1]):
            known = self._tallies.get(one)
            if known is not None:
                return known
            if len(self._tallies) < self._most:
                break
        else:
            one = wider[-1] if wider else key
        return self._tallies.setdefault(one, Tally())

    def __iter__(self) -> Iterator[tuple[Key, Tally]]:
        """The most frequent first; of the same number, the first to come first."""
        return iter(sorted(self._tallies.items(), key=lambda item: -item[1].count))
