"""A command's output, drained to the end and kept up to a bound, for `--json`."""

import contextlib
import os
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

KEPT = 1 << 20  # bytes of each stream
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Stream:
    """What was kept, and how many bytes were written beyond it."""

    kept: bytes
    dropped: int


@dataclass(frozen=True, slots=True)
class Captured:
    """Both streams of a command."""

    stdout: Stream
    stderr: Stream


class Capture:
    """Two pipes and the threads that drain them; the command never waits for a reader."""

    def __init__(self) -> None:
        self._pipes = (os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC))
        self._kept: list[bytearray] = [bytearray(), bytearray()]
        self._dropped = [0, 0]
        self._threads: list[threading.Thread] = []

    @property
    def stdio(self) -> dict[int, int]:
        """For `launch`."""
        return {1: self._pipes[0][1], 2: self._pipes[1][1]}

    def start(self) -> None:
        """Close this process's write ends and drain. Call it after the launch: threads must not be forked."""
        for number, (_reader, writer) in enumerate(self._pipes):
            os.close(writer)
            thread = threading.Thread(target=self._drain, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def result(self) -> Captured:
        """Both streams, once the command has ended."""
        for thread in self._threads:
            thread.join()
        return Captured(*(Stream(bytes(kept), dropped) for kept, dropped in zip(self._kept, self._dropped, strict=True)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._threads:
            for pipe in self._pipes:
                for fd in pipe:
                    with contextlib.suppress(OSError):
                        os.close(fd)

    def _drain(self, number: int) -> None:
        reader = self._pipes[number][0]
        kept = self._kept[number]
        while chunk := os.read(reader, CHUNK):
            room = KEPT - len(kept)
            kept += chunk[:room]
            self._dropped[number] += max(0, len(chunk) - room)
        os.close(reader)
