"""The load client: a process of its own, one epoll over raw sockets, told what to do line by line.

Reads one JSON order a line on standard input, answers with one JSON line. It also runs inside a sandbox, under the
interpreter that lies there, so it uses the standard library alone and nothing newer than Python 3.11.

Every scenario is a generator that yields when it would block: all descriptors are registered once, edge-triggered, and
a woken generator just tries again. One that yields AGAIN could go on and lets the others have a turn. What comes back
is compared with what must come back; a difference ends the run.
"""

import contextlib
import errno
import json
import os
import random
import select
import socket
import ssl
import statistics
import struct
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

BLOCK = 16 << 20  # the bulk stream repeats this many seeded bytes
SEED = 20
PIECE = 1 << 20
FILES = {"block": BLOCK, "large": 200_000_000, "small": 1_000_000}  # the block, repeated or cut, behind these paths
EDGE = 64  # bytes compared at either end of each piece received
GREETING = b"bench\n"  # what the greeting origin answers to a ClientHello, before it closes

LAST_CHUNK = b"\r\n0\r\n\r\n"

AGAIN = "again"
PENDING = (errno.EINPROGRESS, errno.EALREADY)

Steps = Generator[Any, None, Any]
BUFFER = memoryview(bytearray(PIECE))


class WrongBytesError(Exception):
    """The far end gave something else than it must: no rate is worth printing."""


def block() -> bytes:
    return random.Random(SEED).randbytes(BLOCK)


def client_hello(name: str) -> bytes:
    """A real ClientHello of this machine's OpenSSL, without a handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def ask_address(name: str, server: str) -> str:
    """The A record that the sandbox's name server gives: the address by which a captured connection is known."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.sendto(query, (server, 53))
        answer = client.recv(4096)
    if struct.unpack_from(">H", answer, 6)[0] < 1:
        raise OSError(f"{server} has no address for {name}")
    return socket.inet_ntoa(answer[-4:]) if len(answer) == len(query) + 16 else _first_address(answer, len(query))


def _first_address(answer: bytes, offset: int) -> str:
    """Walk the answer section behind the question to the first A record (an OPT record may follow it)."""
    while offset < len(answer):
        kind, _, _, length = struct.unpack_from(">HHIH", answer, offset + 2)
        if kind == 1:
            return socket.inet_ntoa(answer[offset + 12 : offset + 16])
        offset += 12 + length
    raise OSError("no A record in the answer")


