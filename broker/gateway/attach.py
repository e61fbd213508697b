"""Sessions that a runner hands over. The connection is the lease: when it closes, the session ends."""

import contextlib
import os
import socket
from collections.abc import Callable

import msgspec

from broker.audit.errors import AuditUnavailable
from broker.control.messages import (
    MAX_DESCRIPTORS,
    MAX_MESSAGE,
    Attach,
    Attached,
    Ended,
    Finish,
    Finished,
    FromBroker,
    Greeting,
    Rejected,
    decode_from_runner,
    encode,
)
from broker.gateway.broker import Broker
from broker.gateway.reactor import LISTENER
from broker.gateway.session import Identity, Session
from broker.policy.reasons import Reason, Refusal
from certs.errors import CertsError

LISTENERS = range(2, 4)  # the capture listener, and a name server's socket for each IP version


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that was greeted elsewhere, for one session only: `attach` waits on it to be read.

    `over` is called once, when the connection carries that session no more, before the runner is told of it.
    """

    attach: Attach
    over: Callable[[], None]


class AttachConnection:
    """One runner's lease. Messages and descriptors arrive together (SOCK_SEQPACKET)."""

    def __init__(self, broker: Broker, connection: socket.socket, ordered: Ordered | None = None) -> None:
        self._broker = broker
        self._connection = connection
        self._session: Session | None = None
        self._attached = False
        self._only = ordered.attach if ordered is not None else None
        self._over = ordered.over if ordered is not None else None
        connection.setblocking(False)
        if ordered is None:
            inspector = broker.inspector
            self._send(Greeting(inspector.authority_pem().decode() if inspector is not None else ""))
        broker.reactor.add(connection.fileno(), self.on_event, LISTENER)

    def on_event(self, _events: int) -> None:
        """Read until there is nothing, or nobody."""
        try:
            while True:
                message, descriptors, flags, _ = socket.recv_fds(
                    self._connection, MAX_MESSAGE + 1, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                if not message:
                    for fd in descriptors:  # an empty message looks like the end, but can carry some
                        os.close(fd)
                    self.close()
                    return
                self._receive(message, list(descriptors), cut=bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close_unused(self) -> None:
        """End a lease on which no session was ever attached: it only holds a descriptor."""
        if not self._attached:
            self.close()

    def close(self) -> None:
        """End the lease."""
        if self._connection.fileno() < 0:
            return
        self._broker.reactor.remove(self._connection.fileno())
        self._connection.close()
        session, self._session = self._session, None
        if session is not None:
            self._broker.close_session(session, Reason.SESSION_ENDED, "the runner has gone")
        self._say_over()
        self._broker.lease_ended()

    def _on_close(self, reason: Reason, detail: str) -> None:
        """The broker has closed the session: the runner must know, because the sandbox has no network now."""
        if self._session is None:
            return
        self._session = None
        self._say_over()
        with contextlib.suppress(OSError):
            self._send(Ended(str(reason), detail))
        self.close()

    def _say_over(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()

    def _receive(self, message: bytes, descriptors: list[int], *, cut: bool) -> None:
        sockets: list[socket.socket] = []
        try:
            sockets = _adopt(descriptors)  # first, so that they are closed whatever the message is
            if cut:
                raise Refusal(Reason.BAD_REQUEST, "the message was cut short")
            received = decode_from_runner(message)
            match received:
                case Attach():
                    self._attach(received, sockets)
                case Finish(refused):
                    self._finish(refused)
            if not isinstance(received, Attach):
                _close(sockets)
        except (msgspec.DecodeError, AuditUnavailable, CertsError, Refusal, OSError) as error:
            _close(sockets)
            reason, detail = why_rejected(error)
            if self._session is None:
                self._say_over()
            self._send(Rejected(str(reason), detail))

    def _attach(self, attach: Attach, sockets: list[socket.socket]) -> None:
        if self._session is not None:
            raise Refusal(Reason.BAD_REQUEST, "this connection carries a session already")
        if self._only is not None and (self._over is None or attach != self._only):
            raise Refusal(Reason.BAD_REQUEST, "attach again on another connection")
        if len(sockets) not in LISTENERS:
            raise Refusal(Reason.BAD_REQUEST, f"{len(sockets)} listeners instead of {LISTENERS.start} or more")
        _check_listeners(sockets)
        identity = Identity(session=attach.session, call=attach.call)
        session = self._broker.open_session(identity, attach.grant, sockets)
        session.on_close = self._on_close
        self._session, self._attached = session, True
        self._send(Attached())

    def _finish(self, refused: int) -> None:
        session, self._session = self._session, None  # so that `_on_close` is told nothing new
        if session is None:
            raise Refusal(Reason.BAD_REQUEST, "this connection carries no session")
        counts = session.recorder.counts
        detail = f"{session.queries} name queries, {refused} packets refused"
        self._broker.close_session(session, Reason.SESSION_ENDED, detail)
        self._broker.end_turn()
        self._say_over()
        log = self._broker.log_location
        self._send(Finished(counts.allowed, counts.denied, counts.failures, log))

    def _send(self, message: FromBroker) -> None:
        self._connection.send(encode(message))


def why_rejected(error: Exception) -> tuple[Reason, str]:
    """The reason and the words that a runner is told."""
    match error:
        case Refusal(reason=reason, detail=detail):
            return reason, detail
        case AuditUnavailable():
            return Reason.AUDIT_UNAVAILABLE, str(error)
        case _:
            return Reason.BAD_REQUEST, str(error)


def _check_listeners(sockets: list[socket.socket]) -> None:
    """Refuse what is no listener: accepting on it would fail for ever, in a turn that serves all other sessions too."""
    capture, *names = sockets
    internet = all(one.family in {socket.AF_INET, socket.AF_INET6} for one in sockets)
    listens = capture.type is socket.SOCK_STREAM and capture.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not internet or not listens or any(one.type is not socket.SOCK_DGRAM for one in names):
        raise Refusal(Reason.BAD_REQUEST, "expected a listening TCP socket, then UDP sockets")


def _close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _adopt(descriptors: list[int]) -> list[socket.socket]:
    """Own descriptors as sockets, all or none."""
    sockets: list[socket.socket] = []
    try:
        for fd in descriptors:
            sockets.append(socket.socket(fileno=fd))
            sockets[-1].setblocking(False)
    except OSError:
        for fd in descriptors[len(sockets) :]:
            os.close(fd)
        for one in sockets:
            one.close()
        raise
    return sockets
