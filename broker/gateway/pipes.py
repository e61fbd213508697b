"""splice(2) for bulk that nobody looks into: pages move from socket to socket by way of a pipe, without a copy to us.

It pays for long runs of large pieces and costs more than reading for small ones, so a stream enters it after reads that
filled the buffer, and leaves it for good when its pieces turn out small (TLS records of some senders).
"""

import contextlib
import fcntl
import os

SIZE = 1 << 20
POOL = 32
FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
FULL_READS = 2  # in a row, before it is tried
SMALL = 96 * 1024  # mean bytes of a splice below which reading is cheaper


class Pipe:
    """One pipe. `held` bytes are in it."""

    __slots__ = ("held", "reader", "writer")

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.held = 0
        try:
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, SIZE)
        except OSError:
            self.close()
            raise

    def fill(self, source: int, most: int) -> int:
        """Take from a socket; 0 at its end. Raises BlockingIOError when there is nothing."""
        count = os.splice(source, self.writer, min(SIZE, most), flags=FLAGS)
        self.held += count
        return count

    def drain(self, sink: int) -> int:
        """Give to a socket. Raises BlockingIOError when it takes nothing."""
        count = os.splice(self.reader, sink, self.held, flags=FLAGS)
        self.held -= count
        return count

    def close(self) -> None:
        """Drop it, and what it holds."""
        for fd in (self.reader, self.writer):
            with contextlib.suppress(OSError):
                os.close(fd)


class Pipes:
    """A bounded pool. Empty pipes come back to it; the kernel's limits on pipe memory make it answer None."""

    __slots__ = ("_idle", "_refused")

    def __init__(self) -> None:
        self._idle: list[Pipe] = []
        self._refused = False

    def take(self) -> Pipe | None:
        """A pipe, or None: then reading has to do."""
        if self._idle:
            return self._idle.pop()
        if self._refused:
            return None
        try:
            return Pipe()
        except OSError:
            self._refused = True  # /proc/sys/fs/pipe-user-pages-soft, or no descriptors: not asked again
            return None

    def give(self, pipe: Pipe) -> None:
        """Keep an empty one, drop any other."""
        if pipe.held or len(self._idle) >= POOL:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        """Drop all."""
        for pipe in self._idle:
            pipe.close()
        self._idle.clear()
