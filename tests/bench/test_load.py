"""The load client notices wrong bytes, and does against real origins what its scenarios say."""

import contextlib
import socket
import struct
import threading
from typing import Any

import pytest

from bench import load
from tests.origins.process import HttpsOrigin


@pytest.mark.parametrize("wrong", [0, 63, 936, 999])
def test_a_differing_byte_at_either_end_is_noticed(wrong: int) -> None:
    expected = load.block()
    load.BUFFER[:1000] = expected[5000:6000]
    assert load.compare(expected, 5000, 1000) == 6000
    load.BUFFER[wrong] ^= 1
    with pytest.raises(load.WrongBytesError):
        load.compare(expected, 5000, 1000)


def test_the_block_repeats() -> None:
    expected = load.block()
    load.BUFFER[:200] = expected[-100:] + expected[:100]
    assert load.compare(expected, load.BLOCK - 100, 200) == 100


def answer(address: str, *, extra: bytes = b"") -> bytes:
    question = b"\x01a\x07example\x00" + struct.pack(">HH", 1, 1)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return struct.pack(">HHHHHH", 7, 0x8180, 1, 1, 0, 1 if extra else 0) + question + record + extra


@pytest.mark.parametrize("extra", [b"", b"\x00" + struct.pack(">HHIH", 41, 1232, 0, 0)])
def test_the_name_servers_answer_is_read(extra: bytes) -> None:
    assert load._first_address(answer("198.18.0.9", extra=extra), 27) == "198.18.0.9"


class Greeter:
    """An origin of the test's own: reads once, answers what it is told to, closes."""

    def __init__(self, reply: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.reply = reply
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(16384)
                connection.sendall(self.reply)


def order(kind: str, port: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": "localhost", "address": ("127.0.0.1", port), "concurrency": 4, "seconds": 0.2, **more}


def test_greetings_are_counted_and_compared() -> None:
    right, wrong = Greeter(load.GREETING), Greeter(b"other\n")
    result = load.perform(order("greet", right.listener.getsockname()[1]))
    assert result["operations"] > 4
    assert result["p50"] > 0
    with pytest.raises(load.WrongBytesError):
        load.perform(order("greet", wrong.listener.getsockname()[1]))
    right.listener.close()
    wrong.listener.close()


def test_a_body_that_is_not_the_greeting_ends_the_run(https_origin: HttpsOrigin) -> None:
    with pytest.raises(load.WrongBytesError, match="hello from the origin"):
        load.perform(order("ask", https_origin.https, cacert=https_origin.cacert.read_text()))


def test_a_refused_connection_ends_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        load.perform(order("greet", port))


def test_a_proxy_that_refuses_ends_the_run() -> None:
    proxy = Greeter(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    with pytest.raises(load.WrongBytesError, match="403"):
        load.perform(order("greet", 9, proxy=proxy.listener.getsockname()))
    proxy.listener.close()


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        (b"6\r\nbench\n\r\n0\r\n\r\n", load.GREETING),
        (b"1\r\nb\r\n5\r\nench\n\r\n0\r\n\r\n", load.GREETING),
        (b"5\r\nbench\r\n0\r\n\r\n", b"bench"),
    ],
)
def test_chunks_are_joined_before_they_are_compared(body: bytes, carried: bytes) -> None:
    assert body.endswith(load.LAST_CHUNK)
    assert load.join_chunks(body) == carried
