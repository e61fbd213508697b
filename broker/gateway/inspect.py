"""The inspect plane: terminate TLS under a leaf for exactly the SNI, then judge every request inside.

Also the way in which a refusal of a TLS connection becomes readable: the handshake is completed, and every request is
answered with the denial.
"""

import socket

from broker.audit.records import Plane
from broker.gateway.http import HttpConnection
from broker.gateway.inspector import Inspector
from broker.gateway.records import About
from broker.gateway.relay import reset
from broker.gateway.session import Session
from broker.gateway.tls_streams import Handshake, Outcome, TlsStream, wrap_server
from broker.policy.authority import Authority
from broker.policy.decide import Denied
from broker.policy.reasons import Family, Reason, Refusal
from broker.wire.client_hello import ClientHello
from certs.alerts import Fault, classify_downstream
from certs.errors import CertsError

HTTP_11 = "http/1.1"
# Who has sent a share for this group gets it. The cable does not leave the machine: a hybrid with ML-KEM, OpenSSL's own
# choice since 3.5, would guard it against nobody and cost a third of the handshake.
X25519 = "X25519"


class InspectedConnection:
    """A TLS connection until its handshake is done. The ClientHello is still in the socket."""

    def __init__(  # noqa: PLR0913
        self,
        session: Session,
        inspector: Inspector,
        sock: socket.socket,
        *,
        asked: Authority,
        wanted: str,
        refused: Denied | None,
    ) -> None:
        self._session = session
        self._inspector = inspector
        self._sock = sock
        self._asked = asked
        self._wanted = wanted
        self._refused = refused
        self._handshake: Handshake | None = None
        self._started = session.reactor.now

    def start(self, hello: ClientHello) -> None:
        """Make the leaf and answer the hello."""
        name = str(hello.server_name or self._asked.host)
        try:
            context = self._inspector.server_context(name, (_protocol(hello.alpn),), X25519 if hello.x25519 else "")
        except CertsError as error:
            self._fail(Refusal(Reason.INTERNAL, f"no leaf for this name: {error.cause}"))
            return
        self._session.remember(self)
        stream = wrap_server(context, self._sock)
        seconds = self._session.limits.handshake_seconds
        self._handshake = Handshake(self._session.reactor, stream, seconds, self._shaken)
        self._handshake.start()

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it with a reset and a record."""
        if self._handshake is not None:
            self._handshake.cancel()
        self._fail(Refusal(reason, detail))

    def judge_again(self) -> None:
        """Nothing was allowed yet: each request will be judged."""

    def _shaken(self, outcome: Outcome) -> None:
        if isinstance(outcome, TlsStream):
            self._session.forget(self)
            if outcome.protocol == "h2":
                # Loaded when the first such client appears: most brokers never need it.
                from broker.gateway.h2 import H2Connection  # noqa: PLC0415

                H2Connection(
                    self._session, outcome, asked=self._asked, wanted=self._wanted, refused=self._refused
                ).start()
                return
            HttpConnection(
                self._session, outcome, asked=self._asked, wanted=self._wanted, scheme="https", refused=self._refused
            ).start()
            return
        if isinstance(outcome, TimeoutError):
            self._fail(Refusal(Reason.HEAD_TIMEOUT, str(outcome)))
            return
        failure = classify_downstream(outcome)
        rejected = failure.fault in {Fault.REJECTED_CA, Fault.CLOSED}
        reason = Reason.CLIENT_REJECTED_CA if rejected else Reason.BAD_CLIENT_HELLO
        self._fail(Refusal(reason, f"{failure.text}; {failure.hint}" if failure.hint else failure.text))

    def _fail(self, refusal: Refusal) -> None:
        session = self._session
        about = About(Plane.INSPECT, self._wanted, scheme="https", authority=str(self._asked))
        about.started = self._started
        if self._refused is not None:
            session.settle(about, self._refused)
        elif refusal.reason.family is Family.END:
            session.recorder.close(about, refusal.reason, refusal.detail, bytes_up=0, bytes_down=0)
        else:
            session.recorder.refuse(about, refusal)
        session.forget(self)
        session.reactor.remove(self._sock.fileno())
        reset(self._sock)


def _protocol(offered: tuple[bytes, ...]) -> str:
    """HTTP/1.1 whenever the client offers it, or nothing; HTTP/2 for those that speak nothing else."""
    return "h2" if b"h2" in offered and HTTP_11.encode() not in offered else HTTP_11
