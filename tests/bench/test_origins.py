"""The origins of the bench end their connections cleanly, however a ClientHello arrives."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import load
from bench.processes import python_module


@pytest.fixture
def greeting_port(tmp_path: Path) -> Iterator[int]:
    with python_module("bench.stream_origin", core=min(os.sched_getaffinity(0)), log=tmp_path / "log") as (talker, _):
        yield talker.read()["greet"]


def to_the_end(port: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.sendall(piece)
        got = b""
        while more := sock.recv(4096):
            got += more
        return got


@pytest.mark.parametrize("cut", [1, 4, 5, 300, 0])
def test_a_greeting_is_followed_by_an_end_and_no_reset(greeting_port: int, cut: int) -> None:
    hello = load.client_hello("origin.example")
    for _ in range(20):
        assert to_the_end(greeting_port, hello[:cut], hello[cut:]) == load.GREETING


def test_one_that_leaves_without_a_hello_holds_up_nobody(greeting_port: int) -> None:
    hello = load.client_hello("origin.example")
    for words in (b"", hello[:100]):
        with socket.create_connection(("127.0.0.1", greeting_port), timeout=10) as sock:
            sock.sendall(words)
    assert to_the_end(greeting_port, hello) == load.GREETING
