"""Bodies through the real broker: every octet, in both directions, also over kept connections to the origin."""

import asyncio
import hashlib
import os
import re
import socket

import pytest

from tests.broker.gateway.test_http_plane import FIXED, HOST, RULES
from tests.broker.gateway.world import World, in_world, look_up

pytestmark = pytest.mark.live


async def digests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request of a connection with the digest of its body."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        digest = hashlib.sha256()
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if length:
            digest.update(await reader.readexactly(int(length[1])))
        else:
            while size := int(await reader.readline(), 16):
                digest.update(await reader.readexactly(size))
                assert await reader.readline() == b"\r\n"
            assert await reader.readline() == b"\r\n"
        told = digest.hexdigest().encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told))
        await writer.drain()


def upload(where: tuple[str, int], body: bytes, *, chunked: bool) -> str:
    """Head and body in one piece, so that they are read together."""
    head = f"POST / HTTP/1.1\r\nHost: {HOST}\r\n"
    if chunked:
        pieces = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + framed
    else:
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(where, 10) as sock:
        sock.sendall(data)
        answer = b""
        while not re.search(rb"\r\n\r\n[0-9a-f]{64}", answer) and (piece := sock.recv(4096)):
            answer += piece
    return answer[-64:].decode("latin-1")


@pytest.mark.parametrize("chunked", [False, True])
@in_world
async def test_uploads_over_a_kept_upstream_arrive_whole(world: World, *, chunked: bool) -> None:
    """The verdict, the upstream and the rest of the body all come at once there: nothing may overtake or overwrite."""
    async with world.broker(RULES, fixed=FIXED), world.origin(digests) as origin:
        where = (await world.inside(look_up, HOST), 80)
        wrong = 0
        for size in [300_000] * 40 + [1, 65_536, 262_144, 262_145, 2_000_000]:
            body = os.urandom(size)
            wrong += await world.inside(upload, where, body, chunked=chunked) != hashlib.sha256(body).hexdigest()
        assert wrong == 0
        assert len(origin.received) == 1  # the upstream connection was kept all the time
