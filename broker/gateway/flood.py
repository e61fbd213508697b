"""What a session is refused faster than anybody can read: counted, instead of written one by one.

A payload chooses how often it is refused, so without a bound it could fill the disk with refusals, and a full disk
stops the egress of everybody. Nothing is left out silently: of each kind the first is written whole, the others are one
more record that says how many, and which record they were like. What was allowed, and what becomes of it, is never
counted here. Pure: time is passed in; writing is the recorder's.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.audit.records import Record

BURST: Final = 1000  # records of refusals that a session may write at once …
RATE: Final = 20.0  # … and a second, before they are counted
WINDOW_SECONDS: Final = 1.0  # how long is counted before it is told
KINDS: Final = 16  # different refusals that are told apart in a window; further ones are told by plane and reason

type _Key = tuple[object, ...]


class _Tally(msgspec.Struct):
    """Refusals like `record`, the first, which is written whole under the id `written`."""

    record: Record
    written: str
    count: int = 0


@dataclass(slots=True)
class Flood:
    """One session's refusals."""

    _tokens: float = float(BURST)
    _at: float = 0.0
    _tallies: dict[_Key, _Tally] = field(default_factory=dict)
    _first: _Key | None = None

    def hold(self, record: Record, now: float) -> str | None:
        """Count a refusal, and return the id of the one like it that is written; None: this one is to be written.

        `now` is seconds on any clock that does not step back. After a None, `wrote` tells the id.
        """
        self._tokens = min(float(BURST), self._tokens + max(0.0, now - self._at) * RATE)
        self._at = now
        self._first = None
        if self._tokens >= 1 and not self._tallies:
            self._tokens -= 1
            return None
        key = self._key(record)
        tally = self._tallies.get(key)
        if tally is None:
            self._first = key
            return None
        tally.count += 1
        return tally.written

    def wrote(self, record: Record, identity: str) -> None:
        """The refusal that `hold` let pass is written."""
        if self._first is not None:
            self._tallies[self._first] = _Tally(record, identity)
            self._first = None

    @property
    def is_counting(self) -> bool:
        """Whether there is something to tell at the end of the window."""
        return bool(self._tallies)

    def drain(self) -> list[Record]:
        """What was counted, a record a kind. With it the window is over."""
        tallies, self._tallies = self._tallies, {}
        return [_told(key, tally) for key, tally in tallies.items() if tally.count]

    def _key(self, record: Record) -> _Key:
        alike = (record.kind, record.plane, record.reason, record.rule, record.authority or record.wanted)
        if alike in self._tallies or len(self._tallies) < KINDS:
            return alike
        return (record.kind, record.plane, record.reason)


def _told(key: _Key, tally: _Tally) -> Record:
    alike = len(key) > 3
    words = "more like it" if alike else "more of this reason, to various destinations"
    told = msgspec.structs.replace(
        tally.record, ref=tally.written, count=tally.count, path="", detail=f"{tally.count} {words} within a second"
    )
    if alike:
        return told
    return msgspec.structs.replace(told, authority="", wanted="", method="", rule="", scheme="")
