"""What came out in a time, added up over all sessions. What a file holds as a whole is added up once and remembered.

Files grow and are never changed, so the number of a file's lines says whether what is remembered still holds.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from broker.audit import sums
from broker.audit.index import AuditIndex
from broker.audit.sums import ADDED, COUNTED, COUNTS

_MOST: Final = 20_000  # files that are remembered
_CHUNK: Final = 500  # of what SQLite takes in one statement


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What came out; bytes from (`up`) and to (`down`) the sandboxes."""

    allowed: int = 0
    denied: int = 0
    failures: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Totals:
    """Adds up times of one directory's log. May be asked from several threads: at worst something is added up twice."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Counts] = {}

    def count(self, index: AuditIndex, since: int, until: int | None = None) -> Counts:
        """Add up what lies in a time (microseconds since the epoch), as `summarise` counts it."""
        whole, parts = sums.divide(index.database, since, until)
        found = self._of_files(index, whole)
        for file, begin, end in parts:
            found += counts_of(
                index.database.execute(
                    f"SELECT {COUNTS} FROM records WHERE file = ? AND time >= ? AND time < ? AND {COUNTED}",  # noqa: S608
                    (file, begin, end),
                ).fetchone()
            )
        return found

    def _of_files(self, index: AuditIndex, whole: list[int]) -> Counts:
        wanted = set(whole)
        marks = {
            (file, inode, lines)
            for file, inode, lines in index.database.execute("SELECT file, inode, lines FROM files")
            if file in wanted
        }
        known = {mark: counts for mark, counts in list(self._known.items()) if mark in marks}
        missing = sorted(marks - known.keys())
        for at in range(0, len(missing), _CHUNK):
            known |= _sums(index, missing[at : at + _CHUNK])
        if len(self._known) > _MOST:
            self._known.clear()
        self._known |= known
        return sum(known.values(), Counts())


def _sums(index: AuditIndex, marks: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], Counts]:
    files = ", ".join(str(file) for file, _, _ in marks)
    rows = index.database.execute(f"SELECT file, {ADDED} FROM sums WHERE file IN ({files}) GROUP BY file")  # noqa: S608
    counts = {file: counts_of(row) for file, *row in rows}
    return {mark: counts.get(mark[0], Counts()) for mark in marks}


def counts_of(row: Sequence[int | None]) -> Counts:
    """A row that begins as what `sums` adds up; of nothing the database adds up to NULL."""
    allowed, denied, failures, up, down = (value or 0 for value in row[:5])
    return Counts(allowed=allowed, denied=denied, failures=failures, bytes_up=up, bytes_down=down)
