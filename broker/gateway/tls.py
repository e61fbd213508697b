"""TLS connections: read the ClientHello, make the names agree, decide, and then splice or inspect.

What is judged is the name that the sandbox asked for (or the address that it dialled) with the port; the SNI must be
exactly that name, because it is what the upstream will answer to. The hello is sent on as it came.
"""

import socket

from broker.audit.records import Plane
from broker.gateway.dial import Dialled, Dialling
from broker.gateway.inspect import InspectedConnection
from broker.gateway.inspector import Inspector
from broker.gateway.reactor import HANGUP, IN
from broker.gateway.records import About
from broker.gateway.relay import Tunnel, reset
from broker.gateway.session import Session
from broker.policy.authority import Authority
from broker.policy.decide import Allowed, Denied, Facts, Stage
from broker.policy.grants import Spend
from broker.policy.reasons import Family, Reason, Refusal
from broker.policy.rules import TlsMode
from broker.wire.client_hello import ClientHello
from broker.wire.records import bytes_missing

PEEK_BYTES = 64 * 1024


class TlsConnection:
    """One TLS connection, from its first bytes to the end of its tunnel."""

    __slots__ = (
        "_about",
        "_allowed",
        "_asked",
        "_dialling",
        "_enough",
        "_first",
        "_seen",
        "_session",
        "_sock",
        "_tunnel",
        "deadline",
    )

    def __init__(self, session: Session, sock: socket.socket, asked: Authority, wanted: str) -> None:
        self._session = session
        self._sock = sock
        self._asked = asked
        self._about = About(Plane.SPLICE, wanted, scheme="https", authority=str(asked))
        self._first = b""
        self._enough = 0
        self._seen = 0  # events of the client that the tunnel is not told of again
        self._allowed: Allowed | None = None
        self._dialling: Dialling | None = None
        self._tunnel: Tunnel | None = None
        self.deadline = session.reactor.now + session.limits.client_hello_seconds

    def start(self, first: bytes, seen: int) -> None:
        """Take over a watched socket; `first` was seen in it, but not taken, after the events `seen`."""
        self._first = first
        self._seen = seen
        self._about.started = self._session.reactor.now
        self._session.remember(self)
        self._try_hello(hangup=False)

    def on_event(self, events: int) -> None:
        """Look again, without taking: the hello is for whoever serves it."""
        self._seen |= events
        try:
            self._first = self._sock.recv(PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(Refusal(Reason.BAD_CLIENT_HELLO, f"{error.strerror} inside the ClientHello"))
            return
        self._try_hello(hangup=bool(events & HANGUP) or not self._first)

    def _try_hello(self, *, hangup: bool) -> None:
        try:
            hello = self._parse()
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if hello is not None:
            self._session.reactor.unwatch(self)
            # Judged once: whatever else happens on this socket waits for the tunnel, which looks at it again.
            self._session.reactor.replace(self._sock.fileno(), self._stirred)
            self._judge(hello)
        elif hangup:
            self._refuse(Refusal(Reason.BAD_CLIENT_HELLO, "closed inside the ClientHello"))
        else:
            self._session.reactor.replace(self._sock.fileno(), self.on_event)
            self._session.reactor.watch(self)

    def _stirred(self, events: int) -> None:
        """While the upstream is dialled: the tunnel looks at everything when it starts."""
        self._seen |= events

    def on_deadline(self, _events: int) -> None:
        """The hello took too long."""
        self._refuse(Refusal(Reason.HEAD_TIMEOUT, "the ClientHello did not arrive in time"))

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it with resets and a record."""
        if self._tunnel is not None:
            self._tunnel.end(reason, detail)
        elif self._dialling is not None:
            self._dialling.cancel()
            self._session.recorder.close(self._about, reason, detail, bytes_up=0, bytes_down=0)
            self._drop()
        else:
            self._refuse(Refusal(reason, detail))

    def judge_again(self) -> None:
        """End a tunnel that the policy does not allow any more, or wants to look into."""
        if self._tunnel is None and self._dialling is None:
            return  # not judged yet
        assert self._allowed is not None
        verdict = self._session.decide_again(self._facts(), self._allowed, self._about.dialled)
        if isinstance(verdict, Denied) or verdict.rule.tls is not TlsMode.SPLICE:
            detail = verdict.detail if isinstance(verdict, Denied) else "the policy now inspects this host"
            self.abort(Reason.POLICY_CHANGED, detail)

    def tunnel_lives(self, tunnel: Tunnel) -> None:
        """Put a long one on record."""
        recorder = self._session.recorder
        recorder.progress(self._about, bytes_up=tunnel.bytes_up, bytes_down=tunnel.bytes_down)

    def tunnel_ended(self, tunnel: Tunnel, reason: Reason, detail: str) -> None:
        """Record what moved."""
        self._session.forget(self)
        moved = {"bytes_up": tunnel.bytes_up, "bytes_down": tunnel.bytes_down}
        self._session.recorder.close(self._about, reason, detail, **moved)

    def _facts(self) -> Facts:
        return Facts(stage=Stage.CONNECTION, scheme="https", authority=self._asked)

    def _parse(self) -> ClientHello | None:
        if len(self._first) < self._enough:
            return None
        limit = self._session.limits.client_hello_bytes
        hello = self._session.hellos.parse(self._first, limit=limit)
        if hello is None:
            # Parsing again after each of many tiny records would cost the square of their number.
            self._enough = len(self._first) + bytes_missing(self._first, limit=limit)
        return hello

    def _judge(self, hello: ClientHello) -> None:
        verdict = self._session.asking("https", self._asked).connection()
        mismatch = _disagreement(self._asked, hello)
        # The policy's own "no" is the more useful answer where both apply.
        if isinstance(verdict, Allowed) and mismatch is not None:
            verdict = Denied(mismatch.reason, verdict.rule, mismatch.detail)
        inspector = self._session.inspector
        if inspector is not None and (isinstance(verdict, Denied) or verdict.rule.tls is TlsMode.INSPECT):
            self._inspect(inspector, hello, verdict if isinstance(verdict, Denied) else None)
            return
        settled = self._session.settle(self._about, verdict, Spend.CONNECTION)
        if isinstance(settled, Denied):
            self._drop()
        else:
            self._dial(settled)

    def _inspect(self, inspector: Inspector, hello: ClientHello, refused: Denied | None) -> None:
        self._session.forget(self)
        inspected = InspectedConnection(
            self._session, inspector, self._sock, asked=self._asked, wanted=self._about.wanted, refused=refused
        )
        inspected.start(hello)

    def _dial(self, verdict: Allowed) -> None:
        self._allowed = verdict
        dialling = self._session.dialler.dial(self._asked, verdict.addresses, self._dialled)
        self._dialling = dialling if dialling.pending else None

    def _dialled(self, outcome: Dialled | Refusal) -> None:
        self._dialling = None
        if isinstance(outcome, Refusal):
            self._refuse(outcome)
            return
        self._about.dialled = str(outcome)
        self._tunnel = Tunnel(
            self._session.reactor,
            self._sock,
            outcome.sock,
            limits=self._session.limits,
            watcher=self,
            meter=self._session.meter,
        )
        # Its end may have come together with the hello, in an edge that whoever looked first has used up.
        self._tunnel.start(client=IN | self._seen, upstream=outcome.events)

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.reason.family is Family.END:
            self._session.recorder.close(self._about, refusal.reason, refusal.detail, bytes_up=0, bytes_down=0)
        else:
            self._session.recorder.refuse(self._about, refusal)
        self._drop()

    def _drop(self) -> None:
        self._session.reactor.unwatch(self)
        self._session.forget(self)
        self._session.reactor.remove(self._sock.fileno())
        reset(self._sock)


def _disagreement(asked: Authority, hello: ClientHello) -> Refusal | None:
    name = hello.server_name
    if asked.is_literal:
        if name is None:
            return None
        return Refusal(Reason.NAME_MISMATCH, f"SNI {name}, but the address {asked.host} was dialled")
    if name is None:
        return Refusal(Reason.NO_SNI, f"no SNI, but {asked.host} was asked for")
    if name != asked.host:
        return Refusal(Reason.NAME_MISMATCH, f"SNI {name}, but {asked.host} was asked for")
    return None
