"""Random scripts of writes, reads, stalls and ends: what both sides see is what they see on a direct connection.

Every script is played twice, once straight to the origin and once through the broker, by the same code. A direction's
octets and the way it ended must be the same; of a side that resets the connection, the other has a beginning of what
was sent, and never a clean end. Each test also proves that the broker was told EAGAIN wherever its plane can be.
"""

import asyncio
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from broker.gateway import http as http_plane
from broker.gateway import relay, streams, tls_streams
from tests.broker.gateway.test_tunnels import ABORT, FIRST, FIXED, HOST, RULES
from tests.broker.gateway.waiting import told_to_wait
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up

pytestmark = pytest.mark.live
PORT = 443
PATIENCE = 30.0
EXAMPLES = 10  # of each seed
OCTETS = random.Random(6).randbytes(1 << 20)
NAME = "public4.example"
INSPECTED = f"""
[[rule]]
name = "inspected"
action = "allow"
hosts = ["{NAME}"]
ports = [{PORT}]
addresses = ["{PUBLIC}/32"]
"""

type Step = tuple[Literal["move", "stall"], int]  # octets, or milliseconds
type Script = tuple[Step, ...]
type End = Literal["end", "reset"]
type Sockets = Literal["usual", "small"]
SMALL_BUFFER = 16 * 1024  # of a socket that makes its peer wait; one octet less than a TLS record and its header


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one side does: its writes, and beside them its reads; whether it then half-closes or resets."""

    writes: Script
    reads: Script
    leaves: End = "end"
    sockets: Sockets = "usual"


@dataclass(frozen=True, slots=True)
class Heard:
    """What one side received, and how that ended."""

    octets: bytes
    end: End


def octets(count: int) -> bytes:
    return (OCTETS * (count // len(OCTETS) + 1))[:count]


SIZES = st.one_of(st.integers(1, 100), st.integers(1, 70_000), st.integers(1, 2_500_000), st.just(2_500_000))
STEP: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("stall"), st.sampled_from([1, 5, 30])), st.tuples(st.just("move"), SIZES)
)
SCRIPT: st.SearchStrategy[Script] = st.lists(STEP, max_size=5).map(tuple)


@st.composite
def roles(draw: st.DrawFn) -> tuple[Role, Role]:
    """Client and origin. At most one of them resets: of two, either might be the first."""
    resets = draw(st.sampled_from([None, None, 0, 1]))
    made = [
        Role(
            writes=draw(SCRIPT),
            reads=draw(SCRIPT),
            leaves="reset" if resets == side else "end",
            sockets=draw(st.sampled_from(["usual", "small"])),
        )
        for side in range(2)
    ]
    return made[0], made[1]


async def for_all[T](examples: st.SearchStrategy[T], check: Callable[[T], Awaitable[None]], *, chance: int) -> None:
    """Check examples until so many hold. The property is plain code in a thread, its steps are on this loop."""
    loop = asyncio.get_running_loop()

    @seed(chance)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(examples)
    def holds(example: T) -> None:
        asyncio.run_coroutine_threadsafe(_awaited(check(example)), loop).result(PATIENCE)

    await asyncio.to_thread(holds)


async def _awaited(work: Awaitable[None]) -> None:
    await work


def size(script: Script) -> int:
    return sum(amount for what, amount in script if what == "move")


def pieces(script: Script) -> Iterator[bytes]:
    at = 0
    for what, amount in script:
        if what == "stall":
            time.sleep(amount / 1000)
        else:
            yield octets(at + amount)[at:]
            at += amount


def play(sock: socket.socket, role: Role) -> Heard:
    """Play one side on a connected socket: the writes in a thread of their own, so that neither waits for the other."""
    sock.settimeout(PATIENCE)
    broken = threading.Event()
    writer = threading.Thread(target=_write, args=(sock, role, broken))
    writer.start()
    try:
        heard = _read(sock, role.reads, to_the_end=role.leaves == "end")
        writer.join()
        # The kernel tells a reset once, to whoever asks first: a reader that comes after the writer reads an end.
        return replace(heard, end="reset") if broken.is_set() else heard
    finally:
        writer.join()
        if role.leaves == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        sock.close()


def _write(sock: socket.socket, role: Role, broken: threading.Event) -> None:
    try:
        for piece in pieces(role.writes):
            sock.sendall(piece)
    except ConnectionError:
        broken.set()
        return
    if role.leaves == "end":
        with suppress(OSError):  # not connected any more: the reader hears why
            sock.shutdown(socket.SHUT_WR)


def _read(sock: socket.socket, reads: Script, *, to_the_end: bool) -> Heard:
    got = bytearray()
    try:
        for what, amount in reads:
            if what == "stall":
                time.sleep(amount / 1000)
                continue
            wanted = len(got) + amount
            while len(got) < wanted:
                piece = sock.recv(wanted - len(got))
                if not piece:
                    return Heard(bytes(got), "end")
                got += piece
        while to_the_end and (piece := sock.recv(1 << 16)):
            got += piece
    except ConnectionError:
        return Heard(bytes(got), "reset")
    return Heard(bytes(got), "end")


_MUCH: Script = (("move", 2_500_000),) * 2
_LATE: Script = (("stall", 150), ("move", 400_000), ("stall", 50))
_AT_ONCE: Script = ()
# Each way a reader that comes late, and a writer that has more than all buffers hold.
STALLING = (
    (Role(writes=_MUCH, reads=_AT_ONCE), Role(writes=(), reads=_LATE, sockets="small")),
    (Role(writes=(), reads=_LATE, sockets="small"), Role(writes=_MUCH, reads=_AT_ONCE)),
    (Role(writes=_MUCH, reads=_LATE, sockets="small"), Role(writes=_MUCH, reads=_LATE, sockets="small")),
)


@contextmanager
def listening(sockets: Sockets) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shape(listener, sockets)  # what it accepts inherits that
        listener.bind((PUBLIC, PORT))
        listener.listen()
        listener.settimeout(PATIENCE)
        yield listener


def serve(listener: socket.socket, role: Role) -> Heard:
    sock, _ = listener.accept()
    sock.settimeout(PATIENCE)
    first = bytearray()
    while len(first) < len(FIRST):
        first += sock.recv(len(FIRST) - len(first))
    assert first == FIRST
    return play(sock, role)


def shape(sock: socket.socket, sockets: Sockets) -> None:
    """Small buffers, before it connects or listens: the peer's writes meet EAGAIN early, ours come in small pieces."""
    if sockets == "small":
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SMALL_BUFFER)


