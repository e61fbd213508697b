"""Peers that send an octet at a time of what moves nothing: a head, a chunk's line, a trailer without an end."""

import asyncio
import socket
from contextlib import suppress

import pytest

from tests.broker.gateway.test_http_plane import FIXED, HOST, RULES
from tests.broker.gateway.world import World, in_world, look_up, read_all

pytestmark = pytest.mark.live
LIMITS = """
[limits]
idle_seconds = 1
upstream_head_seconds = 1
"""
EVERY = 0.05  # far more often than any limit
GET = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESPONSES = {
    "a phrase": (b"HTTP/1.1 200 ", "upstream_timeout"),
    "a field": (b"HTTP/1.1 200 OK\r\nX-Slow: ", "upstream_timeout"),
    "a field behind an interim response": (
        b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nX-Slow: ",
        "upstream_timeout",
    ),
    "a chunk extension": (CHUNKED + b"1;x=", "idle_timeout"),
    "a trailer": (CHUNKED + b"0\r\nX-Slow: ", "idle_timeout"),
}
REQUESTS = {
    "a chunk extension": b"1;x=",
    "a trailer": b"0\r\nX-Slow: ",
}


@pytest.mark.parametrize("what", RESPONSES)
@in_world
async def test_an_upstream_gets_no_time_for_octets_that_move_nothing(world: World, *, what: str) -> None:
    begin, reason = RESPONSES[what]

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        with suppress(RuntimeError):  # uvloop's word for a connection that is closed
            while not writer.is_closing():
                writer.write(b"a")
                await asyncio.sleep(EVERY)

    def ask(where: tuple[str, int]) -> bytes:
        with socket.create_connection(where, 20) as sock:
            sock.sendall(GET)
            return read_all(sock)

    async with world.broker(RULES + LIMITS, fixed=FIXED), world.origin(behave):
        answer = await world.inside(ask, (await world.inside(look_up, HOST), 80))
        assert (b" 504 " in answer, answer.endswith(b"RESET")) == (reason != "idle_timeout", reason == "idle_timeout")
        (close,) = world.records("close")
        assert (close["reason"], close["bytes_up"]) == (reason, len(GET))


@pytest.mark.parametrize("what", REQUESTS)
@in_world
async def test_a_client_gets_no_time_for_octets_that_move_nothing(world: World, *, what: str) -> None:
    async def behave(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    def drip(where: tuple[str, int]) -> None:
        with socket.create_connection(where, 20) as sock:
            sock.sendall(f"POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            sock.sendall(REQUESTS[what])
            sock.settimeout(EVERY)
            with suppress(ConnectionError):
                while True:
                    with suppress(TimeoutError):
                        assert sock.recv(65536)
                    sock.sendall(b"0")

    async with world.broker(RULES + LIMITS, fixed=FIXED), world.origin(behave):
        await world.inside(drip, (await world.inside(look_up, HOST), 80))
        (close,) = world.records("close")
        assert close["reason"] == "idle_timeout"
