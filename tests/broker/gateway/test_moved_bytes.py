"""What left the sandbox is on record however it ended: a failure or a refusal must not hide an upload."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from broker.gateway import records, relay
from tests.broker.gateway.h2_peers import Client, H2Origin, data, request
from tests.broker.gateway.test_h2_plane import RULES as H2_RULES
from tests.broker.gateway.test_h2_plane import ask, begin
from tests.broker.gateway.test_http_plane import FIXED, HOST, RULES
from tests.broker.gateway.test_opened_addresses import change
from tests.broker.gateway.test_tunnels import ABORT
from tests.broker.gateway.test_websockets import UPGRADE, switching
from tests.broker.gateway.world import World, exchange, in_world, look_up

pytestmark = pytest.mark.live
BODY = bytes(range(256)) * 800
HEAD = f"POST /up HTTP/1.1\r\nHost: {HOST}\r\n"
WHOLE = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
CHUNK = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{len(BODY):x}\r\n".encode() + BODY + b"\r\n"
# What the client sends, what the upstream answers, and how that ends.
ENDS = {
    "a response that is none": (WHOLE, b"ok\r\n\r\n", "upstream_protocol", "failure"),
    "an end without a response": (WHOLE, b"", "upstream_closed", "failure"),
    "interim responses only": (WHOLE, b"HTTP/1.1 103 Early\r\n\r\n" * 11, "upstream_protocol", "failure"),
    "a malformed chunk behind the upload": (CHUNK + b"x", None, "bad_framing", "deny"),
    "a client that leaves": (CHUNK, None, "client_closed", None),
}


@pytest.mark.parametrize("name", ENDS)
@in_world
async def test_an_upload_is_on_record_however_it_ends(world: World, *, name: str) -> None:
    sent, response, reason, verdict = ENDS[name]

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if response is None:
            await reader.read()
            return
        await reader.readexactly(len(WHOLE))
        writer.write(response)

    async with world.broker(RULES, fixed=FIXED), world.origin(behave) as origin:
        where = (await world.inside(look_up, HOST), 80)
        await world.inside(exchange, where, sent, end=response is None)
        (close,) = world.records("close")
        assert (close["reason"], close.get("verdict")) == (reason, verdict)
        if response is None:  # what the kernel had for the upstream is dropped with it
            assert close["bytes_up"] > 50_000
        else:
            assert close["bytes_up"] == len(origin.text) > len(BODY)


@pytest.mark.parametrize("leaves", ["upstream", "client", "policy"])
@in_world
async def test_a_response_that_breaks_off_is_on_record_with_its_status(world: World, *, leaves: str) -> None:
    begin = b"HTTP/1.1 203 Other\r\nContent-Length: 100\r\n\r\nhalf"

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        if leaves != "upstream":
            await reader.read()

    def ask(where: str) -> socket.socket:
        sock = socket.create_connection((where, 80), 20)
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        while not sock.recv(65536, socket.MSG_PEEK).endswith(b"half"):
            pass
        return sock

    async with world.broker(RULES, fixed=FIXED) as broker, world.origin(behave):
        sock = await world.inside(ask, await world.inside(look_up, HOST))
        if leaves == "policy":
            change(broker, RULES.replace(HOST, "other.example"))
        elif leaves == "client":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            sock.close()
        while not (closes := world.records("close")):
            await asyncio.sleep(0.01)
        assert (closes[0]["status"], closes[0]["bytes_down"]) == (203, len(begin))
        reasons = {"upstream": "upstream_closed", "client": "client_closed", "policy": "policy_changed"}
        assert closes[0]["reason"] == reasons[leaves]
        sock.close()


@in_world
async def test_an_upload_over_http2_is_on_record_however_it_ends(world: World) -> None:
    origin = H2Origin()
    async with (
        world.broker(H2_RULES, inspect=True),
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        for path in ("/reset/2", "/odd/nul", "/echo"):
            fields = request(path, ("x-carried", "a" * 9000), method="POST")
            await world.inside(ask, world, fields, bytes(5000))
            close = world.records("close")[-1]
            seen = sum(len(name) + len(value) for name, value in origin.requests[-1].headers)
            assert seen <= close["bytes_up"] <= seen + 5000, path
        assert close["bytes_up"] == seen + 5000


def hold_upload(where: str) -> socket.socket:
    sock = socket.create_connection((where, 80), 20)
    sock.sendall(CHUNK)
    return sock


def hold_websocket(where: str) -> socket.socket:
    sock = socket.create_connection((where, 80), 20)
    sock.sendall(UPGRADE + b"frame")
    return sock


@pytest.mark.parametrize("hold", [hold_upload, hold_websocket])
@in_world
async def test_what_goes_on_for_long_is_on_record_before_it_ends(
    world: World, *, hold: Callable[[str], socket.socket]
) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (switching()(reader, writer) if hold is hold_websocket else reader.read())

    records.PROGRESS_SECONDS = relay.LIFE_SECONDS = 0.2  # in this test's own process
    async with world.broker(RULES, fixed=FIXED), world.origin(behave) as origin:
        sock = await world.inside(hold, await world.inside(look_up, HOST))
        progress = await _told(world)
        assert progress["bytes_up"] == len(origin.text)
        assert progress["ref"] == world.records()[-1]["id"]
        sock.close()


@in_world
async def test_a_long_stream_is_on_record_before_it_ends(world: World) -> None:
    records.PROGRESS_SECONDS = 0.2
    origin = H2Origin()

    def hold(client: Client) -> None:
        client.raw(client.headers(1, request("/echo", method="POST"), end=False), data(1, BODY[:5000]))

    async with (
        world.broker(H2_RULES, inspect=True),
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        client = await world.inside(begin, world)
        await world.inside(hold, client)
        progress = await _told(world)
        assert progress["bytes_up"] > 5000 < progress["bytes_down"]
        assert progress["ref"] == world.records()[-1]["id"]
        client.sock.close()


async def _told(world: World) -> dict[str, Any]:
    while not (told := world.records("progress")):
        await asyncio.sleep(0.02)
    return told[0]