def connect(where: tuple[str, int], role: Role) -> Heard:
    sock = dial(where, role.sockets)
    sock.sendall(FIRST)
    return play(sock, role)


def dial(where: tuple[str, int], sockets: Sockets) -> socket.socket:
    sock = socket.socket()
    shape(sock, sockets)
    sock.settimeout(PATIENCE)
    sock.connect(where)
    return sock


def is_heard(heard: Heard, listener: Role, speaker: Role) -> bool:
    """Whether this is what one side must have heard of the other."""
    sent = octets(size(speaker.writes))
    if "reset" not in (listener.leaves, speaker.leaves):
        return heard == Heard(sent, "end")
    if speaker.leaves == "reset":
        return heard.end == "reset" and sent.startswith(heard.octets)
    wanted = sent[: size(listener.reads)]  # it resets when it has read that, or before that all there is
    return heard == Heard(wanted, "end")


@pytest.mark.parametrize("chance", range(3))
@in_world
async def test_a_spliced_connection_is_like_a_direct_one(world: World, *, chance: int) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as threads, told_to_wait(relay, without=("Tunnel._move",)) as waits:  # see the last test
        async with world.broker(RULES, fixed=FIXED):
            inside = await world.inside(look_up, HOST), PORT

            async def check(pair: tuple[Role, Role]) -> None:
                client, origin = pair
                for straight in (True, False):
                    with listening(origin.sockets) as listener:
                        served = loop.run_in_executor(threads, serve, listener, origin)
                        if straight:
                            heard = await loop.run_in_executor(threads, connect, (PUBLIC, PORT), client)
                        else:
                            heard = await world.inside(connect, inside, client)
                        at_origin = await served
                    told = straight, [(len(one.octets), one.end) for one in (heard, at_origin)]
                    assert is_heard(heard, client, origin), told
                    assert is_heard(at_origin, origin, client), told

            for pair in STALLING:
                await check(pair)
            await for_all(roles(), check, chance=chance)
    assert not waits.missing(), waits.missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP exchange: the pieces of both bodies, how each is framed, and whether the origin stops in the middle."""

    up: Script
    up_chunked: bool
    down: Script
    framing: Literal["length", "chunked", "close"]
    whole: bool
    reads: Script
    takes: Script = ()  # how the origin reads the request's body
    sockets: Sockets = "usual"  # of client and origin


def answer(listener: socket.socket, context: ssl.SSLContext, role: Exchange) -> bytes:
    """Serve one exchange with our own hands; the request's body as it arrived."""
    sock, _ = listener.accept()
    sock.settimeout(PATIENCE)
    with context.wrap_socket(sock, server_side=True) as secured, secured.makefile("rb") as reader:
        line = reader.readline()
        assert line == b"POST /x HTTP/1.1\r\n", line
        head = http.client.parse_headers(reader)
        for what, amount in role.takes:
            if what == "stall":
                time.sleep(amount / 1000)
        body = _body(reader, head)
        framing = {"length": f"Content-Length: {size(role.down)}", "chunked": "Transfer-Encoding: chunked", "close": ""}
        lines = ["HTTP/1.1 200 OK", framing[role.framing], "Connection: close", "", ""]
        secured.sendall("\r\n".join(line for line in lines[:-2] if line).encode() + b"\r\n\r\n")
        sent = 0
        for piece in pieces(role.down):
            last = sent + len(piece) == size(role.down)
            kept = piece if role.whole or not last else piece[: len(piece) // 2]
            chunked = role.framing == "chunked" and kept
            secured.sendall(b"%x\r\n%b\r\n" % (len(kept), kept) if chunked else kept)
            sent += len(piece)
        if role.framing == "chunked" and role.whole:
            secured.sendall(b"0\r\n\r\n")
        if role.whole:
            with suppress(OSError):
                secured.unwrap()  # else the end comes without a close_notify: a cut
    return body


def _body(reader: BinaryIO, head: http.client.HTTPMessage) -> bytes:
    if head["Content-Length"] is not None:
        return reader.read(int(head["Content-Length"]))
    got = bytearray()
    while count := int(reader.readline(), 16):
        got += reader.read(count)
        assert reader.readline() == b"\r\n"
    assert reader.readline() == b"\r\n"
    return bytes(got)


def post(where: tuple[str, int], context: ssl.SSLContext, role: Exchange) -> tuple[int, bytes, bool]:
    """Send the request; status, body, and whether the body was whole."""
    sock = dial(where, role.sockets)
    connection = http.client.HTTPConnection(NAME, PORT, timeout=PATIENCE)
    connection.sock = context.wrap_socket(sock, server_hostname=NAME, suppress_ragged_eofs=False)
    fields = {"Host": NAME} if role.up_chunked else {"Host": NAME, "Content-Length": str(size(role.up))}
    connection.request("POST", "/x", body=pieces(role.up), headers=fields, encode_chunked=role.up_chunked)
    response = connection.getresponse()
    got = bytearray()
    try:
        for what, amount in role.reads:
            if what == "stall":
                time.sleep(amount / 1000)
            else:
                got += response.read(amount)
        while piece := response.read(1 << 16):
            got += piece
        whole = response.length in {None, 0}
    except (http.client.IncompleteRead, OSError, ValueError) as error:
        got += error.partial if isinstance(error, http.client.IncompleteRead) else b""
        whole = False
    finally:
        connection.close()
    return response.status, bytes(got), whole


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    down = draw(SCRIPT)
    return Exchange(
        up=draw(SCRIPT),
        up_chunked=draw(st.booleans()),
        down=down,
        framing=draw(st.sampled_from(["length", "chunked", "close"])),
        whole=size(down) == 0 or draw(st.sampled_from([True, True, True, False])),
        reads=draw(SCRIPT),
        takes=draw(SCRIPT),
        sockets=draw(st.sampled_from(["usual", "small"])),
    )


# A body each way that is more than all buffers hold, and a reader that comes late.
LATE_READERS = (
    Exchange(up=_MUCH, up_chunked=False, down=(), framing="length", whole=True, reads=(), takes=_LATE, sockets="small"),
    Exchange(up=(), up_chunked=False, down=_MUCH, framing="length", whole=True, reads=_LATE, sockets="small"),
    Exchange(up=_MUCH, up_chunked=True, down=_MUCH, framing="chunked", whole=True, reads=_LATE, takes=_LATE),
)
# Only an upgraded connection joins TLS to TLS: see the test below.
JOINED = ("JoinableTls.recv_into", "JoinableTls.send")


@pytest.mark.parametrize("chance", range(3))
@in_world
async def test_an_inspected_exchange_is_like_a_direct_one(world: World, *, chance: int) -> None:
    loop = asyncio.get_running_loop()
    served_with = world.server_context("http/1.1")
    waiting = told_to_wait(http_plane, streams, tls_streams, without=JOINED)
    with ThreadPoolExecutor(8) as threads, waiting as waits:
        async with world.broker(INSPECTED, inspect=True):
            inside = await world.inside(look_up, NAME), PORT
            trusting = ssl.create_default_context(cadata=world.certificates.decode())

            async def check(role: Exchange) -> None:
                with listening(role.sockets) as listener:
                    served = loop.run_in_executor(threads, answer, listener, served_with, role)
                    straight = (await loop.run_in_executor(threads, post, (PUBLIC, PORT), trusting, role), await served)
                    served = loop.run_in_executor(threads, answer, listener, served_with, role)
                    through = (await world.inside(post, inside, world.client_context(), role), await served)
                told = [(got[0], len(got[1]), got[2], len(body)) for got, body in (straight, through)]
                assert straight[1] == through[1] == octets(size(role.up)), told
                assert straight[0][2] is through[0][2] is role.whole, told
                assert through[0][0] == 200, told
                if role.whole:
                    assert straight[0] == through[0], told
                assert octets(size(role.down)).startswith(through[0][1]), told

            for role in LATE_READERS:
                await check(role)
            await for_all(exchanges(), check, chance=100 + chance)
    assert not waits.missing(), waits.missing()


UPGRADE = (
    f"GET /ws HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
).encode()
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """TLS to TLS after an upgrade: the client writes all, then the origin; each reads what the other writes."""

    up: Script
    down: Script
    takes: Script = ()
    reads: Script = ()
    whole: bool = True  # else the origin cuts the connection without a close_notify
    sockets: Sockets = "usual"


def head_of(sock: ssl.SSLSocket) -> bytes:
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        got += sock.recv(1)
    return got


def take(sock: ssl.SSLSocket, reads: Script, total: int) -> bytes:
    """Read so many octets, by a script and then as they come."""
    got = bytearray()
    for what, amount in (*reads, ("move", total)):
        if what == "stall":
            time.sleep(amount / 1000)
        wanted = min(total, len(got) + amount) if what == "move" else 0
        while len(got) < wanted and (piece := sock.recv(wanted - len(got))):
            got += piece
    return bytes(got)


def switch(listener: socket.socket, context: ssl.SSLContext, role: Joined) -> bytes:
    sock, _ = listener.accept()
    sock.settimeout(PATIENCE)
    with context.wrap_socket(sock, server_side=True) as secured:
        head_of(secured)
        secured.sendall(SWITCHED)
        got = take(secured, role.takes, size(role.up))
        for piece in pieces(role.down):
            secured.sendall(piece)
        if role.whole:
            with suppress(OSError):
                secured.unwrap()
    return got


def join(where: tuple[str, int], context: ssl.SSLContext, role: Joined) -> Heard:
    with context.wrap_socket(dial(where, role.sockets), server_hostname=NAME, suppress_ragged_eofs=False) as secured:
        secured.sendall(UPGRADE)
        assert b" 101 " in head_of(secured)
        for piece in pieces(role.up):
            secured.sendall(piece)
        got = b""
        try:
            got = take(secured, role.reads, size(role.down))
            ended = secured.recv(1) == b""
        except OSError:  # a cut, which TLS tells from an end
            return Heard(got, "reset")
        with suppress(OSError):
            secured.unwrap()
        return Heard(got, "end" if ended else "reset")


@st.composite
def joined(draw: st.DrawFn) -> Joined:
    return Joined(
        up=draw(SCRIPT),
        down=draw(SCRIPT),
        takes=draw(SCRIPT),
        reads=draw(SCRIPT),
        whole=draw(st.sampled_from([True, True, False])),
        sockets=draw(st.sampled_from(["usual", "small"])),
    )


LATE_JOINED = (
    Joined(up=_MUCH, down=_MUCH, takes=_LATE, reads=_LATE, sockets="small"),
    Joined(up=_MUCH, down=_MUCH, takes=(("stall", 300),), reads=(("stall", 300),)),
)


@pytest.mark.parametrize("chance", range(2))
@in_world
async def test_an_upgraded_connection_is_like_a_direct_one(world: World, *, chance: int) -> None:
    loop = asyncio.get_running_loop()
    served_with = world.server_context("http/1.1")
    reached = ("TlsStream.receive", "TlsStream.send", "Handshake.on_event", "Tunnel._splice")  # by the tests above
    waiting = told_to_wait(relay, tls_streams, without=reached)
    rules = INSPECTED.replace("ports", "websocket = true\nports")
    with ThreadPoolExecutor(8) as threads, waiting as waits:
        async with world.broker(rules, inspect=True):
            inside = await world.inside(look_up, NAME), PORT
            trusting = ssl.create_default_context(cadata=world.certificates.decode())

            async def check(role: Joined) -> None:
                for straight in (True, False):
                    with listening(role.sockets) as listener:
                        served = loop.run_in_executor(threads, switch, listener, served_with, role)
                        if straight:
                            heard = await loop.run_in_executor(threads, join, (PUBLIC, PORT), trusting, role)
                        else:
                            heard = await world.inside(join, inside, world.client_context(), role)
                        told = straight, len(heard.octets), heard.end
                        assert await served == octets(size(role.up)), told
                    assert heard.end == ("end" if role.whole else "reset"), told
                    assert octets(size(role.down)).startswith(heard.octets), told
                    assert not role.whole or len(heard.octets) == size(role.down), told

            for role in LATE_JOINED:
                await check(role)
            await for_all(joined(), check, chance=200 + chance)
    assert not waits.missing(), waits.missing()
