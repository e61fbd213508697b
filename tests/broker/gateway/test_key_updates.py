"""A peer that goes on sending TLS messages without payload is cut, on either side, and holds nobody up meanwhile.

`ssl` has no call for a KeyUpdate (RFC 8446 §4.6.3), so the tests ask the library below it, which is loaded already.
"""

import asyncio
import ctypes
import socket
import ssl
import threading
from pathlib import Path

import pytest

from broker.gateway.tls_streams import BARREN, TlsStream, wrap_client, wrap_server
from tests.broker.gateway.test_inspection import HOST, NO_CONTENT, RULES, shake, talk
from tests.broker.gateway.world import World, in_world, look_up
from tests.origins.certificates import make_certificates
from tests.origins.serving import server_context

KEY_UPDATE = 5 + 4 + 1 + 1 + 16  # octets: record header, message header, message, content type, tag
FEW = 200
FLOOD = 20 * BARREN // KEY_UPDATE
ASK = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


def update_keys(sock: ssl.SSLSocket, times: int) -> int:
    """Send so many KeyUpdates on a blocking socket; how many it took."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = ctypes.CDLL(next(line.split()[-1] for line in maps if "/libssl" in line))  # the very one of `ssl`
    library.SSL_key_update.argtypes = ctypes.c_void_p, ctypes.c_int
    library.SSL_do_handshake.argtypes = (ctypes.c_void_p,)
    state = sock._sslobj  # type: ignore[attr-defined]
    # Behind the object's head stand a reference to the socket and the library's own pointer.
    own = ctypes.c_void_p.from_address(id(state) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
    for number in range(times):
        if library.SSL_key_update(own, 0) != 1 or library.SSL_do_handshake(own) != 1:
            return number
    return times


@pytest.mark.live
@in_world
async def test_a_client_that_floods_is_cut_and_others_are_served(world: World) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(NO_CONTENT)
        await writer.drain()

    async with (
        world.broker(RULES, inspect=True),
        world.origin(behave, port=443, tls=world.server_context("http/1.1")),
    ):
        address = await world.inside(look_up, HOST)

        def flood() -> int:
            with shake(world, address, HOST) as sock:
                sock.settimeout(None)
                return update_keys(sock, FLOOD)

        def few() -> bytes:
            with shake(world, address, HOST) as sock:
                sock.settimeout(None)
                assert update_keys(sock, FEW) == FEW
                sock.settimeout(20)
                return talk(sock, ASK)

        flooding = asyncio.ensure_future(world.inside(flood))
        assert (await world.inside(few)).startswith(b"HTTP/1.1 200 ")
        assert await flooding < FLOOD
        await world.finish()
    ended = [one["detail"] for one in world.records("close") if one["reason"] == "client_closed"]
    assert any("KB of TLS that carry nothing" in detail for detail in ended), ended


def handshaken(ours: TlsStream, theirs: ssl.SSLSocket) -> None:
    """Shake hands, each side in its own thread."""
    peer = threading.Thread(target=theirs.do_handshake)
    peer.start()
    ours.sock.setblocking(True)
    ours.shake()
    peer.join()
    ours.sock.setblocking(False)


@pytest.mark.parametrize("we_are", ["server", "client"])
def test_either_side_is_bounded(we_are: str, tmp_path: Path) -> None:
    make_certificates(tmp_path, [HOST])
    serving = server_context(tmp_path)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    near, far = socket.socketpair()
    if we_are == "server":
        ours = wrap_server(serving, near)
        theirs = trusting.wrap_socket(far, server_hostname=HOST, do_handshake_on_connect=False)
    else:
        ours = wrap_client(trusting, near, HOST)
        theirs = serving.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    with near, theirs:
        handshaken(ours, theirs)
        view = memoryview(bytearray(1 << 16))
        for _ in range(3):  # payload in between makes them harmless
            assert update_keys(theirs, FEW) == FEW
            theirs.send(b"payload")
            assert ours.receive(view) == len(b"payload")
        with pytest.raises(BlockingIOError):
            ours.receive(view)
        assert flooded(ours, theirs) * KEY_UPDATE <= BARREN + FEW * KEY_UPDATE


def flooded(ours: TlsStream, theirs: ssl.SSLSocket) -> int:
    """Send KeyUpdates until we have had enough of them; how many that were."""
    view = memoryview(bytearray(1 << 16))
    for times in range(1, FLOOD // FEW):
        update_keys(theirs, FEW)
        try:
            ours.receive(view)
        except BlockingIOError:
            continue
        except ConnectionAbortedError:
            return times * FEW
    return FLOOD


def test_payload_now_and_then_does_not_buy_more(tmp_path: Path) -> None:
    make_certificates(tmp_path, [HOST])
    near, far = socket.socketpair()
    ours = wrap_server(server_context(tmp_path), near)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    theirs = trusting.wrap_socket(far, server_hostname=HOST, do_handshake_on_connect=False)
    view = memoryview(bytearray(1 << 16))
    with near, theirs:
        handshaken(ours, theirs)
        for _ in range(5000):  # an octet to a record, as an editor in a terminal sends them
            theirs.send(b"x")
            assert ours.receive(view) == 1
        rounds = FLOOD // FEW
        for number in range(rounds):
            update_keys(theirs, FEW)
            theirs.send(b"x")
            try:
                assert ours.receive(view) == 1
            except ConnectionAbortedError:
                rounds = number
                break
    assert rounds * FEW * KEY_UPDATE <= 2 * BARREN
