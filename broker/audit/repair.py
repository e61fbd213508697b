"""Finishes what a dead writer left: a torn last line, a chain without its end, a file without its beginning.

Whole lines are never altered or removed, so that what somebody did to a log stays to be found.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from broker.audit.chain import Checkpoint, decode_checkpoint, opening_line, record_number, seal, split_line
from broker.audit.lines import CHUNK, MAX_LINE
from broker.audit.segments import Segment, finish_segment, open_segment, parse_segment

TORN_DIRECTORY: Final = "torn"
_TAIL_BYTES: Final = 2 * MAX_LINE
_MOST_TORN: Final = 64 * 1024 * 1024  # what follows the last line: after a loss of power file systems leave zeros there
_encode = msgspec.json.Encoder().encode


def repair_dead(directory: int, now: Callable[[], str]) -> list[Segment]:
    """Finish every open file whose writer is gone; return those that were. One that cannot be repaired is left."""
    repaired = []
    # Looked at before they are parsed: a long history must not slow the start of a run.
    open_names = [name for name in os.listdir(directory) if name.endswith(".open.jsonl")]
    for segment in sorted(filter(None, map(parse_segment, open_names))):
        with contextlib.suppress(OSError), _locked(directory, segment) as descriptor:
            if descriptor is not None:
                _repair(directory, segment, descriptor, now())
                repaired.append(segment.finished)
    return repaired


@contextlib.contextmanager
def _locked(directory: int, segment: Segment) -> Iterator[int | None]:
    """Give the descriptor if nobody else holds the file and its name still means it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(segment.name, flags, dir_fd=directory)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        named = os.stat(segment.name, dir_fd=directory, follow_symlinks=False)
        yield descriptor if os.path.samestat(named, os.fstat(descriptor)) else None
    finally:
        os.close(descriptor)


def _repair(directory: int, segment: Segment, descriptor: int, now: str) -> None:
    end, size = _end_of_lines(descriptor), os.fstat(descriptor).st_size
    torn, whole = size - end, _last_line(descriptor, end)
    if torn:
        _move_aside(directory, f"{segment.finished.name}.{end}", descriptor, end)
        os.ftruncate(descriptor, end)
    closing = _closing_line(segment, whole, now, torn) if whole else _missing_lines(directory, segment, now, torn)
    if closing:
        _append(descriptor, closing)
    if end or closing:
        finish_segment(directory, segment)
    else:
        os.unlink(segment.name, dir_fd=directory)  # the writer died before it could begin


def _end_of_lines(descriptor: int) -> int:
    """Return where the last line ends, 0 where there is none. Raises `OSError` for more behind it than is moved."""
    size = at = os.fstat(descriptor).st_size
    while at:
        begin = max(0, at - CHUNK)
        found = os.pread(descriptor, at - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        if size - begin > _MOST_TORN:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        at = begin
    return 0


def _last_line(descriptor: int, end: int) -> bytes:
    """Return the last line before `end`, where one ends."""
    tail = os.pread(descriptor, min(end, _TAIL_BYTES), max(0, end - _TAIL_BYTES))
    return tail.rstrip(b"\n").rpartition(b"\n")[2]


def _closing_line(segment: Segment, last: bytes, now: str, torn: int) -> bytes:
    """Return the line that ends a dead writer's chain; nothing if it is ended, or not a chain any more."""
    place = _read_place(last)
    if place is None or place.event in ("rotated", "closed", "recovered"):
        return b""
    return _recovered(segment, place.hash, place.number + 1, now, torn)


def _missing_lines(directory: int, segment: Segment, now: str, torn: int) -> bytes:
    """Return the first and the last line of a file whose writer died before it wrote the first.

    Nothing if the file before does not say that the log goes on here.
    """
    before = Segment(started=segment.started, log=segment.log, number=segment.number - 1)
    try:
        descriptor = open_segment(directory, before)
    except FileNotFoundError:
        return b""
    try:
        place = _read_place(_last_line(descriptor, _end_of_lines(descriptor)))
    finally:
        os.close(descriptor)
    if place is None or place.event != "rotated":
        return b""
    opened, head = opening_line(segment.log, segment.number, now, place.hash, place.number)
    return opened + _recovered(segment, head, place.number + 1, now, torn)


class _Place(msgspec.Struct, frozen=True):
    """The end of a chain: its last hash and number, and what the last line says happened."""

    hash: str
    number: int
    event: str


def _read_place(line: bytes) -> _Place | None:
    parts = split_line(line)
    if parts is None:
        return None
    try:
        last = decode_checkpoint(line)
    except msgspec.MsgspecError:
        return None
    number = record_number(last.id)
    event = last.event if last.kind == "checkpoint" else ""
    return _Place(parts[1], last.after if number is None else number, event)


def _recovered(segment: Segment, previous: str, number: int, now: str, torn: int) -> bytes:
    aside = f"; a torn line of {torn} bytes was moved aside" if torn else ""
    line = Checkpoint(
        kind="checkpoint",
        id=f"{segment.log}-{number}",
        time=now,
        event="recovered",
        segment=segment.number,
        detail=f"the writer ended without closing the log{aside}",
    )
    return seal(previous, _encode(line))[0]


def _append(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _move_aside(directory: int, name: str, descriptor: int, offset: int) -> None:
    """Copy what stands in the file from `offset` on into one of its own."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(TORN_DIRECTORY, 0o700, dir_fd=directory)
    aside = os.open(TORN_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(name, flags, 0o600, dir_fd=aside)
        try:
            while torn := os.pread(descriptor, CHUNK, offset):
                if os.write(file, torn) != len(torn):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                offset += len(torn)
            os.fsync(file)
        finally:
            os.close(file)
    finally:
        os.close(aside)
