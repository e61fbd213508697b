"""The begin of a captured connection: what the sandbox wanted, which protocol it speaks, which plane serves it."""

import socket
from ipaddress import IPv4Address, ip_address
from typing import assert_never

from broker.audit.records import Plane
from broker.gateway.http import HttpConnection
from broker.gateway.names import StreamNames
from broker.gateway.reactor import HANGUP
from broker.gateway.records import About
from broker.gateway.relay import Tunnel, reset
from broker.gateway.session import Session, format_wanted
from broker.gateway.streams import PlainStream, Stream
from broker.gateway.tls import TlsConnection
from broker.policy.authority import Authority
from broker.policy.decide import Allowed, Denied, Facts, Stage, Verdict
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.rewrite import DEFAULT_PORTS, Scheme
from broker.wire.sniff import Protocol, sniff

DNS_PORT, PROXY_PORT = 53, 3128
GATES = frozenset({"198.19.255.1", "fd77:6963:6b65:7400::1"})  # the bridge's own addresses: netns.bridge
ASKED = 4096  # authorities that a session's addresses were found to mean; a name keeps its address for life
FIRST_BYTES = 16 * 1024
# A client of an authority that no rule allows has nothing to wait for, unless it speaks first and can be told why.
HOPELESS_SECONDS = 0.5


def capture(session: Session, sock: socket.socket, wanted: tuple[str, int]) -> None:
    """Serve one accepted connection."""
    host, port = wanted
    if port == DNS_PORT:
        StreamNames(session.reactor, session, sock, format_wanted(host, port))
        return
    if port == PROXY_PORT and host in GATES:
        session.reactor.add(sock.fileno(), lambda _events: None)
        proxy = HttpConnection(
            session, PlainStream(sock), asked=None, wanted=format_wanted(host, port), take_over=_take_over
        )
        proxy.start()
        return
    if port == 0:
        # TCP has the port, no authority does: nothing can be allowed there (RFC 6335 §6).
        about = About(Plane.TCP, format_wanted(host, port), scheme="tcp")
        session.recorder.refuse(about, Refusal(Reason.BAD_PORT, "port 0 is no destination"))
        reset(sock)
        return
    Captured(session, sock, _asked(session, host, port), format_wanted(host, port)).start()


def _take_over(session: Session, client: Stream, authority: Authority, wanted: str, early: bytes) -> None:
    """What follows an accepted CONNECT is judged as if it had been captured on the way to that authority."""
    sock = client.sock
    if early:
        # Sent before our 200 and read with the CONNECT: put it back in front of what is still to come.
        sock = _Refilled(session, sock, early).far_end
        if session.meter is not None:
            session.meter.count_up(-len(early))  # they are counted when they are read again
        session.reactor.add(sock.fileno(), lambda _events: None)
    Captured(session, sock, authority, wanted).take_over()


