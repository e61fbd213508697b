"""Every limit of the policy, tried on the real broker from inside a sandbox: held where it is set, and not before.

Each case sets its limit low, and says what happens at it. A case without its limit enforced hangs or comes out wrong:
what took as long as the default allows was not ended by the limit that was set.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address

import pytest

from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.document import parse_policy
from broker.policy.limits import DEFAULTS
from broker.policy.names import parse_host_name
from broker.policy.rules import Policy
from tests.broker.gateway.test_http_plane import OK, answering, request, status_of
from tests.broker.gateway.test_tunnels import FIRST, hello
from tests.broker.gateway.world import PUBLIC, World, exchange, in_world, look_up, read_all

pytestmark = pytest.mark.live
HOST = "api.example.com"
INSPECTED = "public4.example"
SILENT = "silent.example"  # a name that nobody answers for
MANY = "public.example"  # a name with an address of each family
NOWHERE = "93.184.216.1"  # an address where nothing answers
RULES = f"""
[[rule]]
name = "plain"
action = "allow"
hosts = ["{HOST}", "{SILENT}", "{MANY}"]
ports = [80]

[[rule]]
name = "tunnel"
action = "allow"
hosts = ["{HOST}"]
ports = [443]
tls = "splice"

[[rule]]
name = "inspected"
action = "allow"
hosts = ["{INSPECTED}"]
ports = [443]
"""
FIXED: dict[Authority, tuple[Address, ...]] = {
    Authority(parse_host_name(HOST), port): (ip_address(PUBLIC),) for port in (80, 443)
}
type Where = tuple[str, int]


def policy(rules: str) -> Policy:
    return parse_policy(f"version = 1\n[egress]\nenabled = true\n{rules}", source="test")


def limit(name: str, value: float) -> str:
    return f"{RULES}[limits]\n{name} = {value:g}\n"


async def at(world: World, port: int = 80, host: str = HOST) -> Where:
    return await world.inside(look_up, host), port


def reasons(world: World) -> list[str]:
    return [one["reason"] for kind in ("decision", "close") for one in world.records(kind) if "reason" in one]


async def timed[T](call: Awaitable[T]) -> tuple[T, float]:
    begin = time.monotonic()
    return await call, time.monotonic() - begin


def drip(where: Where, data: bytes, tail: bytes = b"X", every: float = 0.1) -> bytes:
    """Send `data`, then one octet more at a time, for as long as the broker lets us."""
    with socket.create_connection(where, 20) as sock:
        sock.sendall(data)
        sock.settimeout(every)
        while True:
            try:
                return sock.recv(4096)
            except TimeoutError:
                with suppress(ConnectionError):
                    sock.sendall(tail)
            except ConnectionError:
                return b"RESET"


def head_of(size: int) -> bytes:
    empty = request(more="X: \r\n")
    return request(more=f"X: {'a' * (size - len(empty))}\r\n")


async def sizes(world: World, name: str, value: int, fits: bytes, over: bytes, reason: str) -> None:
    async with world.broker(limit(name, value), fixed=FIXED), world.origin(answering(OK)) as origin:
        where = await at(world)
        assert status_of(await world.inside(exchange, where, fits, end=True)) == 200
        before = origin.text
        assert status_of(await world.inside(exchange, where, over, end=True)) in {414, 431}
        assert origin.text == before
        assert reasons(world).count(reason) == 1


async def head_bytes(world: World) -> None:
    await sizes(world, "head_bytes", 2000, head_of(2000), head_of(2001), "head_too_large")


async def head_fields(world: World) -> None:
    fits, over = (request(more="X: 1\r\n" * (count - 1)) for count in (20, 21))
    await sizes(world, "head_fields", 20, fits, over, "head_too_large")


async def target_bytes(world: World) -> None:
    fits, over = (request("/" + "a" * (size - 1)) for size in (300, 301))
    await sizes(world, "target_bytes", 300, fits, over, "target_too_long")


async def head_seconds(world: World) -> None:
    """Absolute: a head that goes on arriving is ended all the same, also the second one of a connection."""
    async with world.broker(limit("head_seconds", 1), fixed=FIXED), world.origin(answering(OK)):
        where = await at(world)
        answer, seconds = await timed(world.inside(drip, where, request()[:-2] + b"X-Slow: "))
        assert status_of(answer) == 408
        assert 0.9 < seconds < DEFAULTS["head_seconds"]

        def second_head() -> bytes:
            with socket.create_connection(where, 20) as sock:
                sock.sendall(request())
                assert status_of(sock.recv(4096)) == 200
                sock.sendall(request()[:-2])
                sock.settimeout(0.1)
                begin = time.monotonic()
                while time.monotonic() - begin < 10:
                    with suppress(TimeoutError):
                        return sock.recv(4096)
                    sock.sendall(b"X: 1\r\n")
            return b""

        answer, seconds = await timed(world.inside(second_head))
        assert status_of(answer) == 408
        assert seconds < DEFAULTS["head_seconds"]


async def informational_responses(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * count + OK)
        await writer.drain()

    async with world.broker(limit("informational_responses", 2), fixed=FIXED), world.origin(behave):
        where = await at(world)
        for count, status in ((2, 200), (3, 502)):  # noqa: B007  the origin reads it
            answer = await world.inside(exchange, where, request(more="Connection: close\r\n"))
            assert f"HTTP/1.1 {status} ".encode() in answer


def long_hello(size: int) -> bytes:
    """A hello of exactly `size` octets: its record split, and an unknown extension (RFC 8446 §4.2) as its filling."""
    body = FIRST[9:]
    at_session = 2 + 32
    at_suites = at_session + 1 + body[at_session]
    at_methods = at_suites + 2 + int.from_bytes(body[at_suites : at_suites + 2])
    at_extensions = at_methods + 1 + body[at_methods]
    extensions = body[at_extensions + 2 :]
    filling = size - 4 - at_extensions - 2 - len(extensions) - 4
    extensions = b"\x7a\x7a" + filling.to_bytes(2) + bytes(filling) + extensions
    body = body[:at_extensions] + len(extensions).to_bytes(2) + extensions
    message = b"\x01" + len(body).to_bytes(3) + body
    assert len(message) == size
    pieces = [message[start : start + 500] for start in range(0, size, 500)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)


async def client_hello_bytes(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3900)
        writer.write(b"seen")

    def send(where: Where, data: bytes) -> bytes:
        return exchange(where, data)

    async with world.broker(limit("client_hello_bytes", 4000), fixed=FIXED), world.origin(behave, port=443) as origin:
        where = await at(world, 443)
        fits = long_hello(3900)
        answer = await world.inside(send, where, fits)
        assert answer.removesuffix(b"RESET") == b"seen"
        assert await world.inside(send, where, long_hello(4500)) in {b"", b"RESET"}
        endless = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(16_375)
        assert await world.inside(send, where, endless) in {b"", b"RESET"}
        assert len(origin.received) == 1
        assert reasons(world).count("client_hello_too_large") == 2


async def client_hello_seconds(world: World) -> None:
    """Absolute: octet by octet does not hold a connection, nor do tiny records."""
    async with world.broker(limit("client_hello_seconds", 1), fixed=FIXED):
        where = await at(world, 443)
        tiny = b"\x16\x03\x01\x00\x06\x01\x00\x20\x00\x03\x03", b"\x16\x03\x01\x00\x01\x00"
        for begin, step in ((FIRST[:20], FIRST[20:21]), tiny):
            answer, seconds = await timed(world.inside(drip, where, begin, step))
            assert answer in {b"", b"RESET"}
            assert 0.9 < seconds < DEFAULTS["client_hello_seconds"]
        assert reasons(world) == ["head_timeout", "head_timeout"]


async def handshake_seconds(world: World) -> None:
    """A client that says hello and then nothing, or one octet at a time, holds no connection to be inspected."""
    async with world.broker(limit("handshake_seconds", 1), inspect=True):
        where = await at(world, 443, INSPECTED)

        def half_shaken() -> bytes:
            with socket.create_connection(where, 20) as sock:
                sock.sendall(hello(INSPECTED))
                answer = read_all(sock)
                assert answer.startswith(b"\x16\x03\x03")  # it was answered
                return answer[-5:]

        def trickled() -> bytes:
            with socket.create_connection(where, 20) as sock:
                sock.sendall(hello(INSPECTED))
                sock.settimeout(0.1)
                sock.recv(65536)
                sock.sendall(b"\x17\x03\x03\x40\x00")
                while True:
                    try:
                        return sock.recv(65536)
                    except TimeoutError:
                        with suppress(ConnectionError):
                            sock.sendall(b"x")
                    except ConnectionError:
                        return b"RESET"

        for attempt in (half_shaken, trickled):
            answer, seconds = await timed(world.inside(attempt))
            assert answer == b"RESET"
            assert 0.9 < seconds < DEFAULTS["handshake_seconds"]
        assert reasons(world) == ["head_timeout", "head_timeout"]


async def silent_seconds(world: World) -> None:
    async with world.broker(limit("silent_seconds", 1), fixed=FIXED):
        for port in (80, 443, 53):
            answer, seconds = await timed(world.inside(exchange, await at(world, port), b""))
            assert answer in {b"", b"RESET"}
            assert 0.9 < seconds < DEFAULTS["silent_seconds"]
        assert reasons(world) == ["client_silent"] * 3


async def connect_seconds(world: World) -> None:
    lost = {Authority(parse_host_name(HOST), 80): (ip_address(NOWHERE),)}
    drop = f"table ip t {{ chain o {{ type filter hook output priority 0; ip daddr {NOWHERE} drop; }}; }}"
    process = await asyncio.create_subprocess_exec("nft", drop)
    assert await process.wait() == 0
    async with world.broker(limit("connect_seconds", 1), fixed=lost):
        answer, seconds = await timed(world.inside(exchange, await at(world), request(), end=False))
        assert status_of(answer) == 504
        assert 0.9 < seconds < DEFAULTS["connect_seconds"]
        assert "connect_timeout" in reasons(world)


async def resolve_seconds(world: World) -> None:
    async with world.broker(limit("resolve_seconds", 1)):
        where = await at(world, host=SILENT)
        answer, seconds = await timed(world.inside(exchange, where, request(host=SILENT)))
        assert status_of(answer) == 504
        assert 0.9 < seconds < DEFAULTS["resolve_seconds"]
        assert "resolve_timeout" in reasons(world)


async def resolve_answers(world: World) -> None:
    async with world.broker(limit("resolve_answers", 2)) as broker, world.origin(answering(OK)):
        where = await at(world, host=MANY)
        for most, status in ((1, 502), (2, 200)):
            broker.change_policy(policy(limit("resolve_answers", most)))
            ask = request(host=MANY, more="Connection: close\r\n")
            assert status_of(await world.inside(exchange, where, ask)) == status
        assert reasons(world).count("resolve_failed") == 1


async def upstream_head_seconds(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with world.broker(limit("upstream_head_seconds", 1), fixed=FIXED), world.origin(behave):
        answer, seconds = await timed(world.inside(exchange, await at(world), request()))
        assert status_of(answer) == 504
        assert 0.9 < seconds < DEFAULTS["upstream_head_seconds"]
        assert "upstream_timeout" in reasons(world)


async def session_connections(world: World) -> None:
    def fill(where: Where) -> list[bytes]:
        held = [socket.create_connection(where, 10) for _ in range(3)]
        refused = exchange(where, request())
        held.pop().close()
        deadline = time.monotonic() + 30
        while status_of(served := exchange(where, request(more="Connection: close\r\n"))) != 200:
            assert time.monotonic() < deadline
        return [refused, served]

    async with world.broker(limit("session_connections", 3), fixed=FIXED), world.origin(answering(OK)):
        refused, _ = await world.inside(fill, await at(world))
        assert refused in {b"", b"RESET"}
        assert "too_many_connections" in reasons(world)


async def idle_seconds(world: World) -> None:
    """A tunnel, a connection between two requests, a body that stops, and a reader that takes nothing any more."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(FIRST))
        with suppress(ConnectionError):
            writer.transport.set_write_buffer_limits(high=1 << 30)
            writer.write(bytes(burst))
            while burst:  # more than anybody takes, and then always a little more
                writer.write(b"x")
                await asyncio.sleep(0.2)
            await reader.read()

    def stop_reading(where: Where) -> float:
        begin = time.monotonic()
        with socket.create_connection(where, 20) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(FIRST)
            while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1:  # TCP_ESTABLISHED
                assert time.monotonic() - begin < 40
                time.sleep(0.05)  # a poll of the connection's state: reading is what must not happen here
            return time.monotonic() - begin

    def between_requests(where: Where) -> bytes:
        with socket.create_connection(where, 20) as sock:
            sock.sendall(request())
            got = sock.recv(4096)
            return got[:12] + read_all(sock)

    async def stop_sending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await reader.read()

    async with world.broker(limit("idle_seconds", 1), fixed=FIXED), world.origin(hold, port=443):
        where = await at(world, 443)
        burst = 0
        answer, seconds = await timed(world.inside(exchange, where, FIRST))
        assert answer == b"RESET"
        assert 0.9 < seconds < DEFAULTS["idle_seconds"]
        burst = 700_000
        assert await world.inside(stop_reading, where) < DEFAULTS["idle_seconds"]
        ends = [(one["reason"], one["detail"]) for one in world.records("close")]
        assert ends == [
            ("idle_timeout", "idle for 1 s"),
            ("idle_timeout", "the reader does not take its data"),
        ]
        async with world.origin(stop_sending):
            answer, seconds = await timed(world.inside(between_requests, await at(world)))
            assert answer == b"HTTP/1.1 200"
            assert seconds < DEFAULTS["idle_seconds"]
            answer, seconds = await timed(world.inside(exchange, await at(world), request()))
            assert answer.endswith(b"halfRESET")
            assert seconds < DEFAULTS["idle_seconds"]


