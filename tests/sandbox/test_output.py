"""The pipes of a command: passed on, bounded, and closed however early whoever reads them is cancelled."""

import asyncio
import os
from contextlib import suppress

import pytest

from sandbox.output import Budget, Pipe, feed


async def ignore(_chunk: bytes) -> None:
    return


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def over(task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_reader_closes_its_pipe(*, steps: int) -> None:
    """A client may be gone before the reader's first step: then no `finally` of it is ever entered."""
    before = descriptors()
    pipe = Pipe()
    task = pipe.pump(ignore, Budget(10))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await over(task)
    pipe.close_writer()
    assert descriptors() == before


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_writer_closes_the_standard_input(*, steps: int) -> None:
    before = descriptors()
    reader, writer = os.pipe2(os.O_CLOEXEC)
    task = feed(writer, b"x" * (1 << 20))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await over(task)
    os.close(reader)
    assert descriptors() == before


async def test_what_is_beyond_the_bound_is_read_and_counted() -> None:
    kept = bytearray()

    async def keep(chunk: bytes) -> None:
        kept.extend(chunk)

    pipe, budget = Pipe(), Budget(100_000)
    task = pipe.pump(keep, budget)
    fed = feed(os.dup(pipe.writer), b"abcdefgh" * 40_000)
    pipe.close_writer()
    await fed
    await task
    assert (bytes(kept), budget.dropped) == ((b"abcdefgh" * 40_000)[:100_000], 220_000)
