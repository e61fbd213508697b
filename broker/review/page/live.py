"""Streams (HTML: server-sent events) that tell how many newer records match. They carry a number and nothing else.

The files are looked at once for all streams; only when one has grown does each stream ask the index.
"""

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from broker.audit.segments import list_segments
from broker.review.page.answers import HEADERS
from broker.review.page.reader import Unanswered

STREAM: Final = "text/event-stream"
_MOST: Final = 24
_LOOK_SECONDS: Final = 1.0
_LIFE_SECONDS: Final = 600.0  # then the browser asks again by itself
_BEAT_SECONDS: Final = 20.0  # an empty line, so that a client that has gone is noticed
Shape = tuple[int, int]


class Streams:
    """All streams of a page on one directory (a descriptor)."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._open = 0
        self._grown = asyncio.Condition()
        self._turn = asyncio.Lock()  # one of them asks at a time: pages are not to wait for what runs beside them
        self._watch: asyncio.Task[None] | None = None
        self._shape: Shape = (0, 0)

    @property
    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return self._open >= _MOST

    async def serve(self, request: web.BaseRequest, ask: Callable[[], Awaitable[int]]) -> web.StreamResponse:
        """Tell each new number until the client goes or the stream's time is up. `ask` gives the number.

        Once it has begun there is no other answer: what goes wrong ends the stream, and the browser asks again.
        """
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": STREAM})
        with self._counted():
            await answer.prepare(request)
            try:
                async with asyncio.timeout(_LIFE_SECONDS):
                    await self._tell(answer, ask)
            except TimeoutError:
                pass
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001  as `server`'s guard does, which would begin a second answer
                traceback.print_exception(error)
            await answer.write_eof()
        return answer

    async def _tell(self, answer: web.StreamResponse, ask: Callable[[], Awaitable[int]]) -> None:
        told = 0
        await answer.write(b"retry: 5000\n\n")
        while True:
            before = self._shape
            async with self._turn:
                number = await _ask_or(told, ask)
            if number != told:
                await answer.write(b"data: %d\n\n" % number)
                told = number
            while not await self._wait_grown(before):
                await answer.write(b":\n\n")

    async def _wait_grown(self, before: Shape) -> bool:
        try:
            async with asyncio.timeout(_BEAT_SECONDS), self._grown:
                await self._grown.wait_for(lambda: self._shape != before)
        except TimeoutError:
            return False
        return True

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._open += 1
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._open -= 1
            if not self._open and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    async def _look(self) -> None:
        while True:
            shape = await asyncio.to_thread(_shape, self._directory)
            if shape != self._shape:
                async with self._grown:
                    self._shape = shape
                    self._grown.notify_all()
            await asyncio.sleep(_LOOK_SECONDS)


async def _ask_or(told: int, ask: Callable[[], Awaitable[int]]) -> int:
    """What has no answer now (a locked index, too many questions) is asked again when more has come."""
    try:
        return await ask()
    except Unanswered:
        return told


def _shape(directory: int) -> Shape:
    """How many files there are and how much is in them; what cannot be looked at counts for nothing."""
    try:
        names = [segment.name for segment in list_segments(directory)]
        sizes = [os.stat(name, dir_fd=directory, follow_symlinks=False).st_size for name in names]
    except OSError:
        return 0, 0
    return len(sizes), sum(sizes)