async def half_closed_seconds(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await asyncio.sleep(30)

    async with world.broker(limit("half_closed_seconds", 0.5), fixed=FIXED), world.origin(behave, port=443):
        answer, seconds = await timed(world.inside(exchange, await at(world, 443), FIRST, end=True))
        assert answer == b"RESET"
        assert 0.4 < seconds < DEFAULTS["half_closed_seconds"]
        assert reasons(world)[-1] == "idle_timeout"


async def stalled_write_seconds(world: World) -> None:
    """A client that does not take its response, though the origin goes on sending it."""
    piece = os.urandom(1 << 16)

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()

    def stop_reading(where: Where) -> bytes:
        with socket.create_connection(where, 20) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(request())
            begin = time.monotonic()
            while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1:  # TCP_ESTABLISHED
                assert time.monotonic() - begin < 40
                time.sleep(0.05)  # as above
            return read_all(sock)[-5:]

    async with world.broker(limit("stalled_write_seconds", 1), fixed=FIXED), world.origin(behave):
        answer, seconds = await timed(world.inside(stop_reading, await at(world)))
        assert answer == b"RESET"
        assert seconds < DEFAULTS["stalled_write_seconds"]
        (close,) = world.records("close")
        assert (close["reason"], close["detail"]) == ("idle_timeout", "the client does not take its response")


CASES: dict[str, Callable[[World], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        head_bytes,
        head_fields,
        head_seconds,
        target_bytes,
        informational_responses,
        client_hello_bytes,
        client_hello_seconds,
        handshake_seconds,
        silent_seconds,
        connect_seconds,
        resolve_seconds,
        resolve_answers,
        upstream_head_seconds,
        session_connections,
        idle_seconds,
        half_closed_seconds,
        stalled_write_seconds,
    )
}


def test_every_limit_has_its_case() -> None:
    assert CASES.keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", CASES)
@in_world
async def test_each_limit_holds(world: World, *, name: str) -> None:
    await CASES[name](world)


@in_world
async def test_a_reload_changes_the_limits_of_new_connections(world: World) -> None:
    async with world.broker(RULES, fixed=FIXED) as broker, world.origin(answering(OK)):
        where = await at(world)
        ask = request("/" + "a" * 400, more="X: 1\r\n" * 30 + "Connection: close\r\n")
        assert status_of(await world.inside(exchange, where, ask)) == 200
        broker.change_policy(policy(limit("target_bytes", 300)))
        assert status_of(await world.inside(exchange, where, ask)) == 414
        broker.change_policy(policy(limit("head_fields", 20)))
        assert status_of(await world.inside(exchange, where, ask)) == 431
