"""Collects what gets no rule: by kind, reason and destination, in bounded memory, in printable text."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.audit.escaping import escape
from broker.policy.reasons import Reason
from broker.review.suggestion import Apart, Aside
from broker.review.tally import Tallies, Tally

MOST: Final = 200
"""Lines told apart by destination; what comes after them is told by kind and reason."""
_WHERE: Final = 100
_REASON: Final = 40
_WORDS: Final = 300
_OTHER: Final = "(other)"

type Words = tuple[str, str]
"""Why, and what to do instead."""


class _Key(NamedTuple):
    aside: Aside
    reason: str
    where: str
    words: Words


class Asides:
    """What was set aside so far."""

    def __init__(self) -> None:
        self._tallies: Tallies[_Key] = Tallies(MOST)
        self.count = 0

    def add(self, aside: Aside, reason: str, where: str, words: Words, tally: Tally) -> None:
        """Set aside what `tally` counts. Texts may be anything; `words` are ours, and few."""
        known = reason if reason in Reason else escape(reason, _REASON)
        key = _Key(aside, known, escape(where, _WHERE), words)
        wide = key._replace(where="")
        known_reason = known if reason in Reason else _OTHER
        general = (_GENERAL[aside], "Ask for one host with --host.")
        self._tallies.at(key, wide, wide._replace(reason=known_reason, words=general)).take(tally)
        self.count += tally.count

    def __iter__(self) -> Iterator[Apart]:
        """The most frequent first."""
        for key, tally in self._tallies:
            yield Apart(
                aside=key.aside,
                reason=key.reason,
                count=tally.count,
                where=key.where,
                why=escape(key.words[0], _WORDS),
                cure=escape(key.words[1], _WORDS),
                examples=tally.examples,
            )


_GENERAL: Final = {aside: f"Various: {aside.value}." for aside in Aside}
