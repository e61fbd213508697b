"""HTTP/2 frames that break the protocol or cost the sender nothing: the connection ends, and nothing grows meanwhile.

The rows are those of RFC 9113 §4 to §6 as h2spec asks them, and the floods of CVE-2019-9511 to 9518, CVE-2023-44487,
CVE-2024-27316 and CVE-2025-8671.
"""

import asyncio
import contextlib
import resource
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, SettingsFrame

from tests.broker.gateway.h2_peers import HOST, Client, H2Origin, connect, data, frame_of, request, window
from tests.broker.gateway.world import World, in_world, look_up

pytestmark = pytest.mark.live
RULES = '[[rule]]\nname = "all"\naction = "allow"\nhosts = ["public4.example"]\nports = [443]\n'
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
MIB = 1 << 20

type Attack = Callable[[Client], Iterable[bytes | Frame]]


def opened(client: Client, stream_id: int = 1) -> HeadersFrame:
    return client.headers(stream_id, request("/stall", method="POST"), end=False)


def three(client: Client) -> HeadersFrame:
    return client.headers(1, request("/stall", ("content-length", "3"), method="POST"), end=False)


def unfinished(client: Client, stream_id: int = 1) -> HeadersFrame:
    frame = HeadersFrame(stream_id, client.block(request()))
    frame.flags.add("END_STREAM")
    return frame


def setting(number: int, value: int) -> bytes:
    return frame_of(SETTINGS, 0, struct.pack("!HL", number, value))


@dataclass(frozen=True)
class Reset:
    """The stream ends, the connection goes on."""

    code: int


