"""One sandbox's life in the broker: its policy and grant, its names, its listeners, its open connections."""

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from broker.audit.errors import AuditUnavailable
from broker.audit.records import Event, Plane
from broker.gateway.asking import Asking
from broker.gateway.dial import Dialler
from broker.gateway.inspector import Inspector
from broker.gateway.metering import Meter
from broker.gateway.names import DatagramNames
from broker.gateway.reactor import LISTENER, Reactor
from broker.gateway.records import About, Recorder
from broker.gateway.relay import reset
from broker.gateway.upstreams import Upstreams
from broker.policy.authority import Authority
from broker.policy.decide import Allowed, Denied, Facts, Verdict, decide
from broker.policy.grants import Grant, Spend
from broker.policy.limits import Limits
from broker.policy.names import HostName, classify_name
from broker.policy.reasons import Reason, Refusal
from broker.policy.rules import Action, Policy
from broker.wire.http1.limits import Limits as HttpLimits
from broker.wire.http1.rewrite import Scheme
from broker.wire.recent_hellos import RecentHellos
from broker.wire.synthetic import SyntheticZone

ACCEPTS_A_TURN = 128
RETRY_ACCEPT = 0.05
AUTHORITIES = 128  # what was asked of so many is remembered
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Connection(Protocol):
    """Whatever serves one accepted connection."""

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it now, with a reset and a record."""

    def judge_again(self) -> None:
        """The policy has changed: end what it does not allow any more."""


class Capture(Protocol):
    """Makes a connection's server. A seam, so that this module need not know the planes."""

    def __call__(self, session: "Session", sock: socket.socket, wanted: tuple[str, int]) -> None:
        """Serve `sock`, which the sandbox opened to `wanted`."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a session belongs to. All are ids that the agent server or the runner chose."""

    session: str
    call: str = ""


