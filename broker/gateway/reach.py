"""Reach an upstream for a judged request: dial, and for HTTPS shake hands and verify. One outcome, once."""

import ssl
from collections.abc import Callable

from broker.gateway.dial import Dialled, Dialler, Dialling
from broker.gateway.inspector import Inspector
from broker.gateway.relay import reset
from broker.gateway.streams import PlainStream
from broker.gateway.tls_streams import Handshake, Outcome, TlsStream, wrap_client
from broker.gateway.upstreams import Upstream
from broker.policy.addresses import Network
from broker.policy.authority import Authority
from broker.policy.reasons import Reason, Refusal
from broker.policy.rule import ORDINARY, UpstreamTls
from broker.wire.http1.rewrite import Scheme
from certs.alerts import Fault, TlsFailure, classify_upstream
from certs.errors import CertsError

_REASONS = {
    Fault.CERTIFICATE: Reason.UPSTREAM_CERTIFICATE,
    Fault.CLIENT_CERTIFICATE: Reason.UPSTREAM_CERTIFICATE,
    Fault.REJECTED_CA: Reason.UPSTREAM_TLS,
    Fault.HANDSHAKE: Reason.UPSTREAM_TLS,
    Fault.CLOSED: Reason.UPSTREAM_CLOSED,
}


def broken_upstream(error: OSError, authority: Authority) -> Refusal:
    """Why an upstream ended that had been reached.

    In TLS 1.3 a server says that it wants a certificate only when the handshake is over for us (RFC 8446 §4.4.2.4).
    """
    failure = classify_upstream(error, str(authority.host))
    if failure.fault is Fault.CLIENT_CERTIFICATE:
        return _explain(failure)
    cut = failure.fault is Fault.CLOSED and isinstance(error, ssl.SSLError)
    said = "it closed without a close_notify, so what it sent may be cut" if cut else error.strerror
    return Refusal(Reason.UPSTREAM_CLOSED, said or "reset")


def _explain(failure: TlsFailure) -> Refusal:
    detail = f"{failure.text}; {failure.hint}" if failure.hint else failure.text
    return Refusal(_REASONS[failure.fault], detail)


class Reaching:
    """One attempt. `cancel` it to stop without an outcome."""

    __slots__ = (
        "_alpn",
        "_authority",
        "_dialled",
        "_dialler",
        "_dialling",
        "_done",
        "_handshake",
        "_inspector",
        "_rule",
        "_scheme",
        "_seconds",
    )

    def __init__(  # noqa: PLR0913
        self,
        dialler: Dialler,
        inspector: Inspector | None,
        *,
        scheme: Scheme,
        authority: Authority,
        seconds: float,
        done: Callable[[Upstream | Refusal], None],
        alpn: tuple[str, ...] = ("http/1.1",),
        rule: UpstreamTls = ORDINARY,
    ) -> None:
        self._dialler = dialler
        self._inspector = inspector
        self._scheme = scheme
        self._authority = authority
        self._seconds = seconds
        self._alpn = alpn
        self._rule = rule
        self._done: Callable[[Upstream | Refusal], None] | None = done
        self._dialling: Dialling | None = None
        self._dialled: Dialled | None = None
        self._handshake: Handshake | None = None

    @property
    def pending(self) -> bool:
        """Whether the outcome is still to come."""
        return self._done is not None

    def start(self, opened: tuple[Network, ...]) -> None:
        """Dial; the outcome may come at once."""
        self._dialling = self._dialler.dial(self._authority, opened, self._connected)

    def cancel(self) -> None:
        """Stop and drop what was made."""
        self._done = None
        if self._dialling is not None:
            self._dialling.cancel()
        if self._handshake is not None:
            self._handshake.cancel()
            self._drop()

    def abort(self, reason: Reason, detail: str) -> None:
        """Our own fault: report it as a failure."""
        self._drop()
        self._finish(Refusal(reason, detail))

    def _connected(self, outcome: Dialled | Refusal) -> None:
        if isinstance(outcome, Refusal):
            self._finish(outcome)
        elif self._scheme == "http":
            self._finish(Upstream(PlainStream(outcome.sock), outcome))
        else:
            self._secure(outcome)

    def _secure(self, dialled: Dialled) -> None:
        self._dialled = dialled
        host = str(self._authority.host)
        reactor = self._dialler.reactor
        assert self._inspector is not None
        try:
            stream = wrap_client(self._inspector.client_context(host, self._alpn, self._rule), dialled.sock, host)
        except (CertsError, OSError, ValueError) as error:
            self._drop()
            self._finish(Refusal(Reason.INTERNAL, f"TLS to the upstream cannot be set up: {error}"))
            return
        self._handshake = Handshake(reactor, stream, self._seconds, self._shaken)
        self._handshake.start()

    def _shaken(self, outcome: Outcome) -> None:
        self._handshake = None
        assert self._dialled is not None
        if isinstance(outcome, TlsStream):
            if self._alpn == ("h2",) and outcome.protocol != "h2":
                self._drop()
                self._finish(Refusal(Reason.UPSTREAM_PROTOCOL, "the upstream does not speak HTTP/2"))
                return
            self._finish(Upstream(outcome, self._dialled))
            return
        self._drop()
        if isinstance(outcome, TimeoutError):
            self._finish(Refusal(Reason.CONNECT_TIMEOUT, str(outcome)))
            return
        self._finish(_explain(classify_upstream(outcome, str(self._authority.host))))

    def _drop(self) -> None:
        if self._dialled is not None:
            self._dialler.reactor.remove(self._dialled.sock.fileno())
            reset(self._dialled.sock)

    def _finish(self, outcome: Upstream | Refusal) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._dialler.reactor.call(done, outcome)