BREAKS: dict[str, tuple[Attack, set[int] | Reset]] = {
    "DATA on an idle stream": (lambda c: [data(1, b"x")], {PROTOCOL}),
    "DATA on stream 0": (lambda c: [frame_of(DATA, 0, b"x")], {PROTOCOL}),
    "DATA after END_STREAM": (lambda c: [c.headers(1, request("/stall")), data(1, b"x")], Reset(CLOSED)),
    "HEADERS on stream 0": (lambda c: [frame_of(HEADERS, 0, c.block(request()), 5)], {PROTOCOL}),
    "HEADERS on an even stream": (lambda c: [c.headers(2, request())], {PROTOCOL}),
    "HEADERS on a lower stream": (lambda c: [opened(c, 5), opened(c, 3)], {PROTOCOL, CLOSED}),
    "HEADERS twice": (lambda c: [opened(c), opened(c)], {PROTOCOL}),
    "HEADERS after END_STREAM": (
        lambda c: [c.headers(1, request("/stall")), c.headers(1, [("a", "b")])],
        Reset(CLOSED),
    ),
    "HEADERS that depend on themselves": (
        lambda c: [frame_of(HEADERS, 1, struct.pack("!LB", 1, 15) + c.block(request()), 0x25)],
        {PROTOCOL},
    ),
    "padding longer than the frame": (lambda c: [opened(c), frame_of(DATA, 1, b"\xffxx", 8)], {PROTOCOL}),
    "padding of HEADERS longer than the frame": (lambda c: [frame_of(HEADERS, 1, b"\xff\x82", 0xD)], {PROTOCOL}),
    "an empty padded frame": (lambda c: [opened(c), frame_of(DATA, 1, b"", 8)], {SIZE, PROTOCOL}),
    "PRIORITY of a wrong length": (lambda c: [frame_of(PRIORITY, 1, b"1234")], {SIZE, PROTOCOL}),
    "PRIORITY on stream 0": (lambda c: [frame_of(PRIORITY, 0, b"\0\0\0\1\1")], {PROTOCOL}),
    "RST_STREAM on stream 0": (lambda c: [frame_of(RST, 0, bytes(4))], {PROTOCOL}),
    "RST_STREAM on an idle stream": (lambda c: [frame_of(RST, 1, bytes(4))], {PROTOCOL}),
    "RST_STREAM of a wrong length": (lambda c: [opened(c), frame_of(RST, 1, bytes(3))], {SIZE, PROTOCOL}),
    "SETTINGS on a stream": (lambda c: [frame_of(SETTINGS, 1)], {PROTOCOL}),
    "SETTINGS ACK with a payload": (lambda c: [frame_of(SETTINGS, 0, bytes(6), 1)], {SIZE, PROTOCOL}),
    "SETTINGS of a wrong length": (lambda c: [frame_of(SETTINGS, 0, bytes(5))], {SIZE, PROTOCOL}),
    "SETTINGS ENABLE_PUSH 2": (lambda c: [setting(2, 2)], {PROTOCOL}),
    "SETTINGS window of 2^31": (lambda c: [setting(4, 1 << 31)], {FLOW}),
    "SETTINGS frame size of 16383": (lambda c: [setting(5, 16383)], {PROTOCOL}),
    "SETTINGS frame size of 2^24": (lambda c: [setting(5, 1 << 24)], {PROTOCOL}),
    "PUSH_PROMISE of a client": (
        lambda c: [opened(c), frame_of(PUSH, 1, struct.pack("!L", 2) + c.block(request()), 4)],
        {PROTOCOL},
    ),
    "PING on a stream": (lambda c: [frame_of(PING, 1, bytes(8))], {PROTOCOL}),
    "PING of a wrong length": (lambda c: [frame_of(PING, 0, bytes(7))], {SIZE, PROTOCOL}),
    "GOAWAY on a stream": (lambda c: [frame_of(GOAWAY, 1, bytes(8))], {PROTOCOL}),
    "WINDOW_UPDATE of 0": (lambda c: [frame_of(WINDOW, 0, bytes(4))], {PROTOCOL}),
    "WINDOW_UPDATE of 0 on a stream": (lambda c: [opened(c), frame_of(WINDOW, 1, bytes(4))], {PROTOCOL}),
    "WINDOW_UPDATE on an idle stream": (lambda c: [window(1, 1)], {PROTOCOL}),
    "WINDOW_UPDATE of a wrong length": (lambda c: [frame_of(WINDOW, 0, bytes(3))], {SIZE, PROTOCOL}),
    "a window above 2^31-1": (lambda c: [window(0, 2**31 - 1), window(0, 2**31 - 1)], {FLOW}),
    "CONTINUATION alone": (lambda c: [frame_of(CONTINUATION, 1, b"", 4)], {PROTOCOL}),
    "CONTINUATION on stream 0": (lambda c: [unfinished(c), frame_of(CONTINUATION, 0, b"", 4)], {PROTOCOL}),
    "CONTINUATION of another stream": (lambda c: [unfinished(c), frame_of(CONTINUATION, 3, b"", 4)], {PROTOCOL}),
    "a frame between HEADERS and CONTINUATION": (lambda c: [unfinished(c), frame_of(PING, 0, bytes(8))], {PROTOCOL}),
    "an unknown frame inside a field block": (lambda c: [unfinished(c), frame_of(0xFE, 0, b"x")], {PROTOCOL}),
    "a frame larger than we take": (lambda c: [opened(c), frame_of(DATA, 1, bytes(16385))], {SIZE}),
    "a field block that is no HPACK": (
        lambda c: [frame_of(HEADERS, 1, b"\xff\xff\xff\xff\xff\xff", 5)],
        {COMPRESSION, PROTOCOL},
    ),
    "an HPACK index that is not there": (lambda c: [frame_of(HEADERS, 1, b"\xbe\xfe", 5)], {COMPRESSION, PROTOCOL}),
    "an HPACK table larger than agreed": (
        lambda c: [frame_of(HEADERS, 1, b"\x3f\xe1\xff\x7f" + c.block(request()), 5)],
        {COMPRESSION, PROTOCOL},
    ),
    "more data than the window": (lambda c: [opened(c), *(data(1, bytes(16384)) for _ in range(80))], {FLOW}),
    "more data than content-length": (
        lambda c: [
            c.headers(1, request("/stall", ("content-length", "3"), method="POST"), end=False),
            data(1, b"1234"),
        ],
        {PROTOCOL},
    ),
    "less data than content-length": (
        lambda c: [
            c.headers(1, request("/stall", ("content-length", "3"), method="POST"), end=False),
            data(1, b"1", end=True),
        ],
        {PROTOCOL},
    ),
    "content-length with a sign": (lambda c: [c.headers(1, request("/stall", ("content-length", "+0")))], {PROTOCOL}),
    "trailers without an end": (lambda c: [opened(c), c.headers(1, [("x-a", "b")], end=False)], {PROTOCOL}),
    "more streams than we take": (lambda c: [opened(c, number) for number in range(1, 211, 2)], {PROTOCOL, 7}),
}


def bomb(client: Client) -> Iterable[bytes | Frame]:
    """One large field in the dynamic table, then a block of nothing but references to it (4 KiB that mean 16 MiB)."""
    large = [(b"x-a", b"v" * 4000)]
    yield HeadersFrame(
        1, client.encoder.encode([*client_fields(), *large], huffman=False), flags=["END_HEADERS", "END_STREAM"]
    )
    yield frame_of(HEADERS, 3, client.block(request()) + b"\xbe" * 4096, 5)


def client_fields() -> list[tuple[bytes, bytes]]:
    return [(str(name).encode(), str(value).encode()) for name, value in request("/stall")]


def continuations(client: Client) -> Iterable[bytes | Frame]:
    yield unfinished(client)
    for _ in range(5000):
        yield ContinuationFrame(1, b"")


