"""What one session did, in order: each decision with how it ended. And what belongs to one record.

A close record follows its decision in time, within the same session; it is looked for there, within bounds.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from broker.audit.chain import Checkpoint, decode_checkpoint
from broker.audit.index import AuditIndex
from broker.audit.keys import microseconds
from broker.audit.questions import parse_mark
from broker.audit.records import Entry

_MOST_CLOSES: Final = 2_000
_MOST_LINES: Final = 20_000
_END: Final = (2**63 - 1, 0, 0)
# A close record has a row of its own only among what was refused: it says so where its decision was an allow.
_TOLD: Final = "kind NOT IN ('close', 'progress')"
_REFUSED: Final = "verdict IN ('deny', 'failure')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A record of a session, and the close record of what it began: None while it lasts or where it is not found."""

    entry: Entry
    close: Entry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened, newest first, and the mark to go on from (empty at the end)."""

    exchanges: tuple[Exchange, ...]
    next_page: str


def timeline(index: AuditIndex, session: str, *, limit: int, page: str = "", refused: bool = False) -> Timeline:
    """Return what a session did, after the mark `page`; only what was refused or failed for `refused`.

    Raises `BadQuestion`.
    """
    rows = index.database.execute(
        "SELECT time, file, offset, length FROM records WHERE session = ? AND (time, file, offset) < (?, ?, ?) "  # noqa: S608
        f"AND {_REFUSED if refused else _TOLD} ORDER BY time DESC, file DESC, offset DESC LIMIT ?",
        (session, *(parse_mark(page) if page else _END), limit + 1),
    ).fetchall()
    entries = index.entries(place for _, *place in rows[:limit])
    closes = _closes(index, session, rows[min(limit, len(rows)) - 1][0]) if rows else {}
    mark = "{}.{}.{}".format(*rows[limit - 1][:3]) if len(rows) > limit else ""
    exchanges = tuple(Exchange(entry=entry, close=closes.get(entry.id)) for entry in entries)
    return Timeline(exchanges=exchanges, next_page=mark)


def partners(index: AuditIndex, entry: Entry) -> tuple[Entry, ...]:
    """Return the decision that a record refers to, or the close record of a decision."""
    if entry.ref:
        query = "SELECT file, offset, length FROM records WHERE id = ? LIMIT 1"
        return tuple(index.entries(index.database.execute(query, (entry.ref,))))
    close = _closes(index, entry.session, microseconds(entry.time)).get(entry.id) if entry.session else None
    return (close,) if close else ()


def covering(index: AuditIndex, record_id: str) -> Checkpoint | None:
    """Return the next signed checkpoint after a record in its file; None where none is near or none there yet."""
    rows = index.database.execute(
        "SELECT file, offset, length FROM (SELECT r.file, r.offset, r.length, r.kind FROM records r JOIN "
        "(SELECT file, offset FROM records WHERE id = ? LIMIT 1) here ON r.file = here.file AND r.offset > here.offset "
        "ORDER BY r.offset LIMIT ?) WHERE kind = 'checkpoint' ORDER BY offset",
        (record_id, _MOST_LINES),
    )
    for place in rows:
        try:
            found = decode_checkpoint(index.read(*place))
        except (msgspec.MsgspecError, FileNotFoundError):
            continue  # the verifier says what is wrong with it
        if found.signature:
            return found
    return None


def _closes(index: AuditIndex, session: str, since: int) -> dict[str, Entry]:
    rows = index.database.execute(
        "SELECT file, offset, length FROM (SELECT file, offset, length, kind FROM records "
        "WHERE session = ? AND time >= ? ORDER BY time LIMIT ?) WHERE kind = 'close' LIMIT ?",
        (session, since, _MOST_LINES, _MOST_CLOSES),
    ).fetchall()
    return {entry.ref: entry for entry in index.entries(rows)}
