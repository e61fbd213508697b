"""A background job's output on the disk: its beginning and its end are kept, and what was cut between is counted.

Segments are files named by the offset of their first byte. The first one keeps half of the bound; behind it the last
three are kept, a sixth each. Offsets count what the job wrote, so a reader sees exactly where something is gone.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX, PIECE = "output-", 1 << 16
_TAIL_SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Some output: `offset` of its first byte, the bytes, and how many before it were cut."""

    offset: int
    data: bytes
    cut: int


@dataclass(slots=True)
class _Segment:
    start: int
    length: int = 0


class JobLog:
    """Writes a job's output within `bound` bytes. `size` is what the job has written, `dropped` what was cut of it."""

    def __init__(self, directory: Path, bound: int) -> None:
        self._directory = directory
        self._first, self._next = max(1, bound // 2), max(1, bound // (2 * _TAIL_SEGMENTS))
        self.size = 0
        self.dropped = 0
        self._segments: list[_Segment] = []
        self._fd = -1
        self._room = 0

    def write(self, data: bytes) -> None:
        """Append, and let go of the oldest segment but the first where there are too many.

        What the disk does not take is cut: it is counted, and what comes later goes to its own offset.
        """
        rest = memoryview(data)
        while rest:
            try:
                if not self._room:
                    self._begin_segment()
                written = os.write(self._fd, rest[: self._room])
            except OSError:
                self._cut(len(rest))
                return
            self._room -= written
            self.size += written
            self._segments[-1].length += written
            self._let_go()
            rest = rest[written:]

    def close(self) -> None:
        """Nothing is written any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_segment(self) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path(self.size), flags, 0o600)
        self._room = self._next if self._segments else self._first
        self._segments.append(_Segment(self.size))

    def _cut(self, length: int) -> None:
        if self._segments and not self._segments[-1].length:
            self._remove(len(self._segments) - 1)
        self.size += length
        self.dropped += length
        self._room = 0

    def _let_go(self) -> None:
        while len(self._segments) > 1 + _TAIL_SEGMENTS:
            self.dropped += self._segments[1].length
            self._remove(1)

    def _remove(self, index: int) -> None:
        with contextlib.suppress(OSError):
            self._path(self._segments.pop(index).start).unlink()

    def _path(self, start: int) -> Path:
        return self._directory / f"{PREFIX}{start:020}"


def read_pieces(directory: Path, offset: int) -> Iterator[Piece]:
    """What is kept of the output from `offset` on, in order, up to what is there now."""
    segments = sorted((int(path.name.removeprefix(PREFIX)), path) for path in directory.glob(f"{PREFIX}*"))
    for start, path in segments:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # let go of meanwhile; the next piece says so
        try:
            if offset >= start + os.fstat(fd).st_size:
                continue
            cut = max(0, start - offset)
            offset = max(offset, start)
            while data := os.pread(fd, PIECE, offset - start):
                yield Piece(offset, data, cut)
                offset, cut = offset + len(data), 0
        finally:
            os.close(fd)
