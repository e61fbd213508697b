"""What each session did with each host, added up file by file, so that a summary need not read every record.

The sums of a file are taken in with its records, in the same transaction. What is counted, and how, is said here once
for both: `COUNTS` as SQL over the records, `Sums` for records as they come in.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

TABLE: Final = """
CREATE TABLE sums (
    session TEXT NOT NULL, host TEXT NOT NULL, file INTEGER NOT NULL, allowed INTEGER NOT NULL, denied INTEGER NOT NULL,
    failures INTEGER NOT NULL, bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, first INTEGER NOT NULL,
    last INTEGER NOT NULL, records INTEGER NOT NULL,
    PRIMARY KEY (session, host, file)
) WITHOUT ROWID;
CREATE INDEX sums_by_file ON sums (file);
"""
MOST: Final = 2**62  # more than any log counts that nobody has tampered with; SQLite's integers end at twice that
COUNTED: Final = "kind IN ('decision', 'close') AND host <> ''"


def total(numbers: str) -> str:
    """SQL that adds up amounts. `SUM` fails where they outgrow 63 bits, as made-up ones do; this ends there."""
    return f"CAST(TOTAL({numbers}) AS INTEGER)"


COUNTS: Final = (
    "SUM(kind = 'decision' AND verdict = 'allow') - SUM(kind = 'close' AND verdict = 'deny') AS allowed, "
    f"{total("(verdict = 'deny') * count")} AS denied, SUM(verdict = 'failure') AS failures, "
    f"{total("bytes_up * (kind = 'close')")} AS bytes_up, {total("bytes_down * (kind = 'close')")} AS bytes_down, "
    "MIN(time) AS first, MAX(time) AS last, COUNT(*) AS records"
)
ADDED: Final = (
    f"SUM(allowed), {total('denied')}, SUM(failures), {total('bytes_up')}, {total('bytes_down')}, "
    "MIN(first), MAX(last), SUM(records)"
)
_ADD: Final = (
    "INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session, host, file) DO UPDATE SET "
    "allowed = allowed + excluded.allowed, failures = failures + excluded.failures, "
    "denied = min(denied + excluded.denied, 4611686018427387904), "
    "bytes_up = min(bytes_up + excluded.bytes_up, 4611686018427387904), "
    "bytes_down = min(bytes_down + excluded.bytes_down, 4611686018427387904), "
    "first = min(first, excluded.first), last = max(last, excluded.last), records = records + excluded.records"
)


class Sums:
    """The sums of records that are being taken in, by session and host."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[int]] = {}

    def add(  # noqa: PLR0913, PLR0917  the columns that are counted
        self,
        session: str,
        host: str,
        time: int,
        kind: str,
        verdict: str,
        count: int,
        sizes: tuple[int, int],
    ) -> None:
        """Count one record."""
        if not host or kind not in {"decision", "close"}:
            return
        sums = self._sums.get((session, host))
        if sums is None:
            sums = self._sums[session, host] = [0, 0, 0, 0, 0, time, time, 0]
        if verdict == "allow":
            sums[0] += kind == "decision"
        elif verdict == "deny":
            sums[0] -= kind == "close"
            sums[1] += count
        elif verdict == "failure":
            sums[2] += 1
        if kind == "close":
            sums[3] += sizes[0]
            sums[4] += sizes[1]
        sums[5], sums[6] = min(sums[5], time), max(sums[6], time)
        sums[7] += 1

    def store(self, database: sqlite3.Connection, file: int) -> None:
        """Add all of it to what is there of a file."""
        database.executemany(
            _ADD,
            (
                (session, host, file, *(min(one, MOST) for one in sums))
                for (session, host), sums in sorted(self._sums.items())
            ),
        )
        if self._sums:
            first, last = min(sums[5] for sums in self._sums.values()), max(sums[6] for sums in self._sums.values())
            database.execute(
                "UPDATE files SET first = min(ifnull(first, ?), ?), last = max(ifnull(last, ?), ?) WHERE file = ?",
                (first, first, last, last, file),
            )


def forget(database: sqlite3.Connection, file: int) -> None:
    """Drop the sums of a file that is gone."""
    database.execute("DELETE FROM sums WHERE file = ?", (file,))


def divide(
    database: sqlite3.Connection, since: int | None, until: int | None
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The files that lie in a time as a whole, and those that do in part: with the times (from, up to) to look at."""
    whole: list[int] = []
    parts: list[tuple[int, int, int]] = []
    spans: Sequence[tuple[int, int, int]] = database.execute(
        "SELECT file, first, last FROM files WHERE first IS NOT NULL"
    ).fetchall()
    for file, first, last in spans:
        begin = first if since is None else max(since, first)
        end = last + 1 if until is None else min(until, last + 1)
        if (begin, end) == (first, last + 1):
            whole.append(file)
        elif begin < end:
            parts.append((file, begin, end))
    return whole, parts
