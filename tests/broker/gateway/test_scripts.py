"""Random scripts of writes, reads, stalls and ends: what both sides see is what they see on a direct connection.

Every script is played twice, once straight to the origin and once through the broker, by the same code. A direction's
octets and the way it ended must be the same.
"""

import asyncio
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal

import pytest

from tests.broker.gateway.test_tunnels import FIRST, FIXED, HOST, RULES
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up

pytestmark = pytest.mark.live
PORT = 443
PATIENCE = 30.0
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
type Role = tuple[Script, Script]  # what one side does: its writes, and beside them its reads


@dataclass(frozen=True, slots=True)
class Heard:
    """What one side received, and how that ended."""

    octets: bytes
    end: End


def octets(count: int) -> bytes:
    return (OCTETS * (count // len(OCTETS) + 1))[:count]


def steps(chance: random.Random, most: int) -> tuple[Step, ...]:
    """A few moves of very different sizes, some of them behind a stall."""
    sizes = [1, 100, 5_000, 70_000, 600_000, 2_500_000]
    made: list[Step] = []
    for _ in range(chance.randrange(most)):
        if chance.random() < 0.3:
            made.append(("stall", chance.choice([1, 5, 30])))
        made.append(("move", chance.randint(1, chance.choice(sizes))))
    return tuple(made)


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
    writes, reads = role
    writer = threading.Thread(target=_write, args=(sock, writes))
    writer.start()
    try:
        return _read(sock, reads)
    finally:
        writer.join()
        sock.close()


def _write(sock: socket.socket, script: Script) -> None:
    for piece in pieces(script):
        sock.sendall(piece)
    sock.shutdown(socket.SHUT_WR)


def _read(sock: socket.socket, reads: Script) -> Heard:
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
        while piece := sock.recv(1 << 16):
            got += piece
    except ConnectionError:
        return Heard(bytes(got), "reset")
    return Heard(bytes(got), "end")


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server((PUBLIC, PORT)) as listener:
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


def connect(where: tuple[str, int], role: Role) -> Heard:
    sock = socket.create_connection(where, PATIENCE)
    sock.sendall(FIRST)
    return play(sock, role)


@pytest.mark.parametrize("seed", range(4))
@in_world
async def test_a_spliced_connection_is_like_a_direct_one(world: World, *, seed: int) -> None:
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as threads, listening() as listener:
        async with world.broker(RULES, fixed=FIXED):
            inside = await world.inside(look_up, HOST), PORT
            for number in range(8):
                client, origin = ((steps(chance, 5), steps(chance, 5)) for _ in range(2))
                served = loop.run_in_executor(threads, serve, listener, origin)
                straight = await loop.run_in_executor(threads, connect, (PUBLIC, PORT), client), await served
                served = loop.run_in_executor(threads, serve, listener, origin)
                through = await world.inside(connect, inside, client), await served
                expected = (Heard(octets(size(origin[0])), "end"), Heard(octets(size(client[0])), "end"))
                told = [[(len(one.octets), one.end) for one in pair] for pair in (straight, through)]
                assert expected == straight, (seed, number, client, origin, told)
                assert expected == through, (seed, number, client, origin, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP exchange: the pieces of both bodies, how each is framed, and whether the origin stops in the middle."""

    up: Script
    up_chunked: bool
    down: Script
    framing: Literal["length", "chunked", "close"]
    whole: bool
    reads: Script


def answer(listener: socket.socket, context: ssl.SSLContext, role: Exchange) -> bytes:
    """Serve one exchange with our own hands; the request's body as it arrived."""
    sock, _ = listener.accept()
    sock.settimeout(PATIENCE)
    with context.wrap_socket(sock, server_side=True) as secured, secured.makefile("rb") as reader:
        line = reader.readline()
        assert line == b"POST /x HTTP/1.1\r\n", line
        head = http.client.parse_headers(reader)
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
    sock = socket.create_connection(where, PATIENCE)
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


def exchange(chance: random.Random) -> Exchange:
    framing: Literal["length", "chunked", "close"] = chance.choice(["length", "chunked", "close"])
    down = steps(chance, 6)
    return Exchange(
        up=steps(chance, 6),
        up_chunked=chance.random() < 0.5,
        down=down,
        framing=framing,
        whole=chance.random() < 0.75 or size(down) == 0,
        reads=steps(chance, 4),
    )


@pytest.mark.parametrize("seed", range(4))
@in_world
async def test_an_inspected_exchange_is_like_a_direct_one(world: World, *, seed: int) -> None:
    chance = random.Random(100 + seed)
    loop = asyncio.get_running_loop()
    served_with = world.server_context("http/1.1")
    with ThreadPoolExecutor(8) as threads, listening() as listener:
        async with world.broker(INSPECTED, inspect=True):
            inside = await world.inside(look_up, NAME), PORT
            trusting = ssl.create_default_context(cadata=world.certificates.decode())
            for number in range(8):
                role = exchange(chance)
                served = loop.run_in_executor(threads, answer, listener, served_with, role)
                straight = (await loop.run_in_executor(threads, post, (PUBLIC, PORT), trusting, role), await served)
                served = loop.run_in_executor(threads, answer, listener, served_with, role)
                through = (await world.inside(post, inside, world.client_context(), role), await served)
                told = [(got[0], len(got[1]), got[2], len(body)) for got, body in (straight, through)]
                assert straight[1] == through[1] == octets(size(role.up)), (seed, number, role, told)
                assert straight[0][2] is through[0][2] is role.whole, (seed, number, role, told)
                assert through[0][0] == 200, (seed, number, role, told)
                if role.whole:
                    assert straight[0] == through[0], (seed, number, role, told)
                assert octets(size(role.down)).startswith(through[0][1]), (seed, number, role, told)
