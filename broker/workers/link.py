"""One worker as the daemon sees it: its channel, what it serves, and what was asked of it.

The daemon never waits for a worker while it holds something up: what does not go into the channel at once is queued.
"""

import asyncio
import contextlib
import itertools
import os
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from broker.control.messages import Attach
from broker.workers import channel as channels
from broker.workers.channel import ChannelClosed
from broker.workers.messages import Done, FromWorker, Gone, Record, ToWorker, decode_from_worker, encode


class WorkerGone(Exception):  # noqa: N818
    """The worker has ended, or does not answer and is being killed."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerLink:
    """See the module. `orders` are the sessions that were handed over and are not over, by order.

    `on_gone` and `on_record` are told what the worker says; `on_closed` that its channel has closed: all that it ever
    said has been heard then.
    """

    number: int
    channel: socket.socket
    loop: asyncio.AbstractEventLoop
    on_gone: Callable[["WorkerLink", Attach, Gone], None]
    on_record: Callable[["WorkerLink", Record], None]
    on_closed: Callable[["WorkerLink"], None]
    pid: int = 0
    log: str = ""
    ready: bool = False
    can_record: bool = True  # as of its last report
    closed: bool = False
    began: float = 0.0  # on the loop's clock: when it was ready
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    orders: dict[int, Attach] = field(default_factory=dict)
    grants: Counter[str] = field(default_factory=Counter)  # of its orders
    _tickets: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _asked: dict[int, asyncio.Future[Done]] = field(default_factory=dict)
    _queue: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.loop.add_reader(self.channel.fileno(), self.drain)

    def tell(self, message: ToWorker, *descriptors: int) -> None:
        """Say something; `descriptors` are closed when it was said. A worker that has gone is told nothing."""
        self._queue.append((encode(message), descriptors))
        if len(self._queue) == 1:
            self._flush()

    async def ask(self, make: Callable[[int], ToWorker], seconds: float, *descriptors: int) -> Done:
        """Say something that is answered, and wait so long. Raises `WorkerGone`, `TimeoutError`."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Done] = self.loop.create_future()
        self._asked[ticket] = answer
        self.tell(make(ticket), *descriptors)
        if self.closed:
            self._asked.pop(ticket, None)
            raise WorkerGone(f"worker {self.number} has ended")
        try:
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            self._asked.pop(ticket, None)

    def drain(self) -> None:
        """Hear everything that the worker has said so far."""
        try:
            while not self.closed:
                message, descriptors = channels.receive(self.channel, wait=False)
                for fd in descriptors:
                    os.close(fd)
                self._hear(decode_from_worker(message))
        except BlockingIOError:
            return
        except (ChannelClosed, msgspec.DecodeError):
            self.close()

    def close(self) -> None:
        """End the channel. What was asked is not answered any more."""
        if self.closed:
            return
        self.closed, self.ready = True, False
        self.loop.remove_reader(self.channel.fileno())
        self.loop.remove_writer(self.channel.fileno())
        self.channel.close()
        self._forget_queue()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(WorkerGone(f"worker {self.number} has ended"))
        self.ended.set()
        self.on_closed(self)

    def _hear(self, message: FromWorker) -> None:
        match message:
            case Done(ticket=ticket):
                answer = self._asked.get(ticket)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Gone(order=order):
                attach = self.orders.pop(order, None)
                if attach is not None:
                    self.on_gone(self, attach, message)
            case Record():
                self.on_record(self, message)

    def _flush(self) -> None:
        if self.closed:
            self._forget_queue()
            return
        try:
            while self._queue:
                message, descriptors = self._queue[0]
                channels.send(self.channel, message, descriptors, wait=False)
                self._queue.popleft()
                _close(descriptors)
        except BlockingIOError:
            self.loop.add_writer(self.channel.fileno(), self._flush)
            return
        except OSError:
            # It has gone, which is heard by reading, after all that it said. Nothing else may be said after a gap.
            self._forget_queue()
            with contextlib.suppress(OSError):
                self.channel.shutdown(socket.SHUT_WR)
        self.loop.remove_writer(self.channel.fileno())

    def _forget_queue(self) -> None:
        while self._queue:
            _close(self._queue.popleft()[1])


def _close(descriptors: tuple[int, ...]) -> None:
    for fd in descriptors:
        os.close(fd)
