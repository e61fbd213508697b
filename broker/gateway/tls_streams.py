"""TLS as a non-blocking stream, and the handshakes of both sides.

OpenSSL reads and writes memory, and this module moves ciphertext between that and the socket, at most a portion before
each look. On the descriptor itself one read of OpenSSL goes on for as long as the peer sends messages that carry no
payload (RFC 8446 §4.6.3 KeyUpdate), and everybody else waits.
"""

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence

from broker.gateway.reactor import Reactor
from broker.gateway.relay import reset
from broker.gateway.streams import Piece, is_empty

RECORD = 16 * 1024  # the largest a TLS record carries (RFC 8446 §5.1)
PORTION = 34 * 1024  # of ciphertext: two such records, and some
BATCH = 64 * 1024  # payload that goes to the socket at once
GATHER = 64 * 1024  # one read of `ssl` is at most one record; several are worth one turn of the plane
JOIN = 16 * 1024  # pieces that fit into one record together are sent as one
_portion = memoryview(bytearray(PORTION))  # passes from a socket to OpenSSL's memory at once
BARREN = 64 * 1024  # ciphertext beyond its payload that a peer may send, once hands are shaken
OVERHEAD = 64  # ciphertext that an octet of payload makes up for: alone in its record it takes 23


class TlsStream:
    """A TLS connection. See `streams.Stream`; nothing of that before `shake` has returned."""

    __slots__ = ("_barren", "_in", "_last", "_out", "_owed", "_pending", "_read", "_tls", "_unsent", "_write", "sock")

    def __init__(
        self, sock: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self.sock = sock
        self._tls = tls
        self._in = incoming
        self._out = outgoing
        self._unsent = b""  # ciphertext that the socket has not taken
        self._owed = 0  # the payload in it, which the caller was told to bring again
        self._barren = 0
        self._last: int | OSError | None = None  # the end, or what broke it: nothing comes behind that
        # What `read`, `write` and `pending` come to, without a detour, several times for every request.
        state = tls._sslobj  # type: ignore[attr-defined]  # noqa: SLF001
        self._read: Callable[[int, memoryview], int] = state.read
        self._write: Callable[[Piece], int] = state.write
        self._pending: Callable[[], int] = state.pending

    @property
    def joinable(self) -> "JoinableTls":
        return JoinableTls(self)

    @property
    def protocol(self) -> str | None:
        """What was agreed on by ALPN (RFC 7301)."""
        return self._tls.selected_alpn_protocol()

    def shake(self) -> None:
        """Go on with the handshake; returns when it is done. Raises BlockingIOError where it waits, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._push()
                self._barren = 0  # hands are shaken within a time
                self._fill()
            except OSError:
                with contextlib.suppress(OSError):
                    self._push()  # the alert
                raise
            else:
                break
        self._push()
        self._barren = 0

    def receive(self, view: memoryview) -> int:
        if self._last is None:
            count = self._gather(view)
            if count:
                return count  # what arrived whole is delivered first
        if isinstance(self._last, OSError):
            raise self._last
        return 0

    def is_drained(self) -> bool:
        return self._last is None and not (self._in.pending or self._pending()) and is_empty(self.sock)

    def send(self, pieces: Sequence[Piece]) -> int:
        if self._unsent:
            self._push()
        if self._owed:
            count, self._owed = self._owed, 0
            return count
        first = pieces[0]
        if len(pieces) > 1 and sum(map(len, pieces)) <= JOIN:
            first = b"".join(pieces)
        total, count = len(first), self._write(first)  # at most a record; memory takes it always
        if count < total:
            rest, most = memoryview(first), min(total, BATCH)
            while count < most:
                count += self._write(rest[count:most])
        try:
            self._push()
        except BlockingIOError:
            self._owed = count
            raise
        return count

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._notify()
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._notify()
        self.sock.close()

    def reset(self) -> None:
        reset(self.sock)

    def _gather(self, view: memoryview) -> int:
        """Read what there is; 0 where nothing came before what `_last` holds. Raises BlockingIOError, OSError."""
        total, room = 0, min(len(view), GATHER)
        if not self._in.pending and not self._pending():
            self._fill()
        while total < room:
            try:
                count = self._read(room - total, view[total:] if total else view)
            except ssl.SSLWantReadError:
                self._answer()
                if total:
                    break
                self._fill()
                continue
            except ssl.SSLZeroReturnError:
                count = 0  # a close_notify, which `ssl` reports so once we have sent ours
            except OSError as error:
                self._answer()
                self._last = error
                break
            if not count:
                self._last = 0
                break
            total += count
            self._barren = max(0, self._barren - OVERHEAD * count)
            if count < RECORD:
                break  # most likely all there is; a caller that wants more asks again
        return total

    def _push(self) -> None:
        """Send what OpenSSL has written. Raises BlockingIOError when not all of it is sent, OSError."""
        octets = self._unsent + self._out.read() if self._out.pending else self._unsent
        while octets:
            self._unsent = octets  # should it raise
            octets = octets[self.sock.send(octets) :]
        self._unsent = b""

    def _answer(self) -> None:
        """Send what OpenSSL says for itself, such as an alert, as far as it goes now."""
        if self._out.pending:
            with contextlib.suppress(OSError):
                self._push()

    def _fill(self) -> None:
        """Read a portion of ciphertext. Raises BlockingIOError where there is none, OSError."""
        count = self.sock.recv_into(_portion)
        if not count:
            self._in.write_eof()
            return
        self._barren += count
        if self._barren > BARREN:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"{BARREN // 1024} KB of TLS that carry nothing")
        self._in.write(_portion[:count])

    def _notify(self) -> None:
        """End our side, and keep the TLS state for the other."""
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._push()


class JoinableTls:
    """The same for a tunnel. A short read does not mean that nothing is left: a read is a record, or some."""

    __slots__ = ("_resets", "_stream")

    def __init__(self, stream: TlsStream) -> None:
        self._stream = stream
        self._resets = False

    def fileno(self) -> int:
        return self._stream.sock.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        return self._stream.receive(buffer)

    def send(self, data: bytes | memoryview, /) -> int:
        return self._stream.send((data,))

    def shutdown(self, how: int, /) -> None:
        assert how == socket.SHUT_WR
        self._stream.end()

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        self._resets |= option == socket.SO_LINGER
        self._stream.sock.setsockopt(level, option, value)

    def close(self) -> None:
        """Ahead of a reset (see `relay.reset`) no close_notify: the peer would take what was cut for a clean end."""
        if self._resets:
            self._stream.sock.close()
        else:
            self._stream.close()


type Outcome = TlsStream | OSError


class Handshake:
    """A handshake under way on a socket that the reactor watches. `done` is called once."""

    __slots__ = ("_done", "_reactor", "_stream", "deadline")

    def __init__(self, reactor: Reactor, stream: TlsStream, seconds: float, done: Callable[[Outcome], None]) -> None:
        self._reactor = reactor
        self._stream = stream
        self._done: Callable[[Outcome], None] | None = done
        self.deadline = reactor.now + seconds

    def start(self) -> None:
        """Begin; the outcome may come at once."""
        self._reactor.replace(self._stream.sock.fileno(), self.on_event)
        self._reactor.watch(self)
        self.on_event(0)

    def on_event(self, _events: int) -> None:
        """Go on with it."""
        try:
            self._stream.shake()
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(error)
        else:
            self._finish(self._stream)

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


def wrap_server(context: ssl.SSLContext, sock: socket.socket) -> TlsStream:
    """The sandbox's side: we are its server."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return TlsStream(sock, context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)


def wrap_client(context: ssl.SSLContext, sock: socket.socket, host: str) -> TlsStream:
    """The internet's side: `host` is sent as SNI and is what the certificate must be for."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return TlsStream(sock, context.wrap_bio(incoming, outgoing, server_hostname=host), incoming, outgoing)
