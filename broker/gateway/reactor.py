"""One edge-triggered epoll, itself one reader of the asyncio loop (epoll(7), "nested" epoll descriptors).

Handlers are called with an event mask and must read or write until the kernel says EAGAIN, or ask to be called again.
A turn ends with the log's flush: whatever was decided in it is on record before its result can matter.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from broker.gateway.pipes import Pipes

IN, OUT = select.EPOLLIN, select.EPOLLOUT
BROKEN = select.EPOLLHUP | select.EPOLLERR  # both ways are gone
HANGUP = select.EPOLLRDHUP | BROKEN  # the peer will send nothing more
STREAM = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
LISTENER = select.EPOLLIN | select.EPOLLET
EVENTS_A_TURN = 512
BUFFER_BYTES = 256 * 1024
READ_COST = 4096  # bytes that a read counts for at the least of those of a turn: a TLS record may carry one

TURN_SECONDS = 0.01  # of work, after which whoever has more to do should stop: octets do not weigh what they cost

TICK = 0.1  # seconds between looks at the deadlines: none of them is finer

type Handler = Callable[[int], None]
type Failed = Callable[[Callable[..., None], Exception], None]


class Timed(Protocol):
    """Something with an absolute deadline on the reactor's clock, which may move at any time."""

    deadline: float

    def on_deadline(self, events: int) -> None:
        """The deadline has passed: end, or set a later one. `events` is 0."""


class Reactor:
    """Registers descriptors and calls their handlers. `buffer` is the one read buffer that all handlers share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        end_turn: Callable[[], None],
        failed: Failed,
    ) -> None:
        self.loop = loop
        self.now = loop.time()
        self._turn_began = monotonic()
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.pipes = Pipes()
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._again: list[tuple[int, Handler]] = []
        self._timed: set[Timed] = set()
        self._ticking = False
        self._end_turn = end_turn
        self._failed = failed
        loop.add_reader(self._epoll.fileno(), self._turn)

    def add(self, fd: int, handler: Handler, events: int = STREAM) -> None:
        """Watch a descriptor."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def replace(self, fd: int, handler: Handler) -> None:
        """Give a watched descriptor another handler. The new one is not told of earlier events: let it try at once."""
        self._handlers[fd] = handler

    def remove(self, fd: int) -> None:
        """Stop watching; do it before the descriptor is closed. Unknown descriptors are ignored."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Stop calling the handler of a descriptor that is closed next: closing takes it out of the epoll (epoll(7)).

        Only for sockets that nobody else holds; `remove` is for the others.
        """
        self._handlers.pop(fd, None)

    def again(self, fd: int, events: int) -> None:
        """Call the handler of `fd` again in the next turn: it stopped before EAGAIN, to let others have their turn."""
        handler = self._handlers.get(fd)
        if handler is not None:
            if not self._again:
                self.loop.call_soon(self._turn)
            self._again.append((events, handler))

    def is_late(self) -> bool:
        """Whether this turn has taken long already; who may go on `again` then should. The loop's own clock stands."""
        return monotonic() - self._turn_began > TURN_SECONDS

    def watch(self, timed: Timed) -> None:
        """Look at the deadline of `timed` until `unwatch`. Moving a deadline costs an assignment and nothing else."""
        self._timed.add(timed)
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(TICK, self._tick)

    def unwatch(self, timed: Timed) -> None:
        """Forget it. Unknown ones are ignored."""
        self._timed.discard(timed)

    def later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back once, as a turn of its own (so the log is flushed after it)."""
        return self.loop.call_later(seconds, self.run, callback)

    def run(self, callback: Callable[[], None]) -> None:
        """Run something that is not a descriptor's event as a turn: guarded, and with the flush at its end."""
        self.now = self.loop.time()
        try:
            callback()
        except Exception as error:  # noqa: BLE001  as in `call`
            self._failed(callback, error)
        self._end_turn()

    def close(self) -> None:
        """Stop. Descriptors that are still watched stay open: their owners close them."""
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self.pipes.close()

    def _tick(self) -> None:
        self.now = now = self.loop.time()
        if any(one.deadline <= now for one in self._timed):
            # After a turn that took long (a disk that stalls, a suspended machine) the loop looks at its timers before
            # it looks at descriptors (uvloop): what has arrived meanwhile must not be taken for silence.
            self._turn()
        for timed in [one for one in self._timed if one.deadline <= now]:
            if timed in self._timed:
                self.call(timed.on_deadline, 0)
        self._end_turn()
        self._ticking = bool(self._timed)
        if self._ticking:
            self.loop.call_later(TICK, self._tick)

    def _turn(self) -> None:
        self.now = self.loop.time()
        self._turn_began = monotonic()
        again, self._again = self._again, []
        for events, handler in again:
            self.call(handler, events)
        handlers = self._handlers
        for fd, events in self._epoll.poll(0, EVENTS_A_TURN):
            found = handlers.get(fd)
            if found is not None:
                try:  # `call`, without the detour: this is the data path
                    found(events)
                except Exception as error:  # noqa: BLE001  as in `call`
                    self._failed(found, error)
        self._end_turn()

    def call[T](self, callback: Callable[[T], None], argument: T) -> None:
        """Call something that another object waits for: a fault in it is its owner's, not the caller's."""
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  the one guard: our own fault becomes a denial and a record
            self._failed(callback, error)
