"""The name server's sockets: queries in, synthetic answers out, from the address that was asked. Forwards nothing."""

import socket
import struct
from typing import Protocol

from broker.audit.records import Plane
from broker.gateway.reactor import LISTENER, Reactor
from broker.gateway.records import About, Recorder
from broker.policy.limits import Limits
from broker.policy.names import HostName
from broker.policy.reasons import Family, Reason, Refusal
from broker.wire.dns import QUERY_MAX, format_frame, take_frame
from broker.wire.synthetic import SyntheticZone, respond

IP_PKTINFO = 8
ANSWERS_A_TURN = 256
TCP_QUERIES = 64  # a resolver asks a few over one connection; more is a tunnel

type Control = list[tuple[int, int, bytes]]


class Asking(Protocol):
    """What a name server needs of the session that asks it. A seam: the session makes its name servers."""

    zone: SyntheticZone
    recorder: Recorder
    queries: int

    @property
    def limits(self) -> Limits:
        """The policy's limits."""

    def is_reserved(self, name: HostName, /) -> bool:
        """Whether the name does not exist for this session."""

    def remember(self, connection: "StreamNames", /) -> None:
        """Count a connection as open."""

    def forget(self, connection: "StreamNames", /) -> None:
        """Count it no more."""


def reply_control(family: int, control: Control) -> Control:
    """Turn a query's packet information into its answer's: from the address that was asked (ip(7), ipv6(7))."""
    for level, kind, data in control:
        if family == socket.AF_INET and (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            # struct in_pktinfo: interface index, local address, destination address of the header.
            return [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=I", 0) + data[8:12] + bytes(4))]
        if family == socket.AF_INET6 and (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            # struct in6_pktinfo: destination address, interface index. Link-local sources need the interface.
            return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, data)]
    return []


class DatagramNames:
    """One UDP socket of a session's name server."""

    __slots__ = ("_reactor", "_session", "sock")

    def __init__(self, reactor: Reactor, session: Asking, sock: socket.socket) -> None:
        self._reactor = reactor
        self._session = session
        self.sock = sock
        reactor.add(sock.fileno(), self.on_event, LISTENER)

    def on_event(self, _events: int) -> None:
        """Answer what is there, up to a bound a turn."""
        for _ in range(ANSWERS_A_TURN):
            try:
                packet, control, _flags, client = self.sock.recvmsg(QUERY_MAX + 1, 256)
                answer = respond(packet, self._session.zone, reserved=self._session.is_reserved)
                self._session.queries += 1
                if answer is not None:
                    self.sock.sendmsg([answer], reply_control(self.sock.family, control), 0, client)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error for an answer that nobody waits for any more
        self._reactor.again(self.sock.fileno(), LISTENER)

    def close(self) -> None:
        """Stop answering."""
        self._reactor.remove(self.sock.fileno())
        self.sock.close()


class StreamNames:
    """DNS over TCP on port 53 of any address: the same answers, a bounded number a connection (RFC 7766)."""

    __slots__ = ("_answers", "_asked", "_buffer", "_reactor", "_session", "_wanted", "deadline", "sock")

    def __init__(self, reactor: Reactor, session: Asking, sock: socket.socket, wanted: str) -> None:
        self._reactor = reactor
        self._session = session
        self._wanted = wanted
        self.sock = sock
        self._buffer = b""
        self._answers = b""
        self._asked = 0
        self.deadline = reactor.now + session.limits.silent_seconds
        session.remember(self)
        reactor.watch(self)
        reactor.add(sock.fileno(), self.on_event)
        self.on_event(0)

    def on_event(self, _events: int) -> None:
        """Read, answer, write."""
        try:
            while self._flush():
                data = self.sock.recv(QUERY_MAX)
                if not data:
                    self.abort(Reason.CLIENT_CLOSED, "closed before it asked anything")
                    return
                self._buffer += data
                self._answer()
        except BlockingIOError:
            return
        except OSError as error:
            self.abort(Reason.CLIENT_CLOSED, error.strerror or "reset")
        except Refusal as refusal:
            self._asked = 0  # whatever it asked before, this is no resolver: on record
            self.abort(refusal.reason, refusal.detail)

    def on_deadline(self, _events: int) -> None:
        """A resolver that wants more asks over a new connection."""
        self.abort(Reason.CLIENT_SILENT, "nothing was asked")

    def judge_again(self) -> None:
        """A name server has no policy."""

    def abort(self, reason: Reason, detail: str = "") -> None:
        """Close. A connection that has asked nothing is on record like any other that was refused or given up."""
        if not self._asked:
            about = About(Plane.DNS, self._wanted)
            if reason.family is Family.END:
                self._session.recorder.close(about, reason, detail, bytes_up=0, bytes_down=0)
            else:
                self._session.recorder.refuse(about, Refusal(reason, detail))
        self._reactor.unwatch(self)
        self._session.forget(self)
        self._reactor.remove(self.sock.fileno())
        self.sock.close()

    def _answer(self) -> None:
        while (frame := take_frame(self._buffer)) is not None:
            query, length = frame
            self._buffer = self._buffer[length:]
            self._asked += 1
            self._session.queries += 1
            answer = respond(query, self._session.zone, reserved=self._session.is_reserved)
            if answer is None:
                raise Refusal(Reason.BAD_FRAMING, "a response, where the name server is asked")
            if self._asked > TCP_QUERIES:
                raise Refusal(Reason.RATE_LIMITED, f"more than {TCP_QUERIES} queries over one connection")
            self._answers += format_frame(answer)

    def _flush(self) -> bool:
        while self._answers:
            self._answers = self._answers[self.sock.send(self._answers) :]
        return True