class Target:
    """Where an order goes: straight to `address`, or through the CONNECT proxy `proxy` to it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.name: str = order["name"]
        host, self.port = order["address"]
        name_server = order.get("name_server")
        self.host = ask_address(self.name, name_server) if name_server else host
        proxy = order.get("proxy")
        self.first = (proxy[0], proxy[1]) if proxy else (self.host, self.port)
        authority = f"{order.get('connect_to', self.host)}:{self.port}"
        credentials = order.get("proxy_authorization")
        field = f"Proxy-Authorization: {credentials}\r\n" if credentials else ""
        self.connect = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{field}\r\n".encode() if proxy else b""
        self.hello = client_hello(self.name)
        self.tls = self._trust(order)

    @staticmethod
    def _trust(order: dict[str, Any]) -> ssl.SSLContext | None:
        """The origin's authority, the proxy's own, or what the environment trusts (inside a sandbox: the trust kit)."""
        if order.get("trust") == "system":
            return ssl.create_default_context()
        return ssl.create_default_context(cadata=order["cacert"]) if order.get("cacert") else None


class Loop:
    """Runs generators until a deadline, and starts a new one for each that ends."""

    def __init__(self, spawn: Callable[["Loop"], Steps]) -> None:
        self.spawn = spawn
        self.epoll = select.epoll()
        self.running: dict[int, Steps] = {}
        self.sockets: dict[int, socket.socket] = {}
        self.done = 0
        self.bytes = 0
        self.latencies: list[float] = []
        self.runnable: set[int] = set()

    def start(self) -> None:
        steps = self.spawn(self)
        sock = next(steps)  # the first thing yielded is the socket
        self.sockets[sock.fileno()] = sock
        self.running[sock.fileno()] = steps
        self.epoll.register(sock.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP)

    def advance(self, descriptor: int) -> None:
        steps = self.running.get(descriptor)
        if steps is None:
            return
        self.runnable.discard(descriptor)
        try:
            if next(steps) is AGAIN:
                self.runnable.add(descriptor)
        except StopIteration:
            del self.running[descriptor]
            self.sockets.pop(descriptor).close()
            self.start()

    def run(self, concurrency: int, seconds: float) -> float:
        """Keep `concurrency` generators going for `seconds`; the seconds that were really measured."""
        for _ in range(concurrency):
            self.start()
        begin = time.perf_counter()
        end = begin + seconds
        while time.perf_counter() < end:
            woken = {descriptor for descriptor, _ in self.epoll.poll(0 if self.runnable else 0.05)}
            for descriptor in woken | self.runnable:
                self.advance(descriptor)
        taken = time.perf_counter() - begin
        self.close()
        return taken

    def close(self) -> None:
        for steps in self.running.values():
            steps.close()
        for sock in self.sockets.values():
            # A reset leaves no TIME_WAIT behind that the next subject would have to live with.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        self.running.clear()
        self.sockets.clear()
        self.epoll.close()


def send_all(sock: socket.socket, data: bytes) -> Steps:
    while data:
        try:
            data = data[sock.send(data) :]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            yield


def receive(sock: socket.socket, size: int = 65536) -> Generator[Any, None, bytes]:
    while True:
        try:
            return sock.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            yield


def open_socket(target: Target) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect_ex(target.first)
    return sock


def tunnel(target: Target, sock: socket.socket) -> Steps:
    if not target.connect:
        return
    yield from send_all(sock, target.connect)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = yield from receive(sock)
        if not piece:
            raise WrongBytesError(f"the proxy closed after {head!r}")
        head += piece
    if b" 200 " not in head[:16]:
        raise WrongBytesError(f"the proxy said {head[:80]!r}")


def greet(target: Target, loop: Loop) -> Steps:
    """A new connection: ClientHello out, the greeting and the end of the stream back."""
    begin = time.perf_counter()
    sock = open_socket(target)
    yield sock
    yield from tunnel(target, sock)
    yield from send_all(sock, target.hello)
    got = b""
    while piece := (yield from receive(sock)):
        got += piece
    if got != GREETING:
        raise WrongBytesError(f"greeted with {got[:80]!r}")
    loop.done += 1
    loop.latencies.append(time.perf_counter() - begin)


def stream(target: Target, loop: Loop, expected: bytes) -> Steps:
    """One endless stream of the block, after a ClientHello."""
    sock = open_socket(target)
    yield sock
    yield from tunnel(target, sock)
    yield from send_all(sock, target.hello)
    offset = 0
    while True:
        try:
            size = sock.recv_into(BUFFER)
        except BlockingIOError:
            yield
            continue
        if size == 0:
            raise WrongBytesError(f"the stream ended after {offset} bytes")
        offset = compare(expected, offset, size)
        loop.bytes += size
        yield AGAIN


def compare(expected: bytes, offset: int, size: int, start: int = 0) -> int:
    """Compare both ends of BUFFER[start:start+size] with the block at `offset`; the offset behind it, in the block."""
    edge = min(EDGE, size)
    for at in (0, size - edge):
        place = (offset + at) % BLOCK
        here = start + at
        if place + edge <= BLOCK and BUFFER[here : here + edge] != expected[place : place + edge]:
            raise WrongBytesError(f"byte {offset + at} of the stream differs")
    return (offset + size) % BLOCK


def handshake(target: Target, loop: Loop, sock: socket.socket) -> Generator[Any, None, ssl.SSLSocket]:
    assert target.tls is not None
    secured = target.tls.wrap_socket(sock, server_hostname=target.name, do_handshake_on_connect=False)
    loop.sockets[secured.fileno()] = secured
    while True:
        try:
            secured.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            yield
        else:
            return secured


def secured(target: Target, loop: Loop) -> Generator[Any, None, ssl.SSLSocket]:
    sock = open_socket(target)
    yield sock
    # wrap_socket() asks whether the socket is connected, so it must be.
    while (status := sock.connect_ex(target.first)) in PENDING:
        yield
    if status not in (0, errno.EISCONN):
        raise OSError(status, os.strerror(status))
    yield from tunnel(target, sock)
    return (yield from handshake(target, loop, sock))


def read_answer(sock: socket.socket) -> Generator[Any, None, bytes]:
    """One response with Content-Length, or in chunks as one peer makes of it; its body."""
    got = b""
    while (end := got.find(b"\r\n\r\n")) < 0:
        piece = yield from receive(sock)
        if not piece:
            raise WrongBytesError(f"closed within the head {got[:80]!r}")
        got += piece
    head, body = got[:end].lower(), got[end + 4 :]
    if b"\r\ntransfer-encoding: chunked" in head:
        while not body.endswith(LAST_CHUNK):
            piece = yield from receive(sock)
            if not piece:
                raise WrongBytesError("closed within the chunks")
            body += piece
        return join_chunks(body)
    length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    while len(body) < length:
        piece = yield from receive(sock)
        if not piece:
            raise WrongBytesError("closed within the body")
        body += piece
    return body


def join_chunks(body: bytes) -> bytes:
    """What a whole chunked body carries."""
    pieces: list[bytes] = []
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[:size])
        body = body[size + 2 :]


def read_head(sock: socket.socket) -> Generator[Any, None, bytes]:
    """Read past the head of a response; what came behind it."""
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        piece = yield from receive(sock)
        if not piece:
            raise WrongBytesError(f"closed within the head {head[:80]!r}")
        head += piece
    if b" 200 " not in head[:16]:
        raise WrongBytesError(f"answered {head[:80]!r}")
    return head[end + 4 :]


def ask(target: Target, loop: Loop, *, once: bool) -> Steps:
    """GET / over TLS, again and again on one connection, or once on each."""
    begin = time.perf_counter()
    sock = yield from secured(target, loop)
    request = f"GET / HTTP/1.1\r\nHost: {target.name}:{target.port}\r\n\r\n".encode()
    while True:
        if not once:
            begin = time.perf_counter()
        yield from send_all(sock, request)
        body = yield from read_answer(sock)
        if body != GREETING:
            raise WrongBytesError(f"answered {body[:80]!r}")
        loop.done += 1
        loop.latencies.append(time.perf_counter() - begin)
        if once:
            return


def download(target: Target, loop: Loop, expected: bytes, file: str) -> Steps:
    """GET one of FILES over TLS, again and again on one connection."""
    sock = yield from secured(target, loop)
    request = f"GET /{file} HTTP/1.1\r\nHost: {target.name}:{target.port}\r\n\r\n".encode()
    while True:
        yield from send_all(sock, request)
        begin = yield from read_head(sock)
        BUFFER[: len(begin)] = begin
        offset = compare(expected, 0, len(begin)) if begin else 0
        loop.bytes += len(begin)
        left = FILES[file] - len(begin)
        while left:
            try:
                size = sock.recv_into(BUFFER[: min(PIECE, left)])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                yield
                continue
            if size == 0:
                raise WrongBytesError("closed within the body")
            offset = compare(expected, offset, size)
            left -= size
            loop.bytes += size
            yield AGAIN


def scenario(kind: str, target: Target) -> Callable[[Loop], Steps]:
    verb, _, file = kind.partition(" ")
    expected = block() if verb in ("stream", "download") else b""
    return {
        "greet": lambda loop: greet(target, loop),
        "stream": lambda loop: stream(target, loop, expected),
        "ask": lambda loop: ask(target, loop, once=False),
        "ask-new": lambda loop: ask(target, loop, once=True),
        "download": lambda loop: download(target, loop, expected, file),
    }[verb]


def perform(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one order: what was counted, in how many seconds, the middle latency, our own CPU seconds."""
    target = Target(order)
    before = time.process_time()
    loop = Loop(scenario(order["kind"], target))
    seconds = loop.run(order["concurrency"], order["seconds"])
    return {
        "seconds": seconds,
        "operations": loop.done,
        "bytes": loop.bytes,
        "p50": statistics.median(loop.latencies) if loop.latencies else None,
        "client_cpu": time.process_time() - before,
    }


