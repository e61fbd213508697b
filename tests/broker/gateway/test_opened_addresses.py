"""An address that one rule opens is reached by that rule alone: over no kept connection, and not when it is closed."""

import asyncio
import socket
import ssl
from ipaddress import IPv4Address

import h2.config
import h2.connection
import h2.events
import pytest

from broker.gateway.broker import Broker
from broker.policy.authority import Authority
from broker.policy.load import parse_policy
from broker.policy.names import HostName
from tests.broker.gateway.h2_peers import connect, request
from tests.broker.gateway.world import Behaviour, World, in_world, look_up, read_all

pytestmark = pytest.mark.live
HOST = "public4.example"
INNER = "10.1.2.3"
FIXED = {Authority(HostName(HOST), port): (IPv4Address(INNER),) for port in (80, 443)}
OPEN = f"""
[[rule]]
name = "inner"
action = "allow"
hosts = ["{HOST}"]
ports = [80, 443]
paths = ["/health"]
addresses = ["10.0.0.0/8"]
"""
WIDE = f"""
[[rule]]
name = "wide"
action = "allow"
hosts = ["{HOST}"]
ports = [80, 443]
"""
SPLICED = OPEN.replace('paths = ["/health"]', 'tls = "splice"')


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A response that begins and does not end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
    await writer.drain()
    await reader.read()


def change(broker: Broker, rules: str) -> None:
    broker.change_policy(parse_policy(f"version = 1\n[egress]\nenabled = true\n{rules}", source="test"))


def ask_in_turn(where: str, paths: list[str], *, anew: bool) -> list[bytes]:
    """The status line of each request, over one connection or one each."""
    answers = []
    sock = socket.create_connection((where, 80), 20)
    for path in paths:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answers.append(sock.recv(65536).split(b"\r\n")[0])
        if anew:
            sock.close()
            sock = socket.create_connection((where, 80), 20)
    sock.close()
    return answers


@pytest.mark.parametrize("anew", [False, True])
@in_world
async def test_a_kept_connection_serves_no_rule_that_does_not_open_its_address(world: World, *, anew: bool) -> None:
    async with world.origin(serve, address=INNER), world.broker(OPEN + WIDE, fixed=FIXED):
        where = await world.inside(look_up, HOST)
        answers = await world.inside(ask_in_turn, where, ["/health", "/health", "/admin"], anew=anew)
        assert answers == [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 403 Forbidden"]
        assert "address_refused" in {close["reason"] for close in world.records("close")}


@in_world
async def test_the_same_over_http2(world: World) -> None:
    async with world.broker(OPEN + WIDE, fixed=FIXED, inspect=True):
        context = world.server_context("h2")
        async with world.origin(_h2_origin(), address=INNER, port=443, tls=context):

            def ask() -> list[str]:
                client = connect(world.client_context("h2"), look_up(HOST))
                paths = {1: "/health", 3: "/health", 5: "/admin", 7: "/health"}
                return [client.ask(request(path), stream_id=stream).status for stream, path in paths.items()]

            assert await world.inside(ask) == ["200", "200", "403", "200"]
        assert [close["reason"] for close in world.records("close")].count("address_refused") == 1


@pytest.mark.parametrize("rules", [WIDE, OPEN.replace("10.0.0.0/8", "10.9.0.0/16")])
@in_world
async def test_what_is_open_ends_when_its_rule_opens_the_address_no_more(world: World, *, rules: str) -> None:
    async with world.origin(trickle, address=INNER), world.broker(OPEN, fixed=FIXED) as broker:
        where = await world.inside(look_up, HOST)

        def begin() -> socket.socket:
            sock = socket.create_connection((where, 80), 20)
            sock.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            return sock

        sock = await world.inside(begin)
        change(broker, OPEN + "websocket = true\n")  # another policy that still opens it
        change(broker, rules)
        assert (await world.inside(read_all, sock)).endswith(b"RESET")
        (close,) = world.records("close")
        assert close["reason"] == "policy_changed"
        assert INNER in close["detail"]


@in_world
async def test_a_tunnel_ends_when_its_rule_opens_the_address_no_more(world: World) -> None:
    async def hold(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    assert world.certificates  # made before anything is served
    async with (
        world.broker(SPLICED, fixed=FIXED) as broker,
        world.origin(hold, address=INNER, port=443, tls=world.server_context()),
    ):
        where = await world.inside(look_up, HOST)

        def begin() -> ssl.SSLSocket:
            context = ssl.create_default_context(cadata=world.certificates.decode())
            return context.wrap_socket(socket.create_connection((where, 443), 20), server_hostname=HOST)

        sock = await world.inside(begin)
        change(broker, SPLICED.replace("10.0.0.0/8", "10.1.0.0/16"))
        assert not world.records("close")
        change(broker, SPLICED.replace("10.0.0.0/8", "10.9.0.0/16"))
        assert world.records("close")[-1]["reason"] == "policy_changed"
        await world.inside(sock.close)


def _h2_origin() -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        server.initiate_connection()
        writer.write(server.data_to_send())
        while received := await reader.read(65536):
            for event in server.receive_data(received):
                if isinstance(event, h2.events.RequestReceived):
                    server.send_headers(event.stream_id or 0, [(":status", "200")], end_stream=True)
            writer.write(server.data_to_send())
            await writer.drain()

    return behave
