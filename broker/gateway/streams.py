"""Byte streams for the planes that read what passes: one interface for plain sockets and for TLS."""

import contextlib
import fcntl
import socket
import termios
from collections.abc import Sequence
from typing import Protocol

from broker.gateway.relay import Joinable, reset

type Piece = bytes | memoryview

_NOTHING = bytes(4)  # an int of zero, as ioctl_list(2) FIONREAD fills it


class Stream(Protocol):
    """A non-blocking stream. `receive` and `send` raise BlockingIOError where they would wait, OSError when broken."""

    @property
    def sock(self) -> socket.socket:
        """The socket below, which the reactor watches."""

    @property
    def joinable(self) -> "Joinable":
        """What a tunnel can be made of."""

    def receive(self, view: memoryview) -> int:
        """Read into `view`; 0: the peer has ended its side cleanly."""

    def is_drained(self) -> bool:
        """Whether no octet waits behind those received: the next one raises an edge. An end may wait all the same."""

    def send(self, pieces: Sequence[Piece]) -> int:
        """Write as much as is taken now; the number of payload bytes."""

    def end(self) -> None:
        """Send an end of data; reading goes on."""

    def close(self) -> None:
        """Close both ways, cleanly."""

    def reset(self) -> None:
        """Close so that the peer cannot take it for an end of data."""


class PlainStream:
    """A TCP socket as it is."""

    __slots__ = ("sock",)

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    @property
    def joinable(self) -> Joinable:
        return self.sock

    def receive(self, view: memoryview) -> int:
        return self.sock.recv_into(view)

    def is_drained(self) -> bool:
        return is_empty(self.sock)

    def send(self, pieces: Sequence[Piece]) -> int:
        return self.sock.send(pieces[0]) if len(pieces) == 1 else self.sock.sendmsg(pieces)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        reset(self.sock)


def is_empty(sock: socket.socket) -> bool:
    """Whether the kernel holds no octet for a socket: a tenth of the price of a read that says EAGAIN."""
    return fcntl.ioctl(sock, termios.FIONREAD, _NOTHING) == _NOTHING


class Outlet:
    """What a stream has not taken yet. Pieces may be views of a shared buffer: what stays is copied."""

    __slots__ = ("_pending", "_stream", "accepted", "blocked")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pending: list[bytes] = []
        self.accepted = 0  # bytes put here so far, sent or not yet
        self.blocked = False  # something waits for the peer to read

    @property
    def held(self) -> int:
        """Octets that wait for the peer to read."""
        return sum(map(len, self._pending))

    def put(self, pieces: Sequence[Piece]) -> None:
        """Send, or keep for `flush`. Raises OSError when the stream is broken."""
        total = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        self.accepted += total
        if self.blocked:
            self._pending += [bytes(piece) for piece in pieces]
            return
        try:
            count = self._stream.send(pieces)
        except BlockingIOError:
            count = 0
        if count < total:
            self._write(_after(pieces, count))

    def flush(self) -> None:
        """Send what was kept."""
        if self._pending:
            pending, self._pending = self._pending, []
            self._write(pending)

    def _write(self, pieces: Sequence[Piece]) -> None:
        rest: Sequence[Piece] = pieces
        while rest:
            try:
                count = self._stream.send(rest)
            except BlockingIOError:
                break
            rest = _after(rest, count)
        self._pending = [bytes(piece) for piece in rest]
        self.blocked = bool(rest)


def _after(pieces: Sequence[Piece], count: int) -> Sequence[Piece]:
    for number, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[number + 1 :]]
        count -= len(piece)
    return []
