"""What a command writes: read as it comes, bounded, and with an honest count of what was cut.

A reader that does not keep up slows the command down, as a pipe does; past the bound everything is read and thrown
away, so that a command never hangs on output that nobody wants.
"""

import asyncio
import contextlib
import os
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

    async def pump(self, sink: Sink, budget: Budget) -> None:
        """Pass on what is written, within the budget, until nobody can write any more."""
        try:
            while chunk := await self._read():
                kept = budget.take(chunk)
                if kept:
                    await sink(kept)
        finally:
            self.close()

    async def _read(self) -> bytes:
        while True:
            try:
                return os.read(self.reader, CHUNK)
            except BlockingIOError:
                await readable(self.reader)


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def feed(fd: int, content: bytes) -> None:
    """Write everything to a command's standard input and close it; a command that does not read is no error."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    rest = memoryview(content)
    try:
        with contextlib.suppress(OSError):
            while rest:
                try:
                    rest = rest[os.write(fd, rest) :]
                except BlockingIOError:
                    ready: asyncio.Future[None] = loop.create_future()
                    loop.add_writer(fd, _resolve, ready)
                    try:
                        await ready
                    finally:
                        loop.remove_writer(fd)
    finally:
        os.close(fd)
