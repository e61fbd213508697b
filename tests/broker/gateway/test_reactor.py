"""The one epoll: what has arrived counts before a deadline that passed meanwhile."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from broker.gateway.reactor import TICK, Reactor


class Waiting:
    """Gives up what does not arrive by its deadline."""

    def __init__(self, reactor: Reactor, sock: socket.socket, seconds: float) -> None:
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.deadline = reactor.now + seconds
        self._reactor, self._sock = reactor, sock
        reactor.add(sock.fileno(), self.on_event)
        reactor.watch(self)

    def on_event(self, _events: int) -> None:
        try:
            self._end(self._sock.recv(100).decode())
        except BlockingIOError:
            return

    def on_deadline(self, _events: int) -> None:
        self._end("given up")

    def _end(self, how: str) -> None:
        self._reactor.unwatch(self)
        if not self.outcome.done():
            self.outcome.set_result(how)


def failed(_callback: Callable[..., None], error: Exception) -> None:
    raise AssertionError("a handler failed") from error


async def after_a_pause(arrives: bool) -> str:
    """The outcome for something that is due, and perhaps arrives, while another handler holds the loop up."""
    reactor = Reactor(asyncio.get_running_loop(), end_turn=lambda: None, failed=failed)
    near, far = socket.socketpair()
    other, trigger = socket.socketpair()
    with near, far, other, trigger:
        near.setblocking(False)
        waiting = Waiting(reactor, near, seconds=TICK / 2)

        def stall(_events: int) -> None:
            reactor.remove(other.fileno())
            if arrives:
                far.send(b"in time")
            time.sleep(3 * TICK)  # the pause itself, as of a disk that stalls: nothing of this process runs

        reactor.add(other.fileno(), stall)
        trigger.send(b"!")
        how = await asyncio.wait_for(waiting.outcome, 30)
        reactor.remove(near.fileno())
        reactor.close()
    return how


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("arrives", "how"), [(True, "in time"), (False, "given up")])
def test_what_came_during_a_pause_counts(
    loop: Callable[[], asyncio.AbstractEventLoop], arrives: bool, how: str
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(after_a_pause(arrives)) == how
