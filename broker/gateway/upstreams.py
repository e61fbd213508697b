"""Upstream connections that wait for their next request: per session, never shared across sessions."""

from broker.gateway.dial import Dialled
from broker.gateway.reactor import Reactor
from broker.gateway.streams import Outlet, Stream
from broker.policy.addresses import Network
from broker.policy.authority import Authority
from broker.policy.rule import UpstreamTls

IDLE_SECONDS = 30.0
# As many as a busy client has open at once (a package manager's 16 to 32): each one less is a handshake more, which
# costs forty times what a request does.
PER_AUTHORITY = 32
PER_SESSION = 64

type Pool = str | tuple[str, UpstreamTls, tuple[Network, ...]]
"""The scheme; where a rule says how, or to which addresses, its hosts are reached, with that: they serve no others."""
type Key = tuple[Pool, Authority]


class Upstream:
    """A connected upstream: its stream, what it has not taken yet, and how it was reached."""

    __slots__ = ("address", "outlet", "stream", "used")

    def __init__(self, stream: Stream, dialled: Dialled) -> None:
        self.stream = stream
        self.outlet = Outlet(stream)
        self.address = str(dialled)
        self.used = False  # it has answered before, so a failure may only mean that it was closed meanwhile


class _Idle:
    """One that waits. Any event is its end: an idle upstream has nothing to say."""

    __slots__ = ("_key", "_pool", "deadline", "upstream")

    def __init__(self, pool: "Upstreams", key: Key, upstream: Upstream, deadline: float) -> None:
        self._pool = pool
        self._key = key
        self.upstream = upstream
        self.deadline = deadline

    def on_event(self, events: int) -> None:
        """Data or an end that nobody asked for."""
        if events & ~4:  # more than EPOLLOUT
            self.on_deadline(0)

    def on_deadline(self, _events: int) -> None:
        """Close it."""
        self._pool.discard(self._key, self)


class Upstreams:
    """The pool of one session."""

    __slots__ = ("_count", "_idle", "_reactor")

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._count = 0
        self._idle: dict[Key, list[_Idle]] = {}

    def take(self, pool: Pool, authority: Authority) -> Upstream | None:
        """The one that was used last, if any waits. Its handler must be replaced at once."""
        key = (pool, authority)
        waiting = self._idle.get(key)
        if waiting is None:
            return None
        idle = waiting.pop()
        if not waiting:
            del self._idle[key]
        self._count -= 1
        self._reactor.unwatch(idle)
        return idle.upstream

    def give(self, pool: Pool, authority: Authority, upstream: Upstream) -> None:
        """Keep an upstream whose response is whole and which promised to stay."""
        key = (pool, authority)
        if len(self._idle.get(key, ())) >= PER_AUTHORITY:
            self._close(upstream)
            return
        if self._count >= PER_SESSION:
            self._discard_oldest()
        self._count += 1
        upstream.used = True
        idle = _Idle(self, key, upstream, self._reactor.now + IDLE_SECONDS)
        self._idle.setdefault(key, []).append(idle)
        self._reactor.watch(idle)
        self._reactor.replace(upstream.stream.sock.fileno(), idle.on_event)

    def discard(self, key: Key, idle: _Idle) -> None:
        """Close one that ended or waited long enough."""
        self._reactor.unwatch(idle)
        waiting = self._idle.get(key, [])
        if idle in waiting:
            waiting.remove(idle)
            self._count -= 1
            self._close(idle.upstream)
        if not waiting:
            self._idle.pop(key, None)

    def _discard_oldest(self) -> None:
        """Make room: of any authority, the one that has waited longest."""
        key, (idle, *_) = min(self._idle.items(), key=lambda item: item[1][0].deadline)
        self.discard(key, idle)

    def close(self) -> None:
        """Close all."""
        for key, waiting in list(self._idle.items()):
            for idle in list(waiting):
                self.discard(key, idle)

    def _close(self, upstream: Upstream) -> None:
        self._reactor.remove(upstream.stream.sock.fileno())
        upstream.stream.close()
