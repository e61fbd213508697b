"""The questions a reader asks: which records, and how much of what.

Reads the index to find lines and the log files for the lines themselves.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from broker.audit import sums
from broker.audit.errors import AuditError
from broker.audit.index import AuditIndex
from broker.audit.keys import host_key, microseconds
from broker.audit.records import Entry
from broker.audit.sums import ADDED, COUNTED, COUNTS
from broker.policy.reasons import Family, Reason

_DURATION: Final = re.compile(r"(\d{1,6})\s*([smhdw])", re.ASCII)
_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_RARE: Final = 5000
_MOST_PARTS: Final = 100  # of files that lie in a time in part; SQLite adds up at most 500
_SUMMED: Final = "session, host, allowed, denied, failures, bytes_up, bytes_down, first, last, records"
SECONDS: Final = 0.6  # that a search takes before it tells what it has found so far
_EXACT: Final = {
    "session": "session",
    "call": "call",
    "grant": "grant_id",
    "verdict": "verdict",
    "reason": "reason",
    "rule": "rule",
    "method": "method",
    "kind": "kind",
    "plane": "plane",
}
_turned = lru_cache(maxsize=4096)(host_key)
_REFUSALS: Final = frozenset({"deny", "failure"})
_REFUSAL_REASONS: Final = frozenset(reason for reason in Reason if reason.family in (Family.DENY, Family.FAILURE))


class BadQuestion(AuditError):  # noqa: N818
    """A filter cannot be read. The message says what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to look for; all given conditions must hold. Empty means any.

    `host` matches the name and every name below it. `since` (inclusive) and `until` (exclusive) are microseconds since
    the epoch. `text` is looked for in host, path, detail and rule, in any case.
    """

    session: str = ""
    call: str = ""
    grant: str = ""
    verdict: str = ""
    reason: str = ""
    rule: str = ""
    method: str = ""
    kind: str = ""
    plane: str = ""
    host: str = ""
    since: int | None = None
    until: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Entries, newest first, and the mark from which the next page goes on (empty at the end).

    Fewer entries than asked for, and a mark: the time was up, and older records have not been looked at.
    """

    entries: tuple[Entry, ...]
    next_page: str


class SummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one session did with one host. Times are microseconds since the epoch."""

    session: str
    host: str
    allowed: int
    denied: int
    failures: int
    bytes_up: int
    bytes_down: int
    first: int
    last: int


def parse_moment(text: str, now: datetime) -> int:
    """Read `2026-01-31T12:00:00Z`, `2026-01-31` (UTC) or a time ago (`15m`, `2h`, `7d`).

    The result is microseconds since the epoch. Raises `BadQuestion`.
    """
    ago = _DURATION.fullmatch(text.strip())
    if ago:
        return int(now.timestamp() * 1_000_000) - int(ago[1]) * _UNIT[ago[2]] * 1_000_000
    try:
        moment = datetime.fromisoformat(text.strip())
        return microseconds((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat())
    except ValueError as error:
        raise BadQuestion(f"{text!r} is no time: give 2026-01-31T12:00:00Z, 2026-01-31, or 15m, 2h, 7d ago") from error


def search(
    index: AuditIndex, wanted: Filter, *, limit: int = 50, page: str = "", seconds: float | None = SECONDS
) -> Page:
    """Return the newest entries that match, at most `limit`, after the mark `page`.

    The mark is a place in the order of time, so a page stays the same while new records come in. A question that no
    index answers is looked for file by file, newest first; when `seconds` have passed between two of them, the page
    ends there, with a mark to go on from. Raises `BadQuestion`.
    """
    where, values = _conditions(wanted, by_host=_is_rare(index, wanted.host))
    before = parse_mark(page) if page else None
    deadline = None if seconds is None else time.monotonic() + seconds
    rows: list[tuple[int, int, int, int]] = []
    mark = ""
    for since, until in _stretches(index, wanted, before):
        rows += _newest(index, where, values, (since, until, before), limit + 1 - len(rows))
        if len(rows) > limit:
            mark = "{}.{}.{}".format(*rows[limit - 1][:3])
            break
        if since is not None and deadline is not None and time.monotonic() > deadline:
            mark = f"{since}.0.0"
            break
    entries = tuple(index.entries(row[1:] for row in rows[:limit]))
    return Page(entries=entries, next_page=mark)


def _stretches(index: AuditIndex, wanted: Filter, before: list[int] | None) -> Iterator[tuple[int | None, int | None]]:
    """Stretches of time (from, up to), newest first: about one file's records each, together all that may match."""
    until: int | None = None
    for begin in sorted(index.beginnings(), reverse=True):
        if (before is not None and [begin, 0, 0] >= before) or (wanted.until is not None and begin >= wanted.until):
            until = begin
            continue
        yield begin, until
        if wanted.since is not None and begin <= wanted.since:
            return
        until = begin
    yield None, until


def _newest(
    index: AuditIndex,
    where: list[str],
    values: list[str | int],
    bounds: tuple[int | None, int | None, list[int] | None],
    limit: int,
) -> list[tuple[int, int, int, int]]:
    since, until, before = bounds
    where, values = [*where], [*values]
    for sign, moment in ((">=", since), ("<", until)):
        if moment is not None:
            where.append(f"time {sign} ?")
            values.append(moment)
    if before is not None:
        where.append("(time, file, offset) < (?, ?, ?)")
        values += before
    return index.database.execute(
        f"SELECT time, file, offset, length FROM records WHERE {' AND '.join(where) or '1'} "  # noqa: S608
        "ORDER BY time DESC, file DESC, offset DESC LIMIT ?",
        (*values, limit),
    ).fetchall()


