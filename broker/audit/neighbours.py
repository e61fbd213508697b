"""One record with the lines around it, and what their hashes prove. Reads the index for places, the files for lines."""

import contextlib
from dataclasses import dataclass

import msgspec

from broker.audit.chain import GENESIS, Checkpoint, decode_checkpoint, link, split_line
from broker.audit.errors import UnknownRecord
from broker.audit.index import AuditIndex
from broker.audit.records import Entry, decode_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """One record and the lines around it in its log, with what their hashes prove.

    `linked`: the record has the hash that follows from the line before it. `next_linked`: the line after it follows
    from this one; None where there is none yet.
    """

    entry: Entry
    file: str
    line_offset: int
    previous: Entry | Checkpoint | None
    next: Entry | Checkpoint | None
    linked: bool
    next_linked: bool | None


def show(index: AuditIndex, record_id: str) -> Neighbourhood:
    """Return one record, the lines before and after it, and whether their hashes hold. Raises `UnknownRecord`."""
    row = index.database.execute(
        "SELECT file, offset, length FROM records WHERE id = ? ORDER BY time, file, offset LIMIT 1", (record_id,)
    ).fetchone()
    if row is None:
        raise UnknownRecord(f"no record {record_id}")
    file, offset, length = row
    try:
        line = index.read(file, offset, length)
    except FileNotFoundError:  # it was disposed of meanwhile
        raise UnknownRecord(f"no record {record_id}") from None
    before, after = _beside(index, file, offset, "<", "DESC"), _beside(index, file, offset, ">", "ASC")
    previous_hash = _stated(before) or _opened_after(line)
    stated = _stated(line)
    return Neighbourhood(
        entry=decode_entry(line),
        file=_file_name(index, file),
        line_offset=offset,
        previous=_neighbour(before),
        next=_neighbour(after),
        linked=_follows(previous_hash, line),
        next_linked=_follows(stated, after) if after else None,
    )


def _beside(index: AuditIndex, file: int, offset: int, sign: str, order: str) -> bytes:
    """Return the line next to a place in the same log, across its files; empty where there is none any more."""
    place = "SELECT file, offset, length FROM records WHERE file = ?"
    last = f"ORDER BY offset {order} LIMIT 1"
    row = index.database.execute(f"{place} AND offset {sign} ? {last}", (file, offset)).fetchone()
    if row is None:
        other = index.database.execute(
            "SELECT f.file FROM files f JOIN files here ON here.file = ? "  # noqa: S608
            f"WHERE f.log = here.log AND f.number {sign} here.number ORDER BY f.number {order} LIMIT 1",
            (file,),
        ).fetchone()
        row = other and index.database.execute(f"{place} {last}", other).fetchone()
    with contextlib.suppress(FileNotFoundError):
        return index.read(*row) if row else b""
    return b""


def _file_name(index: AuditIndex, file: int) -> str:
    started, log, number = index.database.execute(
        "SELECT started, log, number FROM files WHERE file = ?", (file,)
    ).fetchone()
    return f"{started}-{log}-{number:06d}"


def _stated(line: bytes) -> str:
    parts = split_line(line)
    return parts[1] if parts else ""


def _opened_after(line: bytes) -> str:
    """The first line of a log has nothing before it but what it says itself."""
    try:
        return decode_checkpoint(line).previous or GENESIS
    except msgspec.MsgspecError:
        return GENESIS


def _follows(previous: str, line: bytes) -> bool:
    parts = split_line(line)
    return parts is not None and link(previous, parts[0]) == parts[1]


def _neighbour(line: bytes) -> Entry | Checkpoint | None:
    if not line:
        return None
    entry = decode_entry(line)
    return decode_checkpoint(line) if entry.kind == "checkpoint" else entry
