"""A side that gives an octet at a time, for ever, has its turn and no more."""

import asyncio
import socket
from time import monotonic

from broker.gateway.reactor import IN, READ_COST, TURN_SECONDS, Reactor
from broker.gateway.relay import BYTES_A_TURN, Tunnel
from broker.policy.limits import Limits
from broker.policy.reasons import Reason


class Trickle:
    """As TLS behaves whose records carry one octet each, and of which there is always one more."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reads = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        self.reads += 1
        buffer[0] = 0
        return 1

    def send(self, data: bytes | memoryview, /) -> int:
        return len(data)

    def shutdown(self, how: int, /) -> None:
        self.sock.shutdown(how)

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        self.sock.setsockopt(level, option, value)

    def close(self) -> None:
        self.sock.close()


class Unheard:
    def tunnel_lives(self, tunnel: Tunnel) -> None:
        """Nothing to record."""

    def tunnel_ended(self, tunnel: Tunnel, reason: Reason, detail: str) -> None:
        """Nothing to record."""


async def test_a_turn_ends_by_the_number_of_reads_too() -> None:
    faults: list[Exception] = []
    reactor = Reactor(
        asyncio.get_running_loop(), end_turn=lambda: None, failed=lambda _callback, error: faults.append(error)
    )
    near, far = socket.socketpair()
    sides = Trickle(near), Trickle(far)
    for side in sides:
        reactor.add(side.fileno(), lambda _events: None)
    tunnel = Tunnel(reactor, *sides, limits=Limits(), watcher=Unheard())
    tunnel.start()
    assert [side.reads for side in sides] == [BYTES_A_TURN // READ_COST] * 2
    tunnel.end(Reason.FINISHED, clean=True)
    reactor.close()
    assert not faults


async def test_a_turn_ends_by_the_work_that_was_done_too() -> None:
    """Tiny chunks, say, cost a hundred times what they weigh: whoever serves them asks whether others should go on."""
    faults: list[Exception] = []
    reactor = Reactor(
        asyncio.get_running_loop(), end_turn=lambda: None, failed=lambda _callback, error: faults.append(error)
    )
    near, far = socket.socketpair()
    seen: list[bool] = []
    served = asyncio.Event()

    def work(_events: int) -> None:
        seen.append(reactor.is_late())
        end = monotonic() + 2 * TURN_SECONDS
        while monotonic() < end:
            pass
        seen.append(reactor.is_late())
        if len(seen) == 2:
            reactor.again(near.fileno(), IN)
        else:
            served.set()

    reactor.add(near.fileno(), work)
    far.send(b"x")
    await served.wait()
    assert seen == [False, True] * 2
    reactor.close()
    near.close()
    far.close()
    assert not faults
