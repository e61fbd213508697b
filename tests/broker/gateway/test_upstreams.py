"""The pool of upstreams: bounded for an authority and a session, the longest idle goes first, none is given twice."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from broker.gateway.dial import Dialled
from broker.gateway.reactor import IN, Reactor
from broker.gateway.streams import PlainStream
from broker.gateway.upstreams import PER_AUTHORITY, PER_SESSION, Upstream, Upstreams
from broker.policy.authority import Authority, parse_authority
from tests.broker.gateway.test_http_plane import FIXED, HOST, OK, RULES, answering
from tests.broker.gateway.world import World, in_world, look_up


class Pool:
    """A pool, and the far ends of what it holds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reactor = Reactor(loop, end_turn=lambda: None, failed=self._failed)
        self.upstreams = Upstreams(self.reactor)
        self.ends: list[socket.socket] = []

    def _failed(self, _callback: Callable[..., None], error: Exception) -> None:
        raise error

    def make(self) -> Upstream:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self.ends.append(far)
        self.reactor.add(near.fileno(), lambda _events: None)
        return Upstream(PlainStream(near), Dialled(near, "192.0.2.1", 443, 0))

    def give(self, authority: Authority) -> Upstream:
        upstream = self.make()
        self.upstreams.give("https", authority, upstream)
        return upstream

    def is_closed(self, number: int) -> bool:
        try:
            return self.ends[number].recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.upstreams.close()
        self.reactor.close()
        for end in self.ends:
            end.close()


@pytest.fixture
async def pool() -> Pool:
    return Pool(asyncio.get_running_loop())


def authority(number: int = 0) -> Authority:
    return parse_authority(b"a%d.example" % number, default_port=443)


async def test_the_last_used_is_taken_first_and_only_once(pool: Pool) -> None:
    first, second = pool.give(authority()), pool.give(authority())
    taken = [pool.upstreams.take("https", authority()) for _ in range(3)]
    assert taken == [second, first, None]
    assert first.used
    pool.close()


async def test_another_scheme_or_authority_gets_none(pool: Pool) -> None:
    pool.give(authority())
    assert pool.upstreams.take("http", authority()) is None
    assert pool.upstreams.take("https", authority(1)) is None
    pool.close()


async def test_one_authority_is_bounded(pool: Pool) -> None:
    for _ in range(PER_AUTHORITY + 1):
        pool.give(authority())
    assert [number for number in range(PER_AUTHORITY + 1) if pool.is_closed(number)] == [PER_AUTHORITY]
    pool.close()


async def test_a_session_is_bounded_and_the_longest_idle_goes(pool: Pool) -> None:
    for number in range(PER_SESSION + 2):
        pool.reactor.now += 0.001
        pool.give(authority(number))
    assert [number for number in range(PER_SESSION + 2) if pool.is_closed(number)] == [0, 1]
    pool.close()


async def test_room_is_counted_again_when_one_is_taken_or_ends(pool: Pool) -> None:
    for number in range(PER_SESSION):
        pool.reactor.now += 0.001
        pool.give(authority(number))
    assert pool.upstreams.take("https", authority(3)) is not None
    idle = pool.reactor._handlers[max(pool.reactor._handlers)]
    idle(IN)  # the origin ended the last one
    pool.give(authority(98))
    pool.give(authority(99))
    assert not pool.is_closed(0)
    pool.give(authority(100))
    assert pool.is_closed(0)
    pool.close()


def ask_and_stay(where: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(where, 20)
    ask_again(sock)
    return sock


def ask_again(sock: socket.socket) -> None:
    sock.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    got = b""
    while not got.endswith(b"\r\n\r\nok"):
        piece = sock.recv(4096)
        assert piece, got
        got += piece


@pytest.mark.live
@in_world
async def test_what_rested_serves_the_next_client(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED) as broker, world.origin(answering(OK)) as origin:
        where = await world.inside(look_up, HOST), 80
        clients = [await world.inside(ask_and_stay, where)]
        for _ in range(3):
            deadline = time.monotonic() + 20
            while not broker.sessions["test"].upstreams._count:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.025)
            clients.append(await world.inside(ask_and_stay, where))
        assert len(origin.received) == 1
        for client in clients:
            await world.inside(ask_again, client)  # all still open, those too that hold no upstream any more
            client.close()
