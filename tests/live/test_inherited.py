"""Standard streams that lead further than to their own bytes are not passed on."""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from tests.live.runs import PATIENCE, running, until, wicketgate

pytestmark = pytest.mark.live
FULL = 1 << 16  # bytes that a pipe takes (pipe(7))
# Prints what the descriptor 0 leads to: the word that the other side sends, or a name of the host's root.
REACH = """
import ctypes, os, socket, stat, sys
kind, *where = sys.argv[1:]
if kind == "tcp":
    ctypes.CDLL(None).connect(0, bytes(16), 16)  # AF_UNSPEC
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=0)
    found.connect(("127.0.0.1", int(where[0])))
else:
    found = socket.socket(fileno=0)
    found.connect(chr(0) + where[0])
found.send(b"asks")
print(found.recv(100).decode())
"""


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tcp(undo: ExitStack) -> tuple[int, socket.socket, tuple[str, ...]]:
    """A connection of the host's, and another server of the host's."""
    first, other = (undo.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
    connection = undo.enter_context(socket.create_connection(first.getsockname()))
    return connection.fileno(), other, ("tcp", str(other.getsockname()[1]))


def unix(undo: ExitStack, kind: socket.SocketKind) -> tuple[int, socket.socket, tuple[str, ...]]:
    name = f"wicketgate-test-{os.getpid()}-{int(kind)}"
    server = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
    server.bind(f"\0{name}")
    mine = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
    if kind == socket.SOCK_DGRAM:
        mine.bind("")  # the kernel's choice, for the answer
    else:
        server.listen()
    return mine.fileno(), server, ("unix", name)


LEADING: dict[str, Callable[[ExitStack], tuple[int, socket.socket, tuple[str, ...]]]] = {
    "a connection of the internet": tcp,
    "an unconnected unix stream": lambda undo: unix(undo, socket.SOCK_STREAM),
    "unix datagrams": lambda undo: unix(undo, socket.SOCK_DGRAM),
}


@pytest.mark.parametrize("kind", LEADING)
def test_a_socket_that_reaches_the_hosts_network_is_not_passed_on(undo: ExitStack, kind: str) -> None:
    fd, server, words = LEADING[kind](undo)
    for number in ("stdin", "stdout", "stderr"):
        done = wicketgate("--", "true", capture_output=False, **{"stderr": subprocess.PIPE, number: fd})
        assert done.returncode == 125
        assert number == "stderr" or b"is a socket of the host's network" in done.stderr
    server.settimeout(0)
    with pytest.raises(BlockingIOError):
        server.recv(1) if server.type == socket.SOCK_DGRAM else server.accept()
    server.settimeout(60)
    oracle = subprocess.Popen([sys.executable, "-c", REACH, *words], stdin=fd, stdout=subprocess.PIPE)
    if server.type == socket.SOCK_DGRAM:
        _, sender = server.recvfrom(100)
        server.sendto(b"reached", sender)
    else:
        peer = undo.enter_context(server.accept()[0])
        peer.send(b"reached")
    assert oracle.communicate(timeout=60)[0] == b"reached\n", "without the check it is reached"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_connected_pair_is_passed_on(undo: ExitStack, kind: socket.SocketKind) -> None:
    near, far = (undo.enter_context(one) for one in socket.socketpair(socket.AF_UNIX, kind))
    near.settimeout(60)
    near.send(b"word\n")
    near.shutdown(socket.SHUT_WR)
    assert wicketgate("--", "cat", stdin=far, stdout=far, stderr=far, capture_output=False).returncode == 0
    assert near.recv(100) == b"word\n"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_PATH])
@pytest.mark.parametrize("number", ["stdout", "stderr"])
def test_a_directory_is_not_passed_on(undo: ExitStack, flags: int, number: str) -> None:
    fd = os.open("/", flags | os.O_DIRECTORY)
    undo.callback(os.close, fd)
    oracle = subprocess.run(["ls", "/proc/self/fd/0/"], stdin=fd, capture_output=True, check=True)
    assert b"etc" in oracle.stdout, "without the check it shows the host"
    other = {"stdout": "stderr", "stderr": "stdout"}[number]
    done = wicketgate("--", "true", capture_output=False, **{other: subprocess.PIPE, number: fd})
    assert done.returncode != 0


def test_a_descriptor_without_a_file_is_not_passed_on(undo: ExitStack) -> None:
    fd = os.pidfd_open(os.getpid())
    undo.callback(os.close, fd)
    done = wicketgate("--", "true", stdin=fd)
    assert (done.returncode, b"neither a file, a pipe nor a terminal" in done.stderr) == (125, True)


FLAGS = """
import fcntl, os
for number in range(3):
    fcntl.fcntl(number, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
"""


@pytest.mark.parametrize("way", ["by itself", "killed", "too late"])
def test_the_callers_streams_are_given_back_as_they_were(undo: ExitStack, tmp_path: Path, way: str) -> None:
    """Flags belong to the open file, not to the descriptor: what a command sets, its caller has, too."""
    ends = {"by itself": "", "killed": "os.kill(os.getpid(), 9)", "too late": "import time; time.sleep(600)"}
    log = undo.enter_context((tmp_path / "log").open("ab"))  # cleared, the next line would overwrite another's
    pipes = [undo.enter_context(os.fdopen(fd, mode)) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]
    streams = (pipes[0], pipes[1], log)
    before = [fcntl.fcntl(one, fcntl.F_GETFL) for one in streams]
    words = ("--timeout", "1") if way == "too late" else ()
    script = ("/usr/bin/python3", "-c", FLAGS + ends[way])
    done = wicketgate(*words, "--", *script, stdin=streams[0], stdout=streams[1], stderr=log, capture_output=False)
    assert done.returncode == {"by itself": 0, "killed": 137, "too late": 124}[way]
    assert [fcntl.fcntl(one, fcntl.F_GETFL) for one in streams] == before


def test_a_document_is_whole_on_a_stream_that_does_not_wait(undo: ExitStack) -> None:
    reader, writer = (undo.enter_context(os.fdopen(fd, mode)) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    os.set_blocking(writer.fileno(), False)
    with running("--json", "--", "seq", "1", "100000", stdout=writer, stderr=subprocess.DEVNULL) as run:
        writer.close()
        until(lambda: fullness(reader) >= FULL or run.poll() is not None)
        content = reader.read()
        assert run.wait(PATIENCE) == 0
    assert json.loads(content)["stdout"]["text"].endswith("\n100000\n")


def fullness(reader: IO[bytes]) -> int:
    """Bytes that a pipe holds (pipe(7))."""
    return int(struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0])