@dataclass(slots=True, kw_only=True)
class Session:
    """See the module. `clock` gives seconds since the epoch for grants' times."""

    identity: Identity
    policy: Policy
    grant: Grant | None
    reactor: Reactor
    dialler: Dialler
    recorder: Recorder
    listeners: list[socket.socket]
    capture: Capture
    flush: Callable[[], None]
    inspector: Inspector | None = None
    meter: Meter | None = None
    clock: Callable[[], float]
    zone: SyntheticZone = field(default_factory=SyntheticZone)
    on_close: Callable[[Reason, str], None] = lambda _reason, _detail: None
    opened: float = 0.0  # seconds since the epoch
    upstreams: Upstreams = field(init=False)
    http_limits: HttpLimits = field(init=False)  # for the connections and streams that begin from now on
    asked: dict[tuple[str, int], Authority] = field(default_factory=dict)
    hellos: RecentHellos = field(default_factory=RecentHellos)
    queries: int = 0
    _askings: dict[tuple[Scheme, Authority | None], Asking] = field(default_factory=dict)
    _connections: set[Connection] = field(default_factory=set)
    _names: list[DatagramNames] = field(default_factory=list)
    _open: bool = False
    _family: int = socket.AF_INET  # of the capture listener

    def __post_init__(self) -> None:
        self.upstreams = Upstreams(self.reactor)
        self.http_limits = _http_limits(self.policy.limits)

    @property
    def limits(self) -> Limits:
        """The policy's limits."""
        return self.policy.limits

    @property
    def open_connections(self) -> int:
        """How many connections of the sandbox are open."""
        return len(self._connections)

    @property
    def reachable(self) -> tuple[str, ...]:
        """What the session may reach, for a refusal that helps."""
        rules = self.grant.rules if self.grant is not None else self.policy.rules
        return tuple(host.text for rule in rules if rule.action is Action.ALLOW for host in rule.hosts)

    def start(self) -> None:
        """Begin to accept. The first listener captures TCP, the others are the name server's."""
        self._open = True
        self.opened = self.clock()
        self.recorder.session_event(Event.START)
        capture, *names = self.listeners
        capture.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        self._family = capture.family
        self._names = [DatagramNames(self.reactor, self, sock) for sock in names]
        self.reactor.add(capture.fileno(), self._accept, LISTENER)

    def close(self, reason: Reason, detail: str = "") -> None:
        """Drop the listeners and end every connection with `reason`. Closing twice is allowed."""
        if not self._open:
            return
        self._open = False
        self.reactor.remove(self.listeners[0].fileno())
        for names in self._names:
            names.close()
        for listener in self.listeners:
            listener.close()
        self.end_connections(reason, detail)
        self.recorder.session_event(Event.END, detail or f"{reason}; {self.queries} name queries")

    def end_connections(self, reason: Reason, detail: str = "") -> None:
        """End every connection, open or kept, and go on accepting."""
        for connection in tuple(self._connections):
            connection.abort(reason, detail)
        self.upstreams.close()

    def decide(self, facts: Facts) -> Verdict:
        """The verdict under this session's policy and grant, now."""
        return decide(facts, self.policy, self.grant, self.clock())

    def asking(self, scheme: Scheme, asked: Authority | None) -> Asking:
        """What this session asks of an authority, which all its connections to it share."""
        known = self._askings.get((scheme, asked))
        if known is None:
            if len(self._askings) >= AUTHORITIES:
                self._askings.clear()
            known = self._askings[scheme, asked] = Asking(self, scheme, asked)
        return known

    def settle(self, about: About, verdict: Verdict, *spend: Spend) -> Verdict:
        """Spend what an allow costs of the grant, and put the verdict on record.

        What cannot be paid or cannot be recorded is not allowed (the latter denial is then unrecorded).
        """
        if self.meter is not None and isinstance(verdict, Allowed):
            verdict = self.meter.spend(*spend) or verdict
        try:
            self.recorder.decide(about, verdict)
        except AuditUnavailable as error:
            return Denied(Reason.AUDIT_UNAVAILABLE, None, str(error))
        return verdict

    def decide_again(self, facts: Facts, before: Allowed, dialled: str) -> Verdict:
        """What the policy says now of something that it allowed `before` and that is connected to `dialled`, if it is.

        Where it may go is part of the answer: a rule that does not open the address any more does not keep it open.
        """
        verdict = self.decide(facts)
        if isinstance(verdict, Denied) or verdict.addresses == before.addresses:
            return verdict
        if not dialled:
            return Denied(Reason.ADDRESS_REFUSED, verdict.rule, "the addresses of its rule were changed")
        refusal = self.dialler.refuses(dialled, verdict.addresses)
        return verdict if refusal is None else Denied(refusal.reason, verdict.rule, refusal.detail)

    def change_policy(self, policy: Policy) -> None:
        """Judge what is open under another policy, and everything from now on."""
        self.policy = policy
        self.http_limits = _http_limits(policy.limits)
        self._askings.clear()  # what they remember holds under the limits of before
        self.dialler.limits = policy.limits
        self.recorder.policy = policy.version
        for connection in tuple(self._connections):
            connection.judge_again()

    def is_reserved(self, name: HostName) -> bool:
        """Whether the name server says that a name does not exist: special, and not named by a rule."""
        return classify_name(name) is not None and not self.policy.allow.names(name)

    def remember(self, connection: Connection) -> None:
        """Count a connection as open."""
        self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        """Count it no more."""
        self._connections.discard(connection)

    def _accept(self, _events: int) -> None:
        listener = self.listeners[0]
        for _ in range(ACCEPTS_A_TURN):
            try:
                # What `accept` comes to, without asking two Enums for what is known here; the stubs know it not.
                descriptor, _peer = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
                sock = socket.socket(self._family, socket.SOCK_STREAM, 0, descriptor)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    # The edge is gone but the connection waits: come back when descriptors may be free.
                    self.reactor.later(RETRY_ACCEPT, self._accept_again)
                    return
                continue  # that one connection is gone already (accept(2), "Error handling")
            self._admit(sock)
            if not self._open:
                return
        self.reactor.again(listener.fileno(), LISTENER)

    def _accept_again(self) -> None:
        if self._open:
            self._accept(0)

    def _admit(self, sock: socket.socket) -> None:
        try:
            host, port = sock.getsockname()[:2]
        except OSError:
            sock.close()
            return
        wanted = host.removeprefix("::ffff:"), port
        if len(self._connections) >= self.limits.session_connections:
            refusal = Refusal(Reason.TOO_MANY_CONNECTIONS, f"{self.limits.session_connections} are open already")
            self.recorder.refuse(About(Plane.TCP, format_wanted(*wanted)), refusal)
            reset(sock)
            return
        sock.setblocking(False)
        try:
            self.capture(self, sock, wanted)
        except Exception:
            # Our own fault with one connection: it ends, on record, and those behind it are accepted all the same.
            self.recorder.refuse(About(Plane.TCP, format_wanted(*wanted)), Refusal(Reason.INTERNAL, "not served"))
            self.reactor.remove(sock.fileno())
            reset(sock)
            self.reactor.again(self.listeners[0].fileno(), LISTENER)
            raise


def _http_limits(limits: Limits) -> HttpLimits:
    return HttpLimits(
        head_bytes=limits.head_bytes,
        fields=limits.head_fields,
        target_bytes=limits.target_bytes,
        informational=limits.informational_responses,
    )


def format_wanted(host: str, port: int) -> str:
    """`address:port` with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
