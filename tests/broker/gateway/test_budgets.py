"""Budgets of bytes on the real planes: exact, whatever carries the bytes, and heads cost like bodies."""

import asyncio
import socket
import time
from ipaddress import ip_address

import pytest

from broker.gateway.broker import Broker
from broker.gateway.metering import Meter
from broker.policy.authority import Authority
from broker.policy.grants import Budgets, CallId, Grant, GrantId, Usage
from broker.policy.names import parse_host_name
from tests.broker.gateway.h2_peers import H2Origin, request
from tests.broker.gateway.test_h2_plane import RULES, ask
from tests.broker.gateway.test_tunnels import FIRST
from tests.broker.gateway.test_tunnels import RULES as TUNNEL
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up, read_all

pytestmark = pytest.mark.live


def give(broker: Broker, **budgets: int) -> Meter:
    """Put the session under a grant for all that the policy allows."""
    session = broker.sessions["test"]
    now = time.time()
    grant = Grant(
        id=GrantId("g-1"),
        call=CallId("call-1"),
        rules=session.policy.rules,
        issued_at=now,
        expires_at=now + 600,
        budgets=Budgets(**budgets),
    )
    session.grant, session.meter = grant, Meter(grant, Usage(), time.time)
    session.meter.on_end = broker.end_grant
    return session.meter


@pytest.mark.parametrize("way", ["bytes_up", "bytes_down"])
@in_world
async def test_streams_end_at_the_byte(world: World, *, way: str) -> None:
    origin = H2Origin()
    async with (
        world.broker(RULES, inspect=True) as broker,
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        meter = give(broker, **{way: 30_000})
        answered = await world.inside(ask, world, request("/echo", method="POST"), bytes(10_000))
        assert answered.body == bytes(10_000)
        used = getattr(meter.usage, way)
        assert 10_000 < used < 11_000
        answered = await world.inside(ask, world, request("/echo", method="POST"), bytes(16_000))
        assert len(answered.body) == 16_000
        answered = await world.inside(ask, world, request("/echo", method="POST"), bytes(16_000))
        assert len(answered.body) < 4_000
        assert getattr(meter.usage, way) == 30_000
        assert [one["reason"] for one in world.records("close")] == ["finished", "finished", "grant_exhausted"]


@in_world
async def test_heads_are_bytes_too(world: World) -> None:
    """Else a thousand requests without a body would carry out megabytes under a budget of one kilobyte."""
    origin = H2Origin()
    async with (
        world.broker(RULES, inspect=True) as broker,
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        meter = give(broker, bytes_up=2000)
        carried = request("/echo", ("x-carried", "a" * 1500))
        assert (await world.inside(ask, world, carried)).headers[0][":status"] == "200"
        await world.inside(ask, world, carried)
        assert meter.usage.bytes_up == 2000
        assert len(origin.requests) == 1


@in_world
async def test_what_comes_with_a_connect_is_counted_once(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(FIRST))
        writer.write(b"seen")

    def talk(connect: bytes) -> bytes:
        with socket.create_connection(("198.19.255.1", 3128), 20) as sock:
            sock.sendall(connect + FIRST)
            return read_all(sock)

    fixed = {Authority(parse_host_name("api.example.com"), 443): (ip_address(PUBLIC),)}
    async with world.broker(TUNNEL, fixed=fixed) as broker, world.origin(behave, port=443):
        meter = give(broker, bytes_up=100_000)
        connect = b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n"
        assert (await world.inside(talk, connect)).endswith(b"seen")
        assert meter.usage.bytes_up == len(connect) + len(FIRST)


@pytest.mark.parametrize("budget", [len(FIRST) + 1, 200_001, 3_000_000])
@in_world
async def test_a_tunnel_ends_at_the_byte_both_ways(world: World, *, budget: int) -> None:
    heard = bytearray()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(FIRST))
        if down:
            writer.write(bytes(5_000_000))
        while data := await reader.read(65536):
            heard.extend(data)

    def talk(where: tuple[str, int]) -> bytes:
        with socket.create_connection(where, 20) as sock:
            sock.sendall(FIRST)
            if not down:
                try:
                    sock.sendall(bytes(5_000_000))
                except ConnectionError:
                    return b"RESET"
            return read_all(sock)

    fixed = {Authority(parse_host_name("api.example.com"), 443): (ip_address(PUBLIC),)}
    async with world.broker(TUNNEL, fixed=fixed) as broker, world.origin(behave, port=443):
        where = await world.inside(look_up, "api.example.com"), 443
        down = True
        meter = give(broker, bytes_down=budget)
        answer = await world.inside(talk, where)
        assert answer.endswith(b"RESET")
        assert len(answer) - len(b"RESET") <= budget == meter.usage.bytes_down
        down = False
        meter = give(broker, bytes_up=budget)
        answer = await world.inside(talk, where)
        assert answer.endswith(b"RESET")
        assert len(FIRST) + len(heard) <= budget == meter.usage.bytes_up
