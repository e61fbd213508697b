"""One connection of a browser: counted, closed when it is silent, answered in one form also where it is not HTTP."""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from broker.review.page import answers
from broker.review.page.rendering import render

MOST: Final = 128
PATIENCE: Final = 10.0  # seconds for the first head of a connection, and for each body
_KEEP_ALIVE: Final = 30.0


class Room:
    """How many connections are open. `taken` once more for each."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.taken = 0


class Connection(RequestHandler):
    """One connection. Nothing is unpacked, and no address with a token in it is written down."""

    __slots__ = ("_counted", "_room", "heard")

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, room: Room) -> None:
        super().__init__(server, loop=loop, keepalive_timeout=_KEEP_ALIVE, auto_decompress=False, access_log=None)  # type: ignore[arg-type]
        self._room = room
        self._counted = False
        self.heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins; where there are too many, it ends at once."""
        super().connection_made(transport)
        if self._room.taken >= self._room.most:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            return
        self._room.taken += 1
        self._counted = True
        asyncio.get_running_loop().call_later(PATIENCE, self._close_silent, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has ended."""
        super().connection_lost(exc)
        if self._counted:
            self._counted = False
            self._room.taken -= 1

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be read as HTTP."""
        sentence = "This is not a request of HTTP that the page can read." if status < 500 else "The page failed."
        answer = answers.page(render("barred.html", sentence=sentence), status)
        answer.force_close()
        return answer

    def _close_silent(self, transport: asyncio.BaseTransport) -> None:
        if not self.heard and not transport.is_closing():
            transport.close()


def factory(server: web.Server, loop: asyncio.AbstractEventLoop, room: Room) -> Callable[[], Connection]:
    """What a listener makes of each connection."""
    return lambda: Connection(server, loop, room)