def every(index: AuditIndex, wanted: Filter) -> Iterator[Entry]:
    """Give all matching entries, oldest first, without holding them."""
    where, values = _conditions(wanted)
    cursor = index.database.execute(
        f"SELECT file, offset, length FROM records WHERE {' AND '.join(where) or '1'} ORDER BY time, file, offset",  # noqa: S608
        values,
    )
    yield from index.entries(cursor)


def summarise(index: AuditIndex, wanted: Filter) -> list[SummaryRow]:
    """Count verdicts and bytes per session and host, the busiest host of each session first.

    What was allowed and then refused after all (by the address guard, say) counts as denied; a failure counts as
    allowed, too. A record that stands for many counts for all of them. Bytes are those of close records: progress
    records report the same bytes earlier.
    """
    parts, values = _summed(index, wanted)
    rows = index.database.execute(
        f"SELECT session, host, {ADDED} FROM ({parts}) GROUP BY session, host "  # noqa: S608
        "ORDER BY MAX(MAX(last)) OVER (PARTITION BY session) DESC, session, SUM(records) DESC, host",
        values,
    )
    return [
        SummaryRow(
            session=session,
            host=_turned(host),
            allowed=allowed,
            denied=denied,
            failures=failures,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            first=first,
            last=last,
        )
        for session, host, allowed, denied, failures, bytes_up, bytes_down, first, last, _ in rows
    ]


def _summed(index: AuditIndex, wanted: Filter) -> tuple[str, list[str | int]]:
    """A query for the counts of parts that together are what is wanted: sums where there are any, else records."""
    where, values = _conditions(replace(wanted, since=None, until=None))
    whole, parts = sums.divide(index.database, wanted.since, wanted.until)
    if replace(wanted, since=None, until=None, session="", host="") != Filter() or len(parts) > _MOST_PARTS:
        where, values = _conditions(wanted)
        return _counted(where), values
    queries, all_values = [], list[str | int]()
    if wanted.since is None and wanted.until is None:
        chosen = where
    else:
        chosen = [*where, f"file IN ({', '.join(map(str, whole))})"]
    queries.append(f"SELECT {_SUMMED} FROM sums WHERE {' AND '.join(chosen) or '1'}")  # noqa: S608
    all_values += values
    for file, begin, end in parts:
        queries.append(_counted([*where, "file = ? AND time >= ? AND time < ?"]))
        all_values += [*values, file, begin, end]
    return " UNION ALL ".join(queries), all_values


def _counted(where: list[str]) -> str:
    return f"SELECT session, host, {COUNTS} FROM records WHERE {' AND '.join([*where, COUNTED])} GROUP BY session, host"  # noqa: S608


def _is_rare(index: AuditIndex, host: str) -> bool:
    """Tell whether it is cheaper to fetch all records of a host and sort them than to look through the newest first."""
    if not host:
        return True
    where, values = _host_condition(host, "host")
    matches = f"SELECT 1 FROM records WHERE {where} LIMIT {_RARE + 1}"  # noqa: S608
    return bool(index.database.execute(f"SELECT COUNT(*) <= {_RARE} FROM ({matches})", values).fetchone()[0])  # noqa: S608


def _host_condition(host: str, column: str) -> tuple[str, list[str | int]]:
    """Match the host and every name below it: in the turned form these follow `key.`, and `/` is the next after `.`."""
    key = host_key(host.lower().rstrip("."))
    return f"({column} = ? OR ({column} > ? AND {column} < ?))", [key, key + ".", key + "/"]


def _conditions(wanted: Filter, *, by_host: bool = True) -> tuple[list[str], list[str | int]]:
    where: list[str] = []
    values: list[str | int] = []
    for name, column in _EXACT.items():
        value = getattr(wanted, name)
        if value:
            where.append(f"{column} = ? AND {column} <> ''")  # the second as the partial indexes say it
            values.append(value.upper() if name == "method" else value)
    if wanted.verdict in _REFUSALS or wanted.reason in _REFUSAL_REASONS:
        where.append("verdict IN ('deny', 'failure')")  # as the partial index says it, so that it is used
    if wanted.host:
        condition, keys = _host_condition(wanted.host, "host" if by_host else "+host")  # "+" keeps an index from use
        where.append(condition)
        values += keys
    for sign, moment in ((">=", wanted.since), ("<", wanted.until)):
        if moment is not None:
            where.append(f"time {sign} ?")
            values.append(moment)
    if wanted.text:
        pattern = "%" + re.sub(r"([%_\\])", r"\\\1", wanted.text) + "%"
        turned = "%" + re.sub(r"([%_\\])", r"\\\1", host_key(wanted.text.lower())) + "%"
        where.append(
            r"(path LIKE ? ESCAPE '\' OR detail LIKE ? ESCAPE '\' OR rule LIKE ? ESCAPE '\' OR host LIKE ? ESCAPE '\')"
        )
        values += [pattern, pattern, pattern, turned]
    return where, values


def parse_mark(page: str) -> list[int]:
    """Read the mark that a page ended with: time, file, offset. Raises `BadQuestion`."""
    parts = page.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise BadQuestion(f"{page!r} is no page mark: give the one that the page before ended with")
    return [int(part) for part in parts]
