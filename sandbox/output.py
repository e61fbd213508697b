"""What a command writes: read as it comes, bounded, and with an honest count of what was cut.

A reader that does not keep up slows the command down, as a pipe does; past the bound everything is read and thrown
away, so that a command never hangs on output that nobody wants.
"""

import asyncio
import contextlib
import os
import select
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

CHUNK = 1 << 16

type Sink = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Budget:
    """How many bytes of a command's output are kept, over all its streams."""

    left: int
    dropped: int = 0

    def take(self, chunk: bytes) -> bytes:
        """The part that is kept."""
        kept = chunk[: self.left]
        self.left -= len(kept)
        self.dropped += len(chunk) - len(kept)
        return kept


class Pipe:
    """A pipe from a command: `writer` goes to the command, `pump` reads until all copies of it are closed."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._waiting: asyncio.Future[None] | None = None
        self._finishing = False

    @property
    def is_open(self) -> bool:
        """Whether its reading end is."""
        return self.reader >= 0

    def close_writer(self) -> None:
        """Close our own copy, once the command has its own."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Close both ends."""
        self.close_writer()
        if self.reader >= 0:
            asyncio.get_running_loop().remove_reader(self.reader)
            os.close(self.reader)
            self.reader = -1

    def finish(self) -> None:
        """Have `pump` end when the pipe is empty, though others can still write. What they write is thrown away."""
        self._finishing = True
        if self._waiting is not None:
            _resolve(self._waiting)

    def pump(self, sink: Sink, budget: Budget) -> asyncio.Task[None]:
        """A task that passes on what is written, within the budget, until nobody can write any more."""
        task = asyncio.create_task(self._pump(sink, budget))
        task.add_done_callback(self._end_unbegun)
        return task

    def _end_unbegun(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never enters `_pump`, whose end would close the pipe."""
        if task.cancelled():
            self.close()

    async def _pump(self, sink: Sink, budget: Budget) -> None:
        left_open = False
        try:
            while chunk := await self._read():
                kept = budget.take(chunk)
                if kept:
                    await sink(kept)
            left_open = self._finishing and self._is_empty()
        finally:
            if left_open:
                asyncio.get_running_loop().add_reader(self.reader, self._throw_away)
            else:
                self.close()

    async def _read(self) -> bytes:
        while True:
            try:
                return os.read(self.reader, CHUNK)
            except BlockingIOError:
                if self._finishing:
                    return b""
                self._waiting = asyncio.get_running_loop().create_future()
                await readable(self.reader, self._waiting)

    def _is_empty(self) -> bool:
        """Whether it is only empty for now; at its end it is not."""
        return not _has_ended(self.reader)

    def _throw_away(self) -> None:
        try:
            if os.read(self.reader, CHUNK):
                return
        except BlockingIOError:
            return
        self.close()


def _has_ended(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


async def readable(fd: int, ready: asyncio.Future[None]) -> None:
    """Wait until a descriptor can be read, or the future is resolved by somebody else."""
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def writable(fd: int) -> None:
    """Wait until a descriptor takes bytes, or whoever reads it has gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def feed(fd: int, content: bytes) -> asyncio.Task[None]:
    """A task that writes everything to a command's standard input; a command that does not read is no error.

    The descriptor is closed when the task is over, also when it was cancelled before its first step.
    """
    task = asyncio.create_task(_feed(fd, content))
    task.add_done_callback(lambda _: os.close(fd))
    return task


async def _feed(fd: int, content: bytes) -> None:
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        await write_all(fd, content)


async def write_all(fd: int, content: bytes) -> None:
    """Write everything to a non-blocking descriptor, as fast as it is read. Raises OSError."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            await writable(fd)
