"""The files of a log: their names, their making, and their repair after a crash.

A log is one process's; its files are `<start>-<log>-<number>.jsonl`, with `.open.jsonl` while the writer has not
finished the file. The writer holds a `flock` on it for as long as it lives, so an open file that can be locked is one
whose writer died: whoever starts next moves a torn last line aside, adds a closing line to the chain and drops `.open`.
"""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.audit.chain import Checkpoint, decode_checkpoint, opening_line, record_number, seal, split_line

TORN_DIRECTORY: Final = "torn"
_NAME: Final = re.compile(r"(\d{8}T\d{6}Z)-([a-z0-9]{4,32})-(\d{6,})(\.open)?\.jsonl", re.ASCII)
_TAIL_BYTES: Final = 128 * 1024  # twice the longest line
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Segment:
    """One file of a log. Sorting puts logs in the order they were started, and the files of a log in theirs."""

    started: str
    log: str
    number: int
    is_open: bool = False

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.started}-{self.log}-{self.number:06d}{'.open' if self.is_open else ''}.jsonl"

    @property
    def finished(self) -> "Segment":
        """The same file after its writer has finished it."""
        return Segment(started=self.started, log=self.log, number=self.number)


def parse_segment(name: str) -> Segment | None:
    """Read a file name; None for anything that is not a log file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    started, log, number, is_open = match.groups()
    return Segment(started=started, log=log, number=int(number), is_open=bool(is_open))


def list_segments(directory: int, *, any_type: bool = False) -> list[Segment]:
    """Return the log files in a directory (a descriptor), oldest log first.

    A link, a FIFO or the like under such a name is no log file: only the verifier wants to know of it (`any_type`).
    """
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if any_type or entry.is_file(follow_symlinks=False)]
    return sorted(segment for name in names if (segment := parse_segment(name)) is not None)


def open_segment(directory: int, segment: Segment) -> int:
    """Open a log file for reading under whichever of its two names it has now. Raises `OSError`."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    opened = Segment(started=segment.started, log=segment.log, number=segment.number, is_open=True)
    for name in (opened.name, segment.finished.name):
        with contextlib.suppress(FileNotFoundError):
            return os.open(name, flags, dir_fd=directory)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), segment.finished.name)


def create_segment(directory: int, segment: Segment) -> int:
    """Make the file and lock it for the life of the descriptor. Raises `OSError`.

    Another process may take the new file for a dead one before it is locked, and remove it: then it is made again.
    """
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        descriptor = os.open(segment.name, flags, 0o600, dir_fd=directory)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def finish_segment(directory: int, segment: Segment) -> None:
    """Drop `.open` from the name. A failure leaves that to the next start."""
    with contextlib.suppress(OSError):
        os.rename(segment.name, segment.finished.name, src_dir_fd=directory, dst_dir_fd=directory)


def is_live(descriptor: int) -> bool:
    """Tell whether a writer holds the file. The descriptor must be a reader's own."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


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
    whole, torn, size = _last_line(descriptor)
    if torn:
        _move_aside(directory, f"{segment.finished.name}.{size - len(torn)}", torn)
        os.ftruncate(descriptor, size - len(torn))
    closing = (
        _closing_line(segment, whole, now, len(torn)) if whole else _missing_lines(directory, segment, now, len(torn))
    )
    if closing:
        _append(descriptor, closing)
    if whole or closing:
        finish_segment(directory, segment)
    else:
        os.unlink(segment.name, dir_fd=directory)  # the writer died before it could begin


def _last_line(descriptor: int) -> tuple[bytes, bytes, int]:
    """Return the last whole line, what follows it without a line end, and the size of the file."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    end = tail.rfind(b"\n") + 1
    return tail[:end].rstrip(b"\n").rpartition(b"\n")[2], tail[end:], size


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
        place = _read_place(_last_line(descriptor)[0])
    finally:
        os.close(descriptor)
    if place is None or place.event != "rotated":
        return b""
    opened, head = opening_line(segment.log, segment.number, now, place.hash, place.number)
    return opened + _recovered(segment, head, place.number + 1, now, torn)


@dataclass(frozen=True, slots=True)
class _Place:
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


def _move_aside(directory: int, name: str, torn: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(TORN_DIRECTORY, 0o700, dir_fd=directory)
    aside = os.open(TORN_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(name, flags, 0o600, dir_fd=aside)
        try:
            if os.write(file, torn) != len(torn):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        finally:
            os.close(file)
    finally:
        os.close(aside)
