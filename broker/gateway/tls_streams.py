"""TLS as a non-blocking stream on its descriptor, and the handshakes of both sides.

`ssl` says "wants to read" where a socket says EAGAIN; here both are BlockingIOError, so the planes need not care.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence

from broker.gateway.reactor import Reactor
from broker.gateway.relay import reset
from broker.gateway.streams import Piece, is_empty

RECORD = 16 * 1024  # the largest a TLS record carries (RFC 8446 §5.1)
GATHER = 64 * 1024  # one read of `ssl` is at most one record; several are worth one turn of the plane
JOIN = 16 * 1024  # pieces that fit into one record together are sent as one


class TlsStream:
    """An established TLS connection. See `streams.Stream`."""

    __slots__ = ("_read", "_write", "sock")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        # What `recv_into` and `send` come to, without their detours, two of them for every request.
        state = sock._sslobj  # type: ignore[attr-defined]  # noqa: SLF001
        self._read: Callable[[int, memoryview], int] = state.read
        self._write: Callable[[Piece], int] = state.write

    @property
    def joinable(self) -> "JoinableTls":
        return JoinableTls(self.sock)

    def receive(self, view: memoryview) -> int:
        total, room = 0, min(len(view), GATHER)
        while total < room:
            try:
                count = self._read(room - total, view[total:] if total else view)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if total:
                    return total
                raise BlockingIOError from error
            except ssl.SSLZeroReturnError:
                return total  # a close_notify, which `ssl` reports so once we have sent ours
            except OSError:
                if total:
                    return total  # what arrived whole is delivered first; the error comes again
                raise
            total += count
            if count < RECORD:
                break  # most likely all there is; a caller that wants more asks again
        return total

    def is_drained(self) -> bool:
        return not self.sock.pending() and is_empty(self.sock)

    def send(self, pieces: Sequence[Piece]) -> int:
        first = pieces[0]
        if len(pieces) > 1 and sum(map(len, pieces)) <= JOIN:
            first = b"".join(pieces)
        try:
            count = self._write(first)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        return count if count == len(first) else self._write_on(memoryview(first), count)

    def _write_on(self, data: memoryview, count: int) -> int:
        """One write of `ssl` is at most one record: go on with the others."""
        with contextlib.suppress(OSError):  # it would wait, or is broken: what was taken is told, and the rest says so
            while count < len(data):
                count += self._write(data[count:])
        return count

    def end(self) -> None:
        with contextlib.suppress(OSError):
            _end(self.sock)

    def close(self) -> None:
        _notify(self.sock)
        self.sock.close()

    def reset(self) -> None:
        reset(self.sock)


class JoinableTls:
    """The same for a tunnel. A short read does not mean that nothing is left: a read is one record."""

    __slots__ = ("_resets", "_sock")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._resets = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        try:
            return self._sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        except ssl.SSLZeroReturnError:
            return 0  # a close_notify, which `ssl` reports so once we have sent ours

    def send(self, data: bytes | memoryview, /) -> int:
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def shutdown(self, how: int, /) -> None:
        assert how == socket.SHUT_WR
        _end(self._sock)

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        self._resets |= option == socket.SO_LINGER
        self._sock.setsockopt(level, option, value)

    def close(self) -> None:
        """Ahead of a reset (see `relay.reset`) no close_notify: the peer would take what was cut for a clean end."""
        if not self._resets:
            _notify(self._sock)
        self._sock.close()


def _end(sock: ssl.SSLSocket) -> None:
    """End our side, and keep the TLS state for the other.

    Never `SSLSocket.shutdown` or `unwrap`: without a word they turn the object into a plain socket, and then what is
    read is ciphertext that would be passed on, and what is written goes out in clear.
    """
    _notify(sock)
    socket.socket.shutdown(sock, socket.SHUT_WR)


def _notify(sock: ssl.SSLSocket) -> None:
    state = sock._sslobj  # type: ignore[attr-defined]  # noqa: SLF001
    if state is not None:
        with contextlib.suppress(OSError, ValueError):
            state.shutdown()


type Outcome = TlsStream | OSError


class Handshake:
    """A handshake under way on a socket that the reactor watches. `done` is called once."""

    __slots__ = ("_done", "_reactor", "_sock", "deadline")

    def __init__(self, reactor: Reactor, sock: ssl.SSLSocket, seconds: float, done: Callable[[Outcome], None]) -> None:
        self._reactor = reactor
        self._sock = sock
        self._done: Callable[[Outcome], None] | None = done
        self.deadline = reactor.now + seconds

    def start(self) -> None:
        """Begin; the outcome may come at once."""
        self._reactor.replace(self._sock.fileno(), self.on_event)
        self._reactor.watch(self)
        self.on_event(0)

    def on_event(self, _events: int) -> None:
        """Go on with it."""
        try:
            self._sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._finish(error)
        else:
            self._finish(TlsStream(self._sock))

    def on_deadline(self, _events: int) -> None:
        """It took too long."""
        self._finish(TimeoutError("the TLS handshake took too long"))

    def abort(self, _reason: object, detail: str) -> None:
        """Our own fault: report it as a failure."""
        self._finish(OSError(0, detail))

    def cancel(self) -> None:
        """Stop without an outcome. The socket is the owner's."""
        self._done = None
        self._reactor.unwatch(self)

    def _finish(self, outcome: Outcome) -> None:
        self._reactor.unwatch(self)
        done, self._done = self._done, None
        if done is not None:
            self._reactor.call(done, outcome)


def wrap_server(context: ssl.SSLContext, sock: socket.socket) -> ssl.SSLSocket:
    """The sandbox's side: we are its server."""
    return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False)


def wrap_client(context: ssl.SSLContext, sock: socket.socket, host: str) -> ssl.SSLSocket:
    """The internet's side: `host` is sent as SNI and is what the certificate must be for."""
    return context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=False)