def a_long_block(client: Client) -> Iterable[bytes | Frame]:
    """Twice what a head may take up, of one field; its end does not come."""
    yield HeadersFrame(1, b"\x00\x01x\xff\x81\x80\x40", flags=["END_STREAM"])
    for _ in range(8):
        yield ContinuationFrame(1, bytes(16384))


def many_fields(client: Client) -> Iterable[bytes | Frame]:
    block = client.block([*request(), *((f"x{number}", "") for number in range(20_000))])
    pieces = [block[start : start + 16384] for start in range(0, len(block), 16384)]
    yield HeadersFrame(1, pieces[0], flags=["END_STREAM"])
    for piece in pieces[1:-1]:
        yield ContinuationFrame(1, piece)
    yield ContinuationFrame(1, pieces[-1], flags=["END_HEADERS"])


def rapid_reset(client: Client) -> Iterable[bytes | Frame]:
    for number in range(1, 8001, 2):
        yield client.headers(number, request("/stall"))
        yield frame_of(RST, number, b"\0\0\0\x08")


def made_resets(client: Client) -> Iterable[bytes | Frame]:
    """Have the broker reset each stream: malformed requests, thousands of them."""
    for number in range(1, 8001, 2):
        yield client.headers(number, request("relative"))


def dribble(client: Client) -> Iterable[bytes | Frame]:
    yield client.headers(1, request("/big/1000000"))
    yield from (window(1, 1) for _ in range(4000))


FLOODS: dict[str, tuple[Attack, set[int]]] = {
    "rapid reset": (rapid_reset, {CALM}),
    "resets that the broker has to make": (made_resets, {CALM, PROTOCOL}),
    "PING": (lambda c: [frame_of(PING, 0, bytes(8))] * 4000, {CALM}),
    "PING acknowledgements": (lambda c: [frame_of(PING, 0, bytes(8), 1)] * 4000, {CALM}),
    "SETTINGS": (lambda c: [setting(3, 100)] * 4000, {CALM}),
    "empty SETTINGS": (lambda c: [frame_of(SETTINGS, 0)] * 4000, {CALM}),
    "SETTINGS of windows": (lambda c: [opened(c), *([setting(4, 70000), setting(4, 60000)] * 2000)], {CALM, FLOW}),
    "PRIORITY": (lambda c: [frame_of(PRIORITY, 9, b"\0\0\0\0\1")] * 4000, {CALM}),
    "unknown frames": (lambda c: [frame_of(0xF0, 0, b"grease")] * 4000, {CALM}),
    "window updates": (lambda c: [window(0, 1)] * 4000, {CALM}),
    "window updates of one octet": (dribble, {CALM}),
    "empty DATA": (lambda c: [opened(c), *([data(1, b"")] * 4000)], {CALM}),
    "padded empty DATA": (lambda c: [opened(c), *([frame_of(DATA, 1, b"\0", 8)] * 4000)], {CALM, FLOW}),
    "GOAWAY": (lambda c: [opened(c), *([frame_of(GOAWAY, 0, bytes(8))] * 4000)], {CALM}),
    "CONTINUATION": (continuations, {CALM, PROTOCOL}),
    "one long field block": (a_long_block, {CALM, PROTOCOL}),
    "an HPACK bomb": (bomb, {CALM, COMPRESSION}),
    "20,000 fields": (many_fields, {CALM, PROTOCOL}),
}


def begin(world: World) -> Client:
    client = connect(world.client_context("h2"), look_up(HOST))
    client.sock.settimeout(4)
    while not any(one.type == SETTINGS for one in client.frames):
        client.read()
    return client


def attack(world: World, what: Attack, patience: float = 4) -> Client:
    """Send it all while reading, as an attacker would, until the broker has had enough."""
    client = begin(world)
    client.sock.settimeout(patience)
    parts = [part if isinstance(part, bytes) else part.serialize() for part in what(client)]
    for start in range(0, len(parts), 200):
        client.raw(*parts[start : start + 200])
    with contextlib.suppress(TimeoutError):  # still open
        client.drain()
    return client


@in_world
async def test_what_breaks_the_protocol_ends_the_connection(world: World) -> None:
    origin = H2Origin()
    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        for name, (what, codes) in BREAKS.items():
            before = len(world.records()) + len(world.records("close"))
            client = await world.inside(attack, world, what)
            if isinstance(codes, Reset):
                assert client.streams[1].reset == codes.code, (name, client.streams, client.goaway)
                assert client.goaway is None, name
                continue
            assert client.goaway is not None, (name, client.closed, client.streams)
            assert client.goaway.error_code in codes, (name, client.goaway)
            assert not any(one.status == "200" for one in client.streams.values()), name
            assert len(world.records()) + len(world.records("close")) > before, f"{name}: not on record"
        answered = await world.inside(lambda: begin(world).ask(request("/echo", method="POST"), b"others live on"))
        assert answered.body == b"others live on"


