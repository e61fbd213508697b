"""The files of a log: their names and their making.

A log is one process's; its files are `<start>-<log>-<number>.jsonl`, with `.open.jsonl` while the writer has not
finished the file. The writer holds a `flock` on it for as long as it lives, so an open file that can be locked is one
whose writer died: whoever starts next repairs it (repair.py).
"""

import contextlib
import errno
import fcntl
import os
import re
from typing import Final

import msgspec

_NAME: Final = re.compile(r"(\d{8}T\d{6}Z)-([a-z0-9]{4,32})-(\d{6,})(\.open)?\.jsonl", re.ASCII)


class Segment(msgspec.Struct, frozen=True, kw_only=True, order=True):
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


def newest_log(directory: int) -> str:
    """Return the id of the log that was started last and has a line; empty where there is none."""
    # Names begin with the start. They are parsed one by one from the end: a long history costs one sorting.
    for name in sorted(os.listdir(directory), reverse=True):
        segment = parse_segment(name)
        if segment is not None:
            with contextlib.suppress(OSError):  # it has just been finished, or was never begun
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_size:
                    return segment.log
    return ""


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
