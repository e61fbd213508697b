"""WebSockets over plain HTTP: what may follow an upgrade, in which order, and what of it is on record."""

import asyncio
import base64
import hashlib
import socket

import pytest

from broker.policy.load import parse_policy
from broker.policy.reasons import Reason
from tests.broker.gateway.test_budgets import give
from tests.broker.gateway.test_http_plane import FIXED, HOST, RULES, answering, status_of
from tests.broker.gateway.test_opened_addresses import change
from tests.broker.gateway.world import Behaviour, World, exchange, in_world, look_up, read_all

pytestmark = pytest.mark.live
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = base64.b64encode(hashlib.sha1(f"{KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
UPGRADE = (
    f"GET /chat HTTP/1.1\r\nHost: {HOST}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
).encode()
START = "HTTP/1.1 101 Switching Protocols\r\n"
SWITCH = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
SWITCHED = f"{START}Sec-WebSocket-Accept: {ACCEPT}\r\n{SWITCH}\r\n".encode()
NO_ANSWERS = {
    "no accept": "",
    "an empty one": "Sec-WebSocket-Accept:\r\n",
    "the key itself": f"Sec-WebSocket-Accept: {KEY}\r\n",
    "one of another case": f"Sec-WebSocket-Accept: {ACCEPT.swapcase()}\r\n",
    "two": f"Sec-WebSocket-Accept: {ACCEPT}\r\n" * 2,
    "a right one and a wrong one": f"Sec-WebSocket-Accept: {ACCEPT}\r\nSec-WebSocket-Accept: x\r\n",
    "a list": f"Sec-WebSocket-Accept: {ACCEPT}, {ACCEPT}\r\n",
}


def switching(after: bytes = b"") -> Behaviour:
    """An origin that agrees, and keeps what follows."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED + after)
        await reader.read()

    return behave


@in_world
async def test_only_an_answer_to_the_key_switches(world: World) -> None:
    """RFC 6455 §4.1: else any server that says 101 would get an opaque tunnel under a rule for WebSockets."""
    response = b""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(response)(reader, writer)

    async with world.broker(RULES, fixed=FIXED), world.origin(behave) as origin:
        where = (await world.inside(look_up, HOST), 80)
        for name, accept in NO_ANSWERS.items():
            origin.forget()
            response = f"{START}{accept}{SWITCH}\r\nopaque".encode()
            answer = await world.inside(exchange, where, UPGRADE + b"frame", end=True)
            assert status_of(answer) == 502, (name, answer)
            assert b"opaque" not in answer, name
            assert origin.text == UPGRADE, name
            record = world.records("close")[-1]
            assert (record["reason"], record["verdict"]) == ("upstream_protocol", "failure"), name


@in_world
async def test_heads_and_frames_are_on_record(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED), world.origin(switching(b"a frame")) as origin:
        where = (await world.inside(look_up, HOST), 80)
        answer = await world.inside(exchange, where, UPGRADE + b"an early frame", end=True)
        assert answer == SWITCHED + b"a frame"
        (close,) = world.records("close")
        assert (close["status"], close["reason"]) == (101, "finished")
        assert (close["bytes_up"], close["bytes_down"]) == (len(origin.text), len(answer))


@in_world
async def test_frames_wait_for_the_whole_head(world: World) -> None:
    """A client that takes its time must not find frames in the middle of the 101's fields."""
    fields = "".join(f"X-{number}: {'v' * 600}\r\n" for number in range(90))
    response = SWITCHED.replace(b"\r\nConnection", f"\r\n{fields}Connection".encode()) + b"a frame"

    def read_late(where: tuple[str, int]) -> bytes:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.settimeout(20)
            sock.connect(where)
            sock.sendall(UPGRADE)
            sock.recv(1, socket.MSG_PEEK)  # all that the broker could send of it is sent
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    async with world.broker(RULES, fixed=FIXED), world.origin(answering(response)):
        where = (await world.inside(look_up, HOST), 80)
        assert await world.inside(read_late, where) == response


def open_one(where: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(where, 20)
    sock.sendall(UPGRADE)
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        got += sock.recv(65536)
    assert got == SWITCHED
    return sock


ENDS = ["policy_changed", "grant_revoked", "grant_exhausted", "egress_off"]


@pytest.mark.parametrize("reason", ENDS)
@in_world
async def test_an_open_one_ends_with_its_right(world: World, *, reason: str) -> None:
    async with world.broker(RULES, fixed=FIXED) as broker, world.origin(switching()) as origin:
        meter = give(broker, bytes_up=len(UPGRADE) + 5)
        where = (await world.inside(look_up, HOST), 80)
        sock = await world.inside(open_one, where)
        match reason:
            case "policy_changed":
                change(broker, RULES.replace("websocket = true", "websocket = false"))
            case "grant_revoked":
                meter.end(Reason.GRANT_REVOKED)
            case "grant_exhausted":
                sock.sendall(b"frames")
            case _:
                broker.change_policy(parse_policy(f"version = 1\n[egress]\nenabled = false\n{RULES}", source="test"))
        assert await world.inside(read_all, sock) == b"RESET"
        (close,) = world.records("close")
        assert (close["reason"], close["status"]) == (reason, 101)
        assert close["bytes_up"] == len(origin.text) <= len(UPGRADE) + 5