@in_world
async def test_floods_are_ended_at_once_and_hold_nothing(world: World) -> None:
    origin = H2Origin()
    async with (
        world.broker(RULES, inspect=True) as broker,
        world.origin(origin.serve, port=443, tls=world.server_context("h2")),
    ):
        await world.inside(attack, world, FLOODS["PING"][0])
        tracemalloc.start()
        for name, (what, codes) in FLOODS.items():
            seen = len(origin.requests)
            spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            client = await world.inside(attack, world, what, 30)
            assert client.goaway is not None, (name, client.closed, len(client.frames))
            assert client.goaway.error_code in codes, (name, client.goaway)
            assert len(origin.requests) - seen < 600, name
            spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - spent
            print(f"{name}: {spent * 1000:.0f} ms of CPU for both sides")
            found = [one for one in world.records() if "HTTP/2:" in one.get("detail", "")]
            assert found, name
        async with asyncio.timeout(30):
            while any(session.open_connections for session in broker.sessions.values()):
                await asyncio.sleep(0.01)
        assert tracemalloc.get_traced_memory()[1] < 96 * MIB  # of broker, origin and client together


@in_world
async def test_a_flood_is_noticed_before_all_of_a_read_is_parsed(world: World) -> None:
    """One read holds thousands of frames, and while they are parsed nobody else of the worker is served."""
    origin = H2Origin()
    parsed = 0
    parse = Frame.parse_frame_header

    def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return parse(*arguments, **named)

    def flood() -> Client:
        client = begin(world)
        client.raw(*[frame_of(PING, 0, bytes(8))] * 8000)
        client.drain()
        return client

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        Frame.parse_frame_header = counting  # type: ignore[method-assign, assignment]
        client = await world.inside(flood)
        assert client.goaway is not None
        assert 500 < parsed - len(client.frames) < 1000


@in_world
async def test_heads_do_not_pile_up_for_a_client_that_does_not_read(world: World) -> None:
    """They need no window: the upstream's are small by HPACK, and a client may have that turned off for its own."""
    origin = H2Origin()

    def ask_and_wait() -> Client:
        client = begin(world)
        client.raw(SettingsFrame(settings={SettingsFrame.HEADER_TABLE_SIZE: 0}))
        for number in range(1, 201, 2):
            client.raw(client.headers(number, request("/heads/16000")))
        return client

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        client = await world.inside(ask_and_wait)
        while not (found := [one for one in world.records() if "HTTP/2:" in one.get("detail", "")]):
            await asyncio.sleep(0.02)
        assert found[0]["detail"] == "HTTP/2: ENHANCE_YOUR_CALM: it does not read what it asks for"
        assert {close["reason"] for close in world.records("close")} <= {"client_closed", "finished"}
        client.sock.close()


@in_world
async def test_a_long_field_costs_no_more_than_its_length(world: World) -> None:
    """hpack's Huffman coding takes the square of it: 0.7 s for one of 60 KB, in which nobody else is served."""
    origin = H2Origin()

    def ask() -> Client:
        client = begin(world)
        assert client.ask(request("/echo", ("x-long", "v" * 15_000))).status == "200"
        return client

    async with (
        world.broker(RULES, inspect=True),
        world.origin(origin.serve, port=443, tls=world.server_context("h2")) as seen,
    ):
        client = await world.inside(ask)
        assert b"x-long" in seen.text
        assert b"v" * 15_000 in seen.text
        assert any(isinstance(frame, HeadersFrame) and b"x-origin\x02h2" in frame.data for frame in client.frames)


@in_world
async def test_ordinary_use_is_no_flood(world: World) -> None:
    """A client that acknowledges every small piece, cancels now and then and pings, for thousands of frames."""
    origin = H2Origin()

    def use(client: Client) -> int:
        answered = client.ask(request("/big/4000000"), stream_id=1)
        assert len(answered.body) == 4_000_000, (len(answered.body), client.goaway, client.closed)
        for number in range(3, 603, 2):
            assert client.ask(request("/echo", method="POST"), b"x", stream_id=number).body == b"x"
        for number in range(603, 663, 2):
            client.raw(client.headers(number, request("/stall")), frame_of(RST, number, b"\0\0\0\x08"))
            client.raw(frame_of(PING, 0, bytes(8)))
        return len(client.ask(request("/echo", method="POST"), b"end", stream_id=663).body)

    async with world.broker(RULES, inspect=True), world.origin(origin.serve, port=443, tls=world.server_context("h2")):
        begun = time.monotonic()
        client = await world.inside(begin, world)
        assert await world.inside(use, client) == 3
        print(f"{time.monotonic() - begun:.2f} s")
        assert client.goaway is None