class Held:
    """Tunnels kept open and silent, for measuring what each costs in memory."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def hold(self, order: dict[str, Any]) -> dict[str, Any]:
        target = Target(order)
        for _ in range(order["count"]):
            sock = socket.create_connection(target.first, timeout=10)
            self.sockets.append(sock)
            if target.connect:
                sock.sendall(target.connect)
                if b" 200 " not in sock.recv(4096)[:16]:
                    raise WrongBytesError("the proxy refused a tunnel")
            self.sockets[-1] = self._reach(target, sock, secure=order.get("secure", False))
        return {"held": len(self.sockets)}

    @staticmethod
    def _reach(target: Target, sock: socket.socket, *, secure: bool) -> socket.socket:
        """Hear one byte of the raw origin, or have one request answered inside TLS."""
        if not secure:
            sock.sendall(target.hello)
            if sock.recv(1) != b"b":
                raise WrongBytesError("the origin was not reached")
            return sock
        assert target.tls is not None
        inside = target.tls.wrap_socket(sock, server_hostname=target.name)
        inside.sendall(f"GET / HTTP/1.1\r\nHost: {target.name}:{target.port}\r\n\r\n".encode())
        got = b""
        while GREETING not in got:
            piece = inside.recv(4096)
            if not piece:
                raise WrongBytesError(f"closed after {got[:80]!r}")
            got += piece
        return inside

    def release(self, _: dict[str, Any]) -> dict[str, Any]:
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()
        return {"held": 0}


def name_server(_: dict[str, Any]) -> dict[str, Any]:
    """The first name server of resolv.conf: inside a sandbox, the broker's."""
    with open("/etc/resolv.conf", encoding="ascii") as lines:
        return {"address": next(line.split()[1] for line in lines if line.startswith("nameserver"))}


def main() -> None:
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    held = Held()
    verbs = {"perform": perform, "hold": held.hold, "release": held.release, "name_server": name_server}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            result = verbs[order["verb"]](order)
        except (OSError, WrongBytesError, ValueError, StopIteration) as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