class _Refilled:
    """A socket with octets put back: a tunnel into a socket pair, whose far end is served instead."""

    def __init__(self, session: Session, sock: socket.socket, early: bytes) -> None:
        self._session = session
        near, self.far_end = socket.socketpair()
        near.setblocking(False)
        self.far_end.setblocking(False)
        session.reactor.add(near.fileno(), lambda _events: None)
        self._tunnel = Tunnel(session.reactor, sock, near, limits=session.limits, watcher=self, early=early)
        session.remember(self)
        self._tunnel.start()

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it; what is served at the far end has its own record."""
        self._tunnel.end(reason, detail)

    def judge_again(self) -> None:
        """What is served at the far end is judged there."""

    def tunnel_lives(self, _tunnel: Tunnel) -> None:
        """Nothing to record."""

    def tunnel_ended(self, _tunnel: Tunnel, _reason: Reason, _detail: str) -> None:
        """Nothing to record."""
        self._session.forget(self)


def _asked(session: Session, host: str, port: int) -> Authority:
    known = session.asked.get((host, port))
    if known is not None:
        return known
    address = ip_address(host)
    name = session.zone.name_of(address) if isinstance(address, IPv4Address) else None
    if name is None:
        return Authority(address, port)  # not remembered: it may be given to a name later
    found = Authority(name, port)
    if len(session.asked) < ASKED:
        session.asked[host, port] = found
    return found


class Captured:
    """A connection whose protocol is not known yet. `asked`: the name that the address was given to, or the address."""

    __slots__ = ("_asked", "_patient", "_seen", "_session", "_sock", "_wanted", "deadline")

    def __init__(self, session: Session, sock: socket.socket, asked: Authority, wanted: str) -> None:
        self._session = session
        self._sock = sock
        self._asked = asked
        self._wanted = wanted
        self._seen = 0  # events that whoever serves the connection is not told of again
        self._patient = False
        self.deadline = 0.0

    def start(self) -> None:
        """Begin with a new socket that the reactor does not know yet."""
        self._session.reactor.add(self._sock.fileno(), self.on_event)
        self.on_event(0)

    def take_over(self) -> None:
        """Begin with a socket that the reactor watches."""
        self._seen = HANGUP  # maybe
        self._session.reactor.replace(self._sock.fileno(), self.on_event)
        self.on_event(0)

    def on_event(self, events: int) -> None:
        """Look, without taking: whoever serves the connection reads it from its begin."""
        self._seen |= events
        try:
            first = self._sock.recv(FIRST_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            self._await()
            return
        except OSError as error:
            self._gone(error.strerror or "reset")
            return
        protocol = sniff(first)
        if protocol is not None:
            self._serve(protocol, first)
        elif not first or events & HANGUP:
            self._gone("closed before it said anything")
        else:
            self._await()

    def _await(self) -> None:
        """Set the deadline, once: most clients have spoken before we look, and need neither it nor to be remembered."""
        if self.deadline:
            return
        reactor = self._session.reactor
        self.deadline = reactor.now + min(HOPELESS_SECONDS, self._session.limits.silent_seconds)
        reactor.watch(self)
        self._session.remember(self)

    def on_deadline(self, _events: int) -> None:
        """The client is silent. Where servers speak first that is its right, but nobody answers here."""
        more = self._session.limits.silent_seconds - HOPELESS_SECONDS
        if more > 0 and not self._patient and self._is_hopeful():
            self._patient = True
            self.deadline += more
            return
        self._refuse(Refusal(Reason.CLIENT_SILENT, "nothing that tells the protocol was sent"))

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it with a reset and a record."""
        self._refuse(Refusal(reason, detail))

    def judge_again(self) -> None:
        """Nothing was allowed yet."""

    def _is_hopeful(self) -> bool:
        """Whether there is something to wait for: some rule allows this authority."""
        session = self._session
        schemes: tuple[Scheme, ...] = ("https", "http")
        return any(isinstance(session.asking(scheme, self._asked).connection(), Allowed) for scheme in schemes)

    def _decide(self) -> Verdict:
        return self._session.decide(Facts(stage=Stage.CONNECTION, scheme="tcp", authority=self._asked))

    def _serve(self, protocol: Protocol, first: bytes) -> None:
        match protocol:
            case Protocol.TLS:
                self._leave()
                TlsConnection(self._session, self._sock, self._asked, self._wanted).start(first, self._seen)
            case Protocol.HTTP1:
                self._leave()
                stream = PlainStream(self._sock)
                HttpConnection(self._session, stream, asked=self._asked, wanted=self._wanted).start()
            case Protocol.H2_PREFACE:
                self._refuse(Refusal(Reason.UPGRADE_REFUSED, "HTTP/2 without TLS is not served"))
            case Protocol.UNKNOWN:
                expected = self._asked.port == DEFAULT_PORTS["https"]
                reason = Reason.NOT_TLS if expected else Reason.UNKNOWN_PROTOCOL
                self._refuse(Refusal(reason, "neither TLS nor HTTP/1"))
            case never:
                assert_never(never)

    def _leave(self) -> None:
        if self.deadline:
            self._session.reactor.unwatch(self)
            self._session.forget(self)

    def _about(self) -> About:
        return About(Plane.TCP, self._wanted, scheme="tcp", authority=str(self._asked))

    def _refuse(self, refusal: Refusal) -> None:
        self._leave()
        verdict = self._decide()
        # What the policy says about the destination tells more than what the client did not say.
        if isinstance(verdict, Denied) and verdict.reason is not Reason.UNKNOWN_PROTOCOL:
            self._session.recorder.decide(self._about(), verdict)
        else:
            self._session.recorder.refuse(self._about(), refusal)
        self._session.reactor.remove(self._sock.fileno())
        reset(self._sock)

    def _gone(self, detail: str) -> None:
        """The client left without a word: the attempt is on record all the same."""
        verdict = self._decide()
        if isinstance(verdict, Allowed) or verdict.reason is Reason.UNKNOWN_PROTOCOL:
            self._leave()
            self._session.recorder.close(self._about(), Reason.CLIENT_CLOSED, detail, bytes_up=0, bytes_down=0)
            self._session.reactor.remove(self._sock.fileno())
            reset(self._sock)
        else:
            self._refuse(Refusal(Reason.CLIENT_CLOSED, detail))
