"""A command's output, drained to the end and kept up to a bound, for `--json`."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

KEPT = 1 << 20  # bytes of each stream
CHUNK = 1 << 16


class Stream(msgspec.Struct, frozen=True):
    """What was kept, and how many bytes were written beyond it."""

    kept: bytes
    dropped: int


class Captured(msgspec.Struct, frozen=True):
    """Both streams of a command."""

    stdout: Stream
    stderr: Stream


class _Pipe(msgspec.Struct):
    reader: int
    writer: int
    kept: bytearray = msgspec.field(default_factory=bytearray)
    dropped: int = 0

    def drain(self) -> bool:
        """Read once; False at the end."""
        chunk = os.read(self.reader, CHUNK)
        room = KEPT - len(self.kept)
        self.kept += chunk[:room]
        self.dropped += max(0, len(chunk) - room)
        return bool(chunk)

    def close(self, *, writer_only: bool = False) -> None:
        for name in ("writer",) if writer_only else ("writer", "reader"):
            with contextlib.suppress(OSError):
                os.close(getattr(self, name))
            setattr(self, name, -1)


class Capture:
    """Two pipes; the command never waits for a reader as long as somebody calls the drains."""

    def __init__(self) -> None:
        self._pipes = tuple(_Pipe(*os.pipe2(os.O_CLOEXEC)) for _ in range(2))

    @property
    def stdio(self) -> dict[int, int]:
        """For `launch`."""
        return {number: pipe.writer for number, pipe in enumerate(self._pipes, 1)}

    @property
    def errors(self) -> int:
        """Where standard error can be read."""
        return self._pipes[1].reader

    def drains(self) -> dict[int, Callable[[], bool]]:
        """For `supervise`. Call it after the launch: it closes this process's own write ends."""
        for pipe in self._pipes:
            pipe.close(writer_only=True)
        return {pipe.reader: partial(_Pipe.drain, pipe) for pipe in self._pipes}

    def result(self) -> Captured:
        """Both streams, once the command has ended."""
        return Captured(*(Stream(bytes(pipe.kept), pipe.dropped) for pipe in self._pipes))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
