"""Dial an allowed authority: resolve, classify all answers, pin, connect to exactly the pinned address, check the peer.

Answers are tried in the resolver's order within one deadline, of which each has an equal share, so that one
that swallows everything does not hide one that works. Each of them was classified before any is dialled.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address

import msgspec

from broker.gateway.links import Links
from broker.gateway.reactor import HANGUP, OUT, Reactor
from broker.gateway.resolve import LOOKUPS_A_SESSION, Resolver
from broker.policy.addresses import Address, Network, judge_answers
from broker.policy.authority import Authority
from broker.policy.limits import Limits
from broker.policy.names import HostName
from broker.policy.reasons import Reason, Refusal

_REASONS = {
    errno.ECONNREFUSED: Reason.CONNECT_REFUSED,
    errno.ETIMEDOUT: Reason.CONNECT_TIMEOUT,
    errno.ENETUNREACH: Reason.UNREACHABLE,
    errno.EHOSTUNREACH: Reason.UNREACHABLE,
}


type Place = tuple[int, str]
"""Address family and address, as socket(2) and connect(2) take them."""


class Dialled(msgspec.Struct, frozen=True, gc=False):
    """A connected, non-blocking socket that the reactor already watches, and the address it is connected to."""

    sock: socket.socket
    address: str
    port: int
    events: int  # what the reactor said of it, beyond that it is connected

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class _Judged(msgspec.Struct, frozen=True, gc=False):
    """What was judged last. The same question gets the same answer: nothing but these values goes into it."""

    links: Links
    answers: tuple[Address, ...]
    opened: tuple[Network, ...]
    places: tuple[Place, ...]


def _place(address: Address) -> Place:
    return (socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6), str(address)


type Done = Callable[[Dialled | Refusal], None]


class Dialler:
    """Dials for one session: the resolver is shared, the number of look-ups at once is not."""

    def __init__(self, reactor: Reactor, resolver: Resolver, links: Callable[[], Links], limits: Limits) -> None:
        self.reactor = reactor
        self._resolver = resolver
        self._links = links
        self.limits = limits
        self._last: _Judged | None = None
        self._turn = asyncio.Semaphore(LOOKUPS_A_SESSION)
        self._tasks: set[asyncio.Task[None]] = set()

    def dial(self, authority: Authority, opened: tuple[Network, ...], done: Done) -> "Dialling":
        """Start dialling; `done` is called once, in a turn of the reactor. `cancel` the result to stop."""
        dialling = Dialling(self.reactor, authority.port, self.limits.connect_seconds, done)
        known = self._resolver.known(authority)
        if known is not None:
            self._judge_and_start(dialling, known, opened)
        else:
            assert isinstance(authority.host, str)
            task = self.reactor.loop.create_task(self._look_up(dialling, authority.host, opened))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return dialling

    def refuses(self, dialled: str, opened: tuple[Network, ...]) -> Refusal | None:
        """Why a rule that opens `opened` would not have dialled the address that something is connected to."""
        links = self._links()
        try:
            judge_answers(
                [ip_address(dialled.rpartition(":")[0].strip("[]"))],
                opened=opened,
                own=links.own,
                on_link=links.on_link,
            )
        except Refusal as refusal:
            return refusal
        return None

    async def _look_up(self, dialling: "Dialling", name: HostName, opened: tuple[Network, ...]) -> None:
        try:
            answers = await self._ask(name)
        except Refusal as refusal:
            failure = refusal
            self.reactor.run(lambda: dialling.finish(failure))
            return
        except Exception as error:  # noqa: BLE001  our own fault: a failure on record, never a connection that hangs
            failure = Refusal(Reason.INTERNAL, f"the look-up broke: {type(error).__name__}")
            self.reactor.run(lambda: dialling.finish(failure))
            return
        self.reactor.run(lambda: self._judge_and_start(dialling, answers, opened))

    async def _ask(self, name: HostName) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout(self.limits.resolve_seconds):
                await self._turn.acquire()
        except TimeoutError as error:
            detail = "this session's other look-ups are still under way"
            raise Refusal(Reason.RESOLVE_TIMEOUT, detail) from error
        return await self._resolver.look_up(name, self._turn.release)

    def _judge_and_start(self, dialling: "Dialling", answers: tuple[Address, ...], opened: tuple[Network, ...]) -> None:
        links = self._links()
        last = self._last
        if last is None or last.links is not links or last.answers != answers or last.opened != opened:
            try:
                judged = judge_answers(answers, opened=opened, own=links.own, on_link=links.on_link)
            except Refusal as refusal:
                dialling.finish(refusal)
                return
            last = self._last = _Judged(links, answers, opened, tuple(map(_place, judged)))
        dialling.start(last.places)


class Dialling:
    """One attempt, over the judged addresses in turn."""

    __slots__ = ("_address", "_addresses", "_done", "_end", "_port", "_reactor", "_seconds", "_sock", "deadline")

    def __init__(self, reactor: Reactor, port: int, seconds: float, done: Done) -> None:
        self._reactor = reactor
        self._port = port
        self._seconds = seconds
        self._done: Done | None = done
        self._addresses: list[Place] = []
        self._address = ""  # the one being tried
        self._sock: socket.socket | None = None
        self._end = 0.0
        self.deadline = 0.0  # of the one being tried

    @property
    def pending(self) -> bool:
        """Whether the outcome is still to come."""
        return self._done is not None

    def start(self, addresses: tuple[Place, ...]) -> None:
        """Connect to the first that answers, within the deadline for all of them together."""
        if self._done is None:
            return
        self._addresses = list(reversed(addresses))
        self._end = self._reactor.now + self._seconds
        self._reactor.watch(self)
        self._next(None)

    def finish(self, outcome: Dialled | Refusal) -> None:
        """Report once."""
        self._reactor.unwatch(self)
        done, self._done = self._done, None
        if done is not None:
            self._reactor.call(done, outcome)

    def abort(self, reason: Reason, detail: str) -> None:
        """Our own fault: report it as a failure."""
        self._drop()
        self.finish(Refusal(reason, detail))

    def cancel(self) -> None:
        """Stop without a report."""
        self._done = None
        self._reactor.unwatch(self)
        self._drop()

    def on_deadline(self, _events: int) -> None:
        """The address that is being tried has had its share of the time."""
        if self._addresses:
            self._next(None)
            return
        self._drop()
        self.finish(Refusal(Reason.CONNECT_TIMEOUT, f"not connected within {self._seconds:g} s"))

    def _next(self, failure: Refusal | None) -> None:
        self._drop()
        if not self._addresses:
            self.finish(failure or Refusal(Reason.UNREACHABLE, "no address to dial"))
            return
        family, address = self._addresses.pop()
        self.deadline = self._reactor.now + (self._end - self._reactor.now) / (len(self._addresses) + 1)
        try:
            self._sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._sock.connect_ex((address, self._port))
        except OSError as error:
            self._next(_failure(error.errno, address))
            return
        if code not in (0, errno.EINPROGRESS):
            self._next(_failure(code, address))
            return
        self._address = address
        self._reactor.add(self._sock.fileno(), self._connected)

    def _connected(self, events: int) -> None:
        address = self._address
        if self._sock is None or not events & (OUT | HANGUP):
            return
        try:
            peer = self._sock.getpeername()
        except OSError as error:  # not connected, and the socket knows why
            code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._next(_failure(code or error.errno, address))
            return
        sock, self._sock = self._sock, None
        if peer[1] != self._port or (peer[0] != address and ip_address(peer[0]) != ip_address(address)):
            # Something on this host redirected the connection: it is not the one that was judged.
            self._reactor.remove(sock.fileno())
            sock.close()
            self.finish(Refusal(Reason.ADDRESS_REFUSED, f"connected to {peer[0]}, not to {address}"))
            return
        self.finish(Dialled(sock, address, self._port, events))

    def _drop(self) -> None:
        if self._sock is not None:
            self._reactor.remove(self._sock.fileno())
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None


def _failure(code: int | None, address: str) -> Refusal:
    reason = _REASONS.get(code or 0, Reason.UNREACHABLE)
    return Refusal(reason, f"{address}: {errno.errorcode.get(code or 0, 'unknown error')}")
