"""The splice plane through the real broker: once the hello is judged, every octet and every kind of end passes."""

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from ipaddress import ip_address

import pytest

from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.limits import DEFAULTS
from broker.policy.names import parse_host_name
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up, read_all

pytestmark = pytest.mark.live
HOST = "api.example.com"
RULES = f"""
[[rule]]
name = "tunnel"
action = "allow"
hosts = ["{HOST}"]
ports = [443]
tls = "splice"
"""
SHORT = """
[limits]
idle_seconds = 1
half_closed_seconds = 0.5
"""
FIXED: Mapping[Authority, tuple[Address, ...]] = {Authority(parse_host_name(HOST), 443): (ip_address(PUBLIC),)}
ABORT = struct.pack("ii", 1, 0)
PROXY = ("198.19.255.1", 3128)


def hello(name: str = HOST) -> bytes:
    """A real client's first flight. What follows it is opaque to the broker, so it need not be TLS here."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


FIRST = hello()


def open_tunnel(where: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(where, 20)
    sock.sendall(FIRST)
    return sock


async def address(world: World) -> tuple[str, int]:
    return await world.inside(look_up, HOST), 443


@pytest.mark.parametrize("step", [1, 7, 100, 10_000])
@in_world
async def test_the_hello_arrives_as_it_was_sent(world: World, *, step: int) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(FIRST)) == FIRST
        writer.write(b"seen")

    def talk(where: tuple[str, int]) -> bytes:
        with socket.create_connection(where, 10) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(FIRST), step):
                sock.sendall(FIRST[at : at + step])
            return read_all(sock)

    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443):
        assert await world.inside(talk, await address(world)) == b"seen"
        await world.finish()
        (close,) = world.records("close")
        assert (close["bytes_up"], close["bytes_down"]) == (len(FIRST), 4)


@in_world
async def test_a_client_that_has_said_all_still_hears_all(world: World) -> None:
    body = os.urandom(3 << 20)

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == FIRST
        writer.write(body)
        await writer.drain()

    def talk(where: tuple[str, int]) -> bytes:
        with open_tunnel(where) as sock:
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443):
        assert await world.inside(talk, await address(world)) == body


@in_world
async def test_an_end_that_comes_with_the_hello_reaches_the_origin(world: World) -> None:
    """The broker sees both in one look, or the end while it dials: either way nobody tells it again."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == FIRST
        writer.write(b"heard all")

    def ask(connect: bytes, where: tuple[str, int]) -> bytes:
        with socket.create_connection(where, 20) as sock:
            if connect:
                sock.sendall(connect)
                assert b" 200 " in sock.recv(4096)
            sock.sendall(FIRST)
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    through = f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode()
    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443):
        for connect, where in ((b"", await address(world)), (through, PROXY)):
            for _ in range(30):
                assert await world.inside(ask, connect, where) == b"heard all"


@in_world
async def test_an_origin_that_has_said_all_still_hears_all(world: World) -> None:
    body = os.urandom(3 << 20)
    heard = asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        await reader.read()
        heard.set()

    def talk(where: tuple[str, int]) -> bytes:
        with open_tunnel(where) as sock:
            end = sock.recv(100)
            sock.sendall(body)
            return end

    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443) as origin:
        assert await world.inside(talk, await address(world)) == b""
        await asyncio.wait_for(heard.wait(), 10)
        assert origin.text == FIRST + body


@in_world
async def test_a_reset_is_passed_on_as_a_reset(world: World) -> None:
    """In both directions: an aborted stream must not look like one that ended."""
    ready, told = asyncio.Event(), asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(FIRST))
        writer.write(b"x")
        ready.set()
        if abort_here:
            await reader.readexactly(1)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            writer.transport.abort()
            return
        try:
            while await reader.read(100):
                pass
        except ConnectionResetError:
            told.set()

    def ends_by_reset(where: tuple[str, int]) -> bool:
        with open_tunnel(where) as sock:
            assert sock.recv(1) == b"x"
            sock.sendall(b"y")
            return read_all(sock) == b"RESET"

    def resets(where: tuple[str, int]) -> None:
        sock = open_tunnel(where)
        assert sock.recv(1) == b"x"
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        sock.close()

    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443):
        abort_here = True
        assert await world.inside(ends_by_reset, await address(world))
        abort_here = False
        await world.inside(resets, await address(world))
        await asyncio.wait_for(told.wait(), 10)


@in_world
async def test_a_slow_reader_loses_nothing_and_costs_no_memory(world: World) -> None:
    piece = os.urandom(1 << 20)
    size = 64

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(FIRST))
        for _ in range(size):
            writer.write(piece)
            await writer.drain()

    def talk(where: tuple[str, int]) -> tuple[str, int]:
        with open_tunnel(where) as sock:
            digest, count = hashlib.sha256(), 0
            while data := sock.recv(50_000):
                digest.update(data)
                count += len(data)
                if count < 1 << 20:
                    time.sleep(0.01)  # the slowness is what is tested
            return digest.hexdigest(), count

    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443):
        digest, count = await world.inside(talk, await address(world))
        assert count == size << 20
        assert digest == hashlib.sha256(piece * size).hexdigest()


@in_world
async def test_idle_and_half_closed_tunnels_end_with_their_reason(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(FIRST))
        await asyncio.sleep(30)

    def idle(where: tuple[str, int]) -> tuple[bytes, float]:
        begin = time.monotonic()
        with open_tunnel(where) as sock:
            return read_all(sock), time.monotonic() - begin

    def half_closed(where: tuple[str, int]) -> tuple[bytes, float]:
        begin = time.monotonic()
        with open_tunnel(where) as sock:
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock), time.monotonic() - begin

    async with world.broker(RULES + SHORT, fixed=FIXED), world.origin(behave, port=443):
        where = await address(world)
        end, seconds = await world.inside(idle, where)
        assert end == b"RESET"
        assert 0.9 < seconds < DEFAULTS["idle_seconds"]
        end, seconds = await world.inside(half_closed, where)
        assert end == b"RESET"
        assert 0.4 < seconds < DEFAULTS["half_closed_seconds"]
        assert [close["reason"] for close in world.records("close")] == ["idle_timeout", "idle_timeout"]


@in_world
async def test_what_is_no_hello_for_that_name_is_never_dialled(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    def send(where: tuple[str, int], data: bytes) -> bytes:
        with socket.create_connection(where, 10) as sock:
            sock.sendall(data)
            with contextlib.suppress(OSError):  # the refusal may have come first
                sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    bad = {
        "name_mismatch": hello("evil.example"),
        "bad_client_hello": FIRST[:60],
        "not_tls": b"SSH-2.0-OpenSSH_9.9\r\n",  # F18
        "plain_http_not_allowed": f"GET / HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode(),
    }
    async with world.broker(RULES, fixed=FIXED), world.origin(behave, port=443) as origin:
        where = await address(world)
        for reason, data in bad.items():
            before = len(world.records())
            answer = await world.inside(send, where, data)
            assert answer in {b"RESET", b""} or answer.startswith(b"HTTP/1.1 4"), (reason, answer)
            (record,) = world.records()[before:]
            assert record["verdict"] == "deny"
            assert record["reason"] == reason or reason == "plain_http_not_allowed", record
        assert origin.received == []
