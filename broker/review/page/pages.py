"""What each page shows: questions to the index, their answers as HTML. Runs in the reader's threads."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from broker.audit.errors import UnknownRecord
from broker.audit.index import AuditIndex
from broker.audit.neighbours import show
from broker.audit.overview import denied_hosts, newest_sessions, newest_time, session_hosts, session_row
from broker.audit.questions import search
from broker.audit.timeline import covering, partners, timeline
from broker.audit.totals import Totals
from broker.review.page.asking import filters_in, read_filter
from broker.review.page.rendering import query as query_of
from broker.review.page.rendering import render
from broker.review.page.signatures import Standing

Query = Mapping[str, str]
_HOUR: Final = 3_600_000_000
_SESSIONS: Final = 20
_HOSTS: Final = 10
_RECORDS: Final = 50
_SESSION_HOSTS: Final = 200


def overview(index: AuditIndex, query: Query, totals: Totals) -> str:
    """The newest sessions, what came out of late, which hosts were denied."""
    now = _now()
    newest = newest_time(index)
    return render(
        "overview.html",
        sessions=newest_sessions(index, limit=_SESSIONS, page=query.get("page", "")),
        page=query.get("page", ""),
        totals=[
            (title, since, totals.count(index, now - hours * _HOUR))
            for title, since, hours in (("Last hour", "1h", 1), ("Last day", "1d", 24))
        ],
        denied=denied_hosts(index, now - 24 * _HOUR, limit=_HOSTS),
        live=_live({}, newest) if not query.get("page") else "",
        empty=newest == 0,
        given={},
    )


def records(index: AuditIndex, query: Query) -> str:
    """What matches the filters, newest first."""
    given = filters_in(query)
    newest = newest_time(index)
    page = query.get("page", "")
    found = search(index, read_filter(given, datetime.now(UTC)), limit=_RECORDS, page=page)
    return render(
        "records.html",
        found=found,
        given=given,
        page=page,
        cut=bool(found.next_page) and len(found.entries) < _RECORDS,
        live=_live(given, newest) if not page and "until" not in given else "",
    )


def session(index: AuditIndex, query: Query, session_id: str) -> str:
    """One session: its hosts, and what it did in order. Raises `UnknownRecord`."""
    newest = newest_time(index)
    row = session_row(index, session_id)
    if row is None:
        raise UnknownRecord(f"no record of a session {session_id}")
    page, refused = query.get("page", ""), bool(query.get("refused"))
    return render(
        "session.html",
        row=row,
        hosts=session_hosts(index, session_id, limit=_SESSION_HOSTS),
        timeline=timeline(index, session_id, limit=_RECORDS, page=page, refused=refused),
        page=page,
        refused=refused,
        live=_live({"session": session_id}, newest) if not page else "",
    )


def record(index: AuditIndex, record_id: str, judge: Callable[..., Standing]) -> str:
    """One record: its fields, what belongs to it, its place in the chain. Raises `UnknownRecord`."""
    found = show(index, record_id)
    checkpoint = covering(index, record_id)
    return render(
        "record.html",
        found=found,
        entry=found.entry,
        partners=partners(index, found.entry),
        fields=[
            (name.replace("_", " "), getattr(found.entry, name))
            for name in found.entry.__struct_fields__
            if getattr(found.entry, name) not in ("", 0) and name != "hash"
        ],
        checkpoint=checkpoint,
        standing=judge(checkpoint) if checkpoint is not None else None,
    )


def newer(index: AuditIndex, query: Query, after: int, limit: int) -> int:
    """How many records match that are newer than a time in microseconds; at most `limit` are looked for."""
    wanted = read_filter(filters_in(query), datetime.now(UTC))
    return len(search(index, replace(wanted, since=after + 1), limit=limit).entries)


def _live(given: dict[str, str], newest: int) -> str:
    return f"/live?{query_of(given, after=str(newest))}"


def _now() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000_000)
