"""Sessions that a runner hands over. The connection is the lease: when it closes, the session ends."""

import os
import socket

import msgspec

from broker.control.messages import (
    MAX_DESCRIPTORS,
    MAX_MESSAGE,
    Attach,
    Attached,
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


class AttachConnection:
    """One runner's lease. Messages and descriptors arrive together (SOCK_SEQPACKET)."""

    def __init__(self, broker: Broker, connection: socket.socket) -> None:
        self._broker = broker
        self._connection = connection
        self._session: Session | None = None
        connection.setblocking(False)
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
                    self.close()
                    return
                self._receive(message, list(descriptors), cut=bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self) -> None:
        """End the lease."""
        self._broker.reactor.remove(self._connection.fileno())
        self._connection.close()
        if self._session is not None:
            self._broker.close_session(self._session, Reason.SESSION_ENDED, "the runner has gone")
            self._session = None
        self._broker.lease_ended()

    def _receive(self, message: bytes, descriptors: list[int], *, cut: bool) -> None:
        sockets: list[socket.socket] = []
        try:
            received = decode_from_runner(message)
            if cut:
                raise Refusal(Reason.BAD_REQUEST, "the message was cut short")
            sockets = _adopt(descriptors)
            match received:
                case Attach():
                    self._attach(received, sockets)
                case Finish(refused):
                    self._finish(refused)
        except (msgspec.ValidationError, msgspec.DecodeError, CertsError, Refusal, OSError) as error:
            for one in sockets:
                one.close()
            reason = error.reason if isinstance(error, Refusal) else Reason.BAD_REQUEST
            self._send(Rejected(str(reason), error.detail if isinstance(error, Refusal) else str(error)))

    def _attach(self, attach: Attach, sockets: list[socket.socket]) -> None:
        if self._session is not None:
            raise Refusal(Reason.BAD_REQUEST, "this connection carries a session already")
        if len(sockets) not in LISTENERS:
            raise Refusal(Reason.BAD_REQUEST, f"{len(sockets)} listeners instead of {LISTENERS.start} or more")
        identity = Identity(session=attach.session, call=attach.call)
        self._session = self._broker.open_session(identity, attach.grant, sockets)
        self._send(Attached())

    def _finish(self, refused: int) -> None:
        session, self._session = self._session, None
        if session is None:
            raise Refusal(Reason.BAD_REQUEST, "this connection carries no session")
        counts = session.recorder.counts
        detail = f"{session.queries} name queries, {refused} packets refused"
        self._broker.close_session(session, Reason.SESSION_ENDED, detail)
        self._broker.end_turn()
        log = self._broker.log_location
        self._send(Finished(counts.allowed, counts.denied, counts.failures, log))

    def _send(self, message: FromBroker) -> None:
        self._connection.send(encode(message))


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
