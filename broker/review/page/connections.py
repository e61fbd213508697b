"""One connection of a browser: counted, closed where nobody is let in, answered in one form even if it is not HTTP."""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from broker.review.page import answers
from broker.review.page.rendering import render

MOST: Final = 128
PATIENCE: Final = 10.0  # seconds until a connection has to be let in, and for each body
_KEEP_ALIVE: Final = 30.0


class Room:
    """How many connections are open. `taken` once more for each; `strangers`: those not let in so far, oldest first."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.taken = 0
        self.strangers: dict[Connection, asyncio.Transport] = {}

    def make(self) -> bool:
        """See to it that there is room for one more. Everybody on the machine can connect: strangers give way first."""
        if self.taken < self.most:
            return True
        oldest = next(iter(self.strangers), None)
        if oldest is not None:
            self.strangers.pop(oldest).abort()
        return oldest is not None


class Connection(RequestHandler):
    """One connection. Nothing is unpacked, and no address with a token in it is written down."""

    __slots__ = ("_counted", "_room")

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, room: Room) -> None:
        super().__init__(server, loop=loop, keepalive_timeout=_KEEP_ALIVE, auto_decompress=False, access_log=None)  # type: ignore[arg-type]
        self._room = room
        self._counted = False

    def let_in(self) -> None:
        """It bears what opens the page."""
        self._room.strangers.pop(self, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins; where there are too many that were let in, it ends at once."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        if not self._room.make():
            transport.abort()
            return
        self._room.taken += 1
        self._counted = True
        self._room.strangers[self] = transport
        asyncio.get_running_loop().call_later(PATIENCE, self._close_stranger, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has ended."""
        super().connection_lost(exc)
        self._room.strangers.pop(self, None)
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

    def _close_stranger(self, transport: asyncio.Transport) -> None:
        if self in self._room.strangers and not transport.is_closing():
            transport.close()


def factory(server: web.Server, loop: asyncio.AbstractEventLoop, room: Room) -> Callable[[], Connection]:
    """What a listener makes of each connection."""
    return lambda: Connection(server, loop, room)
