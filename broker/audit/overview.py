"""What a reviewer sees first: the newest sessions, and the hosts that were denied of late.

Each question goes by an index of the database and ends after a bounded number of rows, whatever the size of the log.
"""

from typing import Final

import msgspec

from broker.audit.index import AuditIndex
from broker.audit.keys import host_key
from broker.audit.questions import BadQuestion
from broker.audit.sums import ADDED, total
from broker.audit.totals import Counts, counts_of

_LOOKED_AT: Final = 50  # newest records of a session: who it was
_MOST_REFUSALS: Final = 20_000

# SQLite finds the next session in the order of `by_session` at once, however many records the one before has.
_SESSIONS: Final = """
WITH RECURSIVE seen(session) AS (
    SELECT MIN(session) FROM records WHERE session > ''
    UNION ALL SELECT (SELECT MIN(session) FROM records WHERE session > seen.session) FROM seen WHERE seen.session <> ''
)
SELECT session, (SELECT MAX(time) FROM records WHERE session = seen.session) AS last FROM seen WHERE session <> ''
"""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One session. Times are microseconds since the epoch; `calls` and `grants` those of its newest records."""

    session: str
    first: int
    last: int
    calls: tuple[str, ...]
    grants: tuple[str, ...]
    counts: Counts


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, the one that was active last first, and the mark to go on from (empty at the end)."""

    sessions: tuple[SessionRow, ...]
    next_page: str


class SessionHost(msgspec.Struct, frozen=True, kw_only=True):
    """What a session did with one host. Times are microseconds since the epoch."""

    host: str
    first: int
    last: int
    counts: Counts


class SessionHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a session, those most often denied or failed first; and how many `more` there are."""

    hosts: tuple[SessionHost, ...]
    more: int


class DeniedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that was denied for one reason: how often, and when last (microseconds since the epoch)."""

    host: str
    reason: str
    count: int
    sessions: int
    last: int


class DeniedHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts most often denied. Not `whole`: only the newest refusals were counted."""

    hosts: tuple[DeniedHost, ...]
    whole: bool


def newest_sessions(index: AuditIndex, *, limit: int, page: str = "") -> SessionPage:
    """Return the sessions that were active last, after the mark `page`. Raises `BadQuestion`."""
    before = _parse_mark(page) if page else (2**63 - 1, "")
    found = index.database.execute(
        f"SELECT session, last FROM ({_SESSIONS}) WHERE (last, session) < (?, ?) "  # noqa: S608
        "ORDER BY last DESC, session DESC LIMIT ?",
        (*before, limit + 1),
    ).fetchall()
    rows = tuple(session_row(index, session) for session, _ in found[:limit])
    mark = f"{found[limit - 1][1]}.{found[limit - 1][0]}" if len(found) > limit else ""
    return SessionPage(sessions=tuple(row for row in rows if row is not None), next_page=mark)


def session_row(index: AuditIndex, session: str) -> SessionRow | None:
    """Return one session; None where no record has it."""
    first, last = index.database.execute(
        "SELECT (SELECT MIN(time) FROM records WHERE session = ?), (SELECT MAX(time) FROM records WHERE session = ?)",
        (session, session),
    ).fetchone()
    if first is None or not session:
        return None
    who = index.database.execute(
        "SELECT call, grant_id FROM records WHERE session = ? ORDER BY time DESC LIMIT ?", (session, _LOOKED_AT)
    ).fetchall()
    return SessionRow(
        session=session,
        first=first,
        last=last,
        calls=tuple(dict.fromkeys(call for call, _ in who if call)),
        grants=tuple(dict.fromkeys(grant for _, grant in who if grant)),
        counts=counts_of(index.database.execute(f"SELECT {ADDED} FROM sums WHERE session = ?", (session,)).fetchone()),  # noqa: S608
    )


def session_hosts(index: AuditIndex, session: str, *, limit: int) -> SessionHosts:
    """Return what a session did with its hosts. It may have asked for a million: only those that are told are built."""
    rows = index.database.execute(
        f"SELECT host, {ADDED}, COUNT(*) OVER () FROM sums WHERE session = ? GROUP BY host "  # noqa: S608
        f"ORDER BY {total('denied')} + SUM(failures) DESC, host LIMIT ?",
        (session, limit),
    ).fetchall()
    hosts = tuple(
        SessionHost(host=host_key(host), first=first, last=last, counts=counts_of(counts))
        for host, *counts, first, last, _, _ in rows
    )
    return SessionHosts(hosts=hosts, more=rows[0][-1] - len(rows) if rows else 0)


def denied_hosts(index: AuditIndex, since: int, *, limit: int) -> DeniedHosts:
    """Return the hosts that were denied most often from a time on, by reason."""
    newest = (
        "SELECT host, reason, session, count, time FROM records WHERE verdict IN ('deny', 'failure') "
        "AND verdict = 'deny' AND time >= ? ORDER BY time DESC LIMIT ?"
    )
    rows = index.database.execute(
        f"SELECT host, reason, {total('count')} AS times, COUNT(DISTINCT session), MAX(time), SUM(COUNT(*)) OVER () "  # noqa: S608
        f"FROM ({newest}) GROUP BY host, reason ORDER BY times DESC, host, reason LIMIT ?",
        (since, _MOST_REFUSALS, limit),
    ).fetchall()
    hosts = tuple(
        DeniedHost(host=host_key(host), reason=reason, count=times, sessions=sessions, last=last)
        for host, reason, times, sessions, last, _ in rows
    )
    return DeniedHosts(hosts=hosts, whole=not rows or rows[0][5] < _MOST_REFUSALS)


def newest_time(index: AuditIndex) -> int:
    """Return the time of the newest record, 0 where there is none."""
    return int(index.database.execute("SELECT MAX(time) FROM records").fetchone()[0] or 0)


def _parse_mark(page: str) -> tuple[int, str]:
    time, dot, session = page.partition(".")
    if not dot or not (time.isascii() and time.isdigit() and len(time) < 19):
        raise BadQuestion(f"{page!r} is no page mark: give the one that the page before ended with")
    return int(time), session
