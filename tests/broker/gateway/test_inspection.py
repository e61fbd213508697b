"""Inspection through the real broker: names that disagree, ends that must be seen, bodies that must be exact."""

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from certs.authority import CertificateAuthority
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up, read_all

pytestmark = pytest.mark.live
HOST, OTHER = "public4.example", "alias.example"
RULES = f"""
[[rule]]
name = "all"
action = "allow"
hosts = ["{HOST}"]
ports = [443, 8443]

[[rule]]
name = "other"
action = "allow"
hosts = ["{OTHER}"]
ports = [443]
methods = ["GET"]
paths = ["/v1/**"]

[[rule]]
name = "address"
action = "allow"
hosts = ["{PUBLIC}"]
ports = [443]
"""
NO_CONTENT = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
MIB = 1 << 20


def shake(
    world: World,
    address: str,
    name: str | None,
    *,
    check: bool = True,
    alpn: tuple[str, ...] = ("http/1.1",),
    port: int = 443,
) -> ssl.SSLSocket:
    context = world.client_context(*alpn)
    context.check_hostname = check
    sock = socket.create_connection((address, port), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(sock, server_hostname=name, suppress_ragged_eofs=False)


def talk(sock: ssl.SSLSocket, octets: bytes) -> bytes:
    sock.sendall(octets)
    return until_end(sock)


def until_end(sock: ssl.SSLSocket) -> bytes:
    """All that comes; `CUT` behind it when the end is not a clean one."""
    got = bytearray()
    try:
        while piece := sock.recv(65536):
            got += piece
    except ssl.SSLZeroReturnError:
        pass  # a close_notify, as `ssl` reports it once we have sent ours
    except (ConnectionError, ssl.SSLError):
        got += b"CUT"
    return bytes(got)


def get(host: str = HOST, target: str = "/", *fields: str, method: str = "GET") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def problem_of(answer: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return document


async def ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(NO_CONTENT)


DISAGREE: list[tuple[str, str, str | None, str, int, str]] = [
    # name asked, SNI, Host, status, reason
    ("all agree", HOST, HOST, HOST, 200, ""),
    ("with the default port", HOST, HOST, f"{HOST}:443", 200, ""),
    ("in capitals, with a dot", HOST, HOST, f"{HOST.upper()}.", 200, ""),
    ("another Host", HOST, HOST, OTHER, 421, "name_mismatch"),
    ("another Host that is not allowed", HOST, HOST, "evil.example", 421, "name_mismatch"),
    ("another port in Host", HOST, HOST, f"{HOST}:8443", 421, "name_mismatch"),
    ("an address in Host", HOST, HOST, PUBLIC, 421, "name_mismatch"),
    ("another SNI", HOST, OTHER, OTHER, 421, "name_mismatch"),
    ("another SNI, Host as asked", HOST, OTHER, HOST, 421, "name_mismatch"),
    ("an SNI that is not allowed", HOST, "evil.example", "evil.example", 421, "name_mismatch"),
    ("a denied name behind an allowed SNI", "evil.example", HOST, HOST, 421, "name_mismatch"),
    ("no SNI", HOST, None, HOST, 403, "no_sni"),
]


def shake_asked(world: World, asked: str, sni: str | None) -> ssl.SSLSocket:
    """A handshake with the address of one name, in the name of another."""
    return shake(world, look_up(asked), sni, check=sni is not None)


@in_world
async def test_a_client_that_cannot_do_x25519_is_served_too(world: World) -> None:
    """Who offers a share for it gets it; for all others the group is theirs and OpenSSL's choice."""

    def ask(group: str) -> bytes:
        context = world.client_context("http/1.1")
        context.set_ecdh_curve(group)
        sock = socket.create_connection((look_up(HOST), 443), 20)
        with context.wrap_socket(sock, server_hostname=HOST, suppress_ragged_eofs=False) as secured:
            return talk(secured, get())

    async with (
        world.broker(RULES, inspect=True),
        world.origin(ok, port=443, tls=world.server_context("http/1.1")),
    ):
        for group in ("X25519", "prime256v1", "secp384r1"):
            assert (await world.inside(ask, group)).startswith(b"HTTP/1.1 200 "), group


@in_world
async def test_all_names_must_agree(world: World) -> None:
    async with (
        world.broker(RULES, inspect=True),
        world.origin(ok, port=443, tls=world.server_context("http/1.1")) as origin,
    ):
        allowed = 0
        for what, asked, sni, host, status, reason in DISAGREE:
            sock = await world.inside(partial(shake_asked, world, asked, sni))
            answer = await world.inside(talk, sock, get(host))
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (what, answer)
            assert not answer.endswith(b"CUT"), what
            if reason:
                problem = problem_of(answer)
                assert problem["reason"] == reason, (what, problem)
                (record,) = [one for one in world.records() if one["id"] == problem["record"]]
                assert record["reason"] == reason
            allowed += status == 200
        assert len(origin.received) <= allowed
        for octets in origin.received:
            assert {line for line in bytes(octets).split(b"\r\n") if line.startswith(b"Host")} == {
                b"Host: " + HOST.encode()
            }


@in_world
async def test_literal_addresses_need_their_own_rule_and_no_name(world: World) -> None:
    async with (
        world.broker(RULES, inspect=True),
        world.origin(ok, port=443, tls=world.server_context("http/1.1")),
    ):
        sock = await world.inside(shake, world, PUBLIC, None, check=False)
        assert (await world.inside(talk, sock, get(PUBLIC))).startswith(b"HTTP/1.1 200 ")
        named = await world.inside(shake, world, PUBLIC, HOST, check=False)
        answer = await world.inside(talk, named, get(HOST))
        assert (answer[9:12], problem_of(answer)["reason"]) == (b"421", "name_mismatch")
        other = await world.inside(shake, world, "93.184.215.99", None, check=False)
        answer = await world.inside(talk, other, get("93.184.215.99"))
        assert (answer[9:12], problem_of(answer)["reason"]) == (b"403", "address_literal")


@in_world
async def test_an_explicit_tunnel_is_held_to_its_name(world: World) -> None:
    def tunnel(target: str, sni: str, host: str) -> bytes:
        sock = socket.create_connection(("198.19.255.1", 3128), 20)
        sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        if b" 200 " not in head:
            return head + read_all(sock)
        context = world.client_context("http/1.1")
        return talk(context.wrap_socket(sock, server_hostname=sni, suppress_ragged_eofs=False), get(host))

    async with world.broker(RULES, inspect=True), world.origin(ok, port=443, tls=world.server_context("http/1.1")):
        assert b" 200 " in await world.inside(tunnel, f"{HOST}:443", HOST, HOST)
        for target, sni, host, reason in (
            (f"{HOST}:443", OTHER, OTHER, "name_mismatch"),
            (f"{HOST}:443", HOST, OTHER, "name_mismatch"),
            ("evil.example:443", HOST, HOST, "host_not_allowed"),
            (f"{HOST}:22", HOST, HOST, "port_not_allowed"),
        ):
            answer = await world.inside(tunnel, target, sni, host)
            assert problem_of(answer)["reason"] == reason, answer


@in_world
async def test_one_connection_asks_for_one_name_each_time(world: World) -> None:
    async with (
        world.broker(RULES, inspect=True),
        world.origin(ok, port=443, tls=world.server_context("http/1.1")) as origin,
    ):
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        first = f"GET /1 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
        answer = await world.inside(talk, sock, first + get(OTHER, "/v1/x"))
        assert answer.startswith(NO_CONTENT)
        assert b"HTTP/1.1 421 " in answer
        assert b"/v1/x" not in origin.text


@in_world
async def test_what_is_sent_on_says_nothing_of_the_broker(world: World) -> None:
    async with (
        world.broker(RULES, inspect=True),
        world.origin(ok, port=443, tls=world.server_context("http/1.1")) as origin,
    ):
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        target = "/a//b/%2e%2E/;p=1?q=%20+&q=&?#".rstrip("#")
        await world.inside(talk, sock, get(f"{HOST}:443", target, "Accept: */*", "Upgrade: h2c", "HTTP2-Settings: AAA"))
        assert origin.text == f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\nAccept: */*\r\n\r\n".encode()


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
SHAPES = ("status", "reason", "rule", "title", "type", "detail", "reachable", "reachable_total")


@in_world
async def test_a_denial_has_one_shape(world: World) -> None:
    """The same document on HTTP/1.1, HTTP/2, a WebSocket's upgrade, an explicit CONNECT and plain HTTP."""
    from tests.broker.gateway.h2_peers import connect, request  # noqa: PLC0415

    def plain() -> bytes:
        with socket.create_connection((look_up("evil.example"), 80), 20) as sock:
            sock.sendall(get("evil.example"))
            return read_all(sock)

    def explicit() -> bytes:
        with socket.create_connection(("198.19.255.1", 3128), 20) as sock:
            sock.sendall(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n")
            return read_all(sock)

    def streams() -> dict[str, Any]:
        client = connect(world.client_context("h2"), look_up("evil.example"), host="evil.example")
        answered = client.ask(request(host="evil.example"))
        assert answered.status == "403"
        fields = answered.headers[0]
        assert fields["content-type"] == "application/problem+json"
        assert "host_not_allowed" in fields["proxy-status"]
        problem: dict[str, Any] = answered.problem
        return problem

    async with world.broker(RULES, inspect=True):
        found: dict[str, dict[str, Any]] = {"h2": await world.inside(streams)}
        for name, octets in {
            "inspected": get("evil.example"),
            "websocket": get("evil.example", "/", *UPGRADE),
        }.items():
            sock = await world.inside(lambda: shake(world, look_up("evil.example"), "evil.example"))
            found[name] = problem_of(await world.inside(talk, sock, octets))
        found["plain"] = problem_of(await world.inside(plain))
        found["explicit"] = problem_of(await world.inside(explicit))
        known = {one["id"]: one for one in world.records()}
        for name, problem in found.items():
            assert known[problem["record"]]["reason"] == "host_not_allowed", name
        shapes = {name: {one: problem[one] for one in SHAPES if one != "detail"} for name, problem in found.items()}
        assert all(one == shapes["inspected"] for one in shapes.values()), shapes
        assert all(set(problem) == {*SHAPES, "record"} for problem in found.values())


type Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(*pieces: bytes, abort: bool = False) -> Behave:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if abort:
            writer.transport.abort()

    return behave


# Ends of a response body inside TLS, and what the client must see of them.
ENDS: dict[str, tuple[bytes, bool, bool]] = {
    # octets of the origin, ended by a reset, whole for the client
    "by length": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", False, True),
    "by chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", False, True),
    "by close": (b"HTTP/1.1 200 OK\r\n\r\nbody", False, True),
    "HTTP/1.0 by close": (b"HTTP/1.0 200 OK\r\n\r\nbody", False, True),
    "short of its length": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody", False, False),
    "short of its last chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n", False, False),
    "by a reset where close ends it": (b"HTTP/1.1 200 OK\r\n\r\nbody", True, False),
    "a bad chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\nzz\r\n", False, False),
}


@in_world
async def test_a_cut_body_never_looks_whole(world: World) -> None:
    context = world.server_context("http/1.1")
    behave: list[Behave] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await behave[0](reader, writer)

    async with world.broker(RULES, inspect=True), world.origin(serve, port=443, tls=context):
        for what, (octets, abort, whole) in ENDS.items():
            behave[:] = [answering(octets, abort=abort)]
            sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
            got = await world.inside(talk, sock, get())
            if got.startswith(b"HTTP/1.1 502"):  # nothing had been passed on yet, so it could still be said
                assert not whole, (what, got)
                continue
            assert got.endswith(b"CUT") is not whole, (what, got)
            assert not whole or b"body" in got


@in_world
async def test_an_upstream_that_ends_without_close_notify_is_cut(world: World) -> None:
    """A man in the middle can send a FIN; only the close_notify alert is the server's own word (RFC 8446 §6.1)."""

    async def fin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of it")
        await writer.drain()
        raw = writer.get_extra_info("socket")
        duplicate = socket.socket(fileno=socket.dup(raw.fileno()))
        duplicate.shutdown(socket.SHUT_WR)
        duplicate.close()
        await reader.read()

    async with world.broker(RULES, inspect=True), world.origin(fin, port=443, tls=world.server_context("http/1.1")):
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        got = await world.inside(talk, sock, get())
        assert got.endswith(b"CUT"), got


@in_world
async def test_the_first_event_passes_at_once(world: World) -> None:
    """Server-sent events through inspection: each is sent once the client has said that it read the last one."""
    turn = asyncio.Queue[None]()
    sent: list[float] = []

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(100):
            await turn.get()
            sent.append(time.perf_counter())
            writer.write(f"data: {number}\n\n".encode())
        await turn.get()

    def read_one(sock: ssl.SSLSocket) -> float:
        got = b""
        while not got.endswith(b"\n\n"):
            got += sock.recv(1000)
        return time.perf_counter()

    async with world.broker(RULES, inspect=True), world.origin(events, port=443, tls=world.server_context("http/1.1")):
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        sock.sendall(get())
        delays = []
        for _ in range(100):
            turn.put_nowait(None)
            delays.append(await world.inside(read_one, sock) - sent[-1])
        turn.put_nowait(None)
        delays.sort()
        print(
            f"event through: first {delays[0] * 1e3:.2f}, median {delays[50] * 1e3:.2f}, 99th {delays[-2] * 1e3:.2f} ms"
        )
        # Not a timed promise: an order of magnitude below any buffering that waits for more.
        assert delays[50] < 0.1


@in_world
async def test_uploads_and_downloads_are_exact(world: World) -> None:
    size = 64 * MIB
    pattern = bytes(range(256)) * 256

    async def digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(size // len(pattern)):
                writer.write(b"%x\r\n%b\r\n" % (len(pattern), pattern))
                await writer.drain()
            writer.write(b"0\r\nX-Sum: 1\r\n\r\n")
            return
        seen, left = hashlib.sha256(), size
        while left:
            piece = await reader.read(min(left, 65536))
            seen.update(piece)
            left -= len(piece)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + seen.hexdigest().encode())

    def upload(sock: ssl.SSLSocket) -> bytes:
        sock.sendall(get("public4.example", "/", f"Content-Length: {size}", method="POST"))
        for _ in range(size // len(pattern)):
            sock.sendall(pattern)
        return until_end(sock)

    expected = hashlib.sha256(pattern * (size // len(pattern))).hexdigest()
    async with (
        world.broker(RULES, inspect=True),
        world.origin(digest, port=443, tls=world.server_context("http/1.1")) as origin,
    ):
        origin.received = _Forgetting()  # 64 MiB are not kept
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        assert (await world.inside(upload, sock)).endswith(expected.encode())
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        got = await world.inside(talk, sock, get())
        body = _dechunk(got.partition(b"\r\n\r\n")[2])
        assert hashlib.sha256(body).hexdigest() == expected
        assert b"X-Sum: 1" in got


class _Forgetting(list[bytearray]):
    def append(self, _: bytearray) -> None:
        pass


def _dechunk(octets: bytes) -> bytes:
    body: list[bytes] = []
    at = 0
    while True:
        end = octets.index(b"\r\n", at)
        size = int(octets[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(body)
        body.append(octets[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


@in_world
async def test_a_websocket_is_relayed_after_its_upgrade(world: World) -> None:
    rules = RULES.replace("ports = [443, 8443]", "ports = [443, 8443]\nwebsocket = true")
    octets = "\r\n".join(["GET /chat HTTP/1.1", f"Host: {HOST}", *UPGRADE, "", ""]).encode()

    ended = threading.Event()

    def chat(listener: socket.socket) -> None:
        """In a thread: asyncio's TLS cannot say anything once the other side has ended."""
        sock = world.server_context("http/1.1").wrap_socket(listener.accept()[0], server_side=True)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        sock.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\nfirst "
        )
        while piece := sock.recv(65536):
            sock.sendall(piece.upper())
        ended.wait(20)  # `ssl` looks for an answer when it ends, and takes data at that moment for an error
        sock.sendall(b"last words")
        sock.unwrap().close()

    def converse(sock: ssl.SSLSocket) -> bytes:
        sock.sendall(octets)
        head = b""
        while not head.endswith(b"first "):
            head += sock.recv(1000)
        echoed = bytearray()
        for number in range(1, 21):  # no more under way than any socket buffer holds: nobody reads while we send
            sock.sendall(b"x" * 50_000 + b"y")
            while len(echoed) < number * 50_001:
                echoed += sock.recv(65536)
        assert echoed == (b"X" * 50_000 + b"Y") * 20
        sock.setblocking(False)
        with contextlib.suppress(ssl.SSLError):  # it would wait, or data came meanwhile
            sock._sslobj.shutdown()  # type: ignore[attr-defined]  # close_notify, and read on: the other way is still open (RFC 8446 §6.1)
        ended.set()
        sock.settimeout(20)
        assert until_end(sock) == b"last words"
        sock.close()
        return head

    assert world.certificates
    async with world.broker(rules, inspect=True):
        listener = socket.create_server((PUBLIC, 443))
        threading.Thread(target=chat, args=(listener,), daemon=True).start()
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        got = await world.inside(converse, sock)
        assert got.startswith(b"HTTP/1.1 101 ")
        async with asyncio.timeout(30):
            while not (closes := [one for one in world.records("close") if one.get("status") == 101]):
                await asyncio.sleep(0.01)
        assert closes[0]["bytes_up"] >= 1_000_020
        assert closes[0]["bytes_down"] >= 1_000_026


@in_world
async def test_a_rotation_passes_unnoticed(world: World) -> None:
    """The authority is replaced while the broker runs; a sandbox that was started before still trusts the leaves."""
    tls = world.server_context("http/1.1")
    async with world.broker(RULES, inspect=True) as broker, world.origin(ok, port=443, tls=tls):
        first = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        before = ssl.create_default_context(
            cadata="".join(ssl.DER_cert_to_PEM_cert(one) for one in first.context.get_ca_certs(binary_form=True))
        )
        issuer = first.getpeercert()["issuer"]  # type: ignore[index]
        CertificateAuthority.load_or_create(world.directory / "authority", datetime.now(UTC)).rotate(datetime.now(UTC))
        assert broker.inspector is not None
        assert broker.inspector.reload()

        def again() -> ssl.SSLSocket:
            sock = socket.create_connection((look_up(HOST), 443), 20)
            return before.wrap_socket(sock, server_hostname=HOST, suppress_ragged_eofs=False)

        second = await world.inside(again)
        assert second.getpeercert()["issuer"] != issuer  # type: ignore[index]
        assert (await world.inside(talk, second, get())).startswith(b"HTTP/1.1 200 ")
        assert (await world.inside(talk, first, get())).startswith(b"HTTP/1.1 200 ")


@in_world
async def test_a_leaf_is_made_only_when_there_is_a_use_for_it(world: World) -> None:
    """Names are asked and connections opened without a leaf; many names do not fill memory."""
    async with world.broker(RULES, inspect=True) as broker:
        for number in range(20):
            await world.inside(look_up, f"n{number}.evil.example")

        def silent() -> bytes:
            with socket.create_connection((look_up(HOST), 443), 20) as sock:
                sock.sendall(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00")  # a hello that is none
                return read_all(sock)

        await world.inside(silent)
        assert broker.inspector is not None
        assert broker.inspector._leaves is None or len(broker.inspector._leaves) == 0
        sock = await world.inside(lambda: shake(world, look_up("denied.example"), "denied.example"))
        await world.inside(talk, sock, get("denied.example"))
        assert len(broker.inspector._leaves or ()) == 1
