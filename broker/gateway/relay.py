"""Join two streams unseen: the splice plane after its one decision, and WebSockets after theirs.

No stream has a buffer of its own: both directions read into the reactor's one buffer, and only what the other side did
not take is kept, as its own copy, until it does. A side that has nothing more to send is half-closed towards the other;
the tunnel ends when both are, when either breaks, or when nothing moves for too long.
"""

import contextlib
import socket
import struct
from typing import Protocol

from broker.gateway.metering import Meter, metered
from broker.gateway.pipes import FULL_READS, SIZE, SMALL, Pipe
from broker.gateway.reactor import HANGUP, IN, OUT, READ_COST, Reactor
from broker.policy.limits import Limits
from broker.policy.reasons import Reason

BYTES_A_TURN = 1 << 20
LIFE_SECONDS = 15.0  # between looks at a tunnel that is not idle
RESET = struct.pack("ii", 1, 0)


class Joinable(Protocol):
    """What a tunnel is made of: a socket, or TLS that behaves like one (BlockingIOError where it would wait)."""

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: bytes | memoryview, /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...
    def close(self) -> None: ...


class Watcher(Protocol):
    """Who is told of a tunnel's life."""

    def tunnel_lives(self, tunnel: "Tunnel") -> None:
        """Called now and then while it is open."""

    def tunnel_ended(self, tunnel: "Tunnel", reason: Reason, detail: str) -> None:
        """Called once, when both sockets are closed."""


def reset(sock: Joinable) -> None:
    """Close a connection so that its peer sees a reset and not a clean end (SO_LINGER 0, socket(7))."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


class _Direction:
    """One way of a tunnel. What `sink` has not taken yet is in `pending` or in `pipe`, never in both."""

    __slots__ = (
        "begin",
        "blocked",
        "calls",
        "done",
        "exact",
        "full_reads",
        "moved",
        "pending",
        "pipe",
        "sink",
        "source",
        "splices",
    )

    def __init__(self, source: Joinable, sink: Joinable, pending: bytes) -> None:
        self.source = source
        self.sink = sink
        self.pending = pending
        self.blocked = pending != b""  # the sink has to take something before more is read
        self.moved = 0
        self.exact = type(source) is socket.socket  # a short read means that nothing is left; not so with TLS records
        self.done = False  # the source has ended and the sink was told
        self.pipe: Pipe | None = None
        self.splices = self.exact and type(sink) is socket.socket
        self.full_reads = 0
        self.calls = 0  # splices since `begin` bytes had moved
        self.begin = 0


class Tunnel:
    """Two non-blocking sockets that the reactor watches already. `early` was read from the client before."""

    __slots__ = (
        "_client",
        "_down",
        "_half_closed",
        "_last",
        "_limits",
        "_meter",
        "_reactor",
        "_up",
        "_upstream",
        "_watcher",
        "deadline",
    )

    def __init__(  # noqa: PLR0913
        self,
        reactor: Reactor,
        client: Joinable,
        upstream: Joinable,
        *,
        limits: Limits,
        watcher: Watcher,
        meter: Meter | None = None,
        early: bytes = b"",
        late: bytes = b"",
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._upstream = upstream
        self._limits = limits
        self._watcher: Watcher | None = watcher
        self._meter = meter
        self._up = _Direction(client, upstream, early)
        self._down = _Direction(upstream, client, late)
        self._last = reactor.now
        self._half_closed = False
        self.deadline = reactor.now + min(limits.idle_seconds, LIFE_SECONDS)

    @property
    def bytes_up(self) -> int:
        """Payload bytes taken by the upstream so far."""
        return self._up.moved

    @property
    def bytes_down(self) -> int:
        """Payload bytes taken by the client so far."""
        return self._down.moved

    def start(self, *, client: int = IN | HANGUP, upstream: int = IN | HANGUP) -> None:
        """Take both sockets over and move what is there already.

        `client` and `upstream` are the events that nobody has acted upon yet; when in doubt, all of them.
        """
        self._reactor.replace(self._client.fileno(), self._client_event)
        self._reactor.replace(self._upstream.fileno(), self._upstream_event)
        self._reactor.watch(self)
        if client & (IN | HANGUP) or self._up.pending:
            self._pump(self._up, hangup=bool(client & HANGUP))
        if upstream & (IN | HANGUP) or self._down.pending:
            self._pump(self._down, hangup=bool(upstream & HANGUP))

    def end(self, reason: Reason, detail: str = "", *, clean: bool = False) -> None:
        """Close both sides; unless `clean`, with resets, so that nobody takes it for an end of data."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._reactor.unwatch(self)
        self._release_pipe(self._up)
        self._release_pipe(self._down)
        for sock in (self._client, self._upstream):
            self._reactor.forget(sock.fileno())
            if clean:
                sock.close()
            else:
                reset(sock)
        watcher.tunnel_ended(self, reason, detail)

    def on_deadline(self, _events: int) -> None:
        """Nothing moved for too long, or it moved since the deadline was set."""
        idle = self._limits.half_closed_seconds if self._half_closed else self._limits.idle_seconds
        now = self._reactor.now
        if self._last + idle > now:
            self.deadline = min(self._last + idle, now + LIFE_SECONDS)
            if self._watcher is not None:
                self._watcher.tunnel_lives(self)
            return
        stalled = self._up.blocked or self._down.blocked
        self.end(Reason.IDLE_TIMEOUT, "the reader does not take its data" if stalled else f"idle for {idle:g} s")

    def _client_event(self, events: int) -> None:
        if events & OUT and self._down.blocked:
            self._pump(self._down)
        if events & (IN | HANGUP) and self._watcher is not None:
            self._pump(self._up, hangup=bool(events & HANGUP))

    def _upstream_event(self, events: int) -> None:
        if events & OUT and self._up.blocked:
            self._pump(self._up)
        if events & (IN | HANGUP) and self._watcher is not None:
            self._pump(self._down, hangup=bool(events & HANGUP))

    def _pump(self, way: _Direction, *, hangup: bool = True) -> None:
        """Move until one side says EAGAIN. `hangup`: an end may wait behind the data, so a short read is no proof."""
        if way.done or self._watcher is None:
            return
        if not way.blocked:  # else what comes behind it is no movement: only what is taken is
            self._last = self._reactor.now
        try:
            if way.pipe is not None:
                self._splice(way, way.pipe)
            elif not way.pending or self._flush(way):
                self._move(way, hangup=hangup)
        except BlockingIOError:
            return
        except OSError as error:
            broken = Reason.CLIENT_CLOSED if self._breaks_client(way, error) else Reason.UPSTREAM_CLOSED
            self.end(broken, error.strerror or "")

    def _move(self, way: _Direction, *, hangup: bool) -> None:
        view, meter = self._reactor.view, self._meter
        size, budget = len(view), BYTES_A_TURN
        read, send = way.source.recv_into, way.sink.send
        while True:
            count = read(view) if meter is None else metered(meter, read, view, upward=way is self._up)
            if count == 0:
                self._finish(way)
                return
            try:
                sent = send(view[:count])
            except BlockingIOError:
                sent = 0
            way.moved += sent
            if sent < count:
                # EAGAIN in the middle: the rest must outlive the shared buffer.
                way.pending = bytes(view[sent:count])
                way.blocked = True
                return
            if count < size:
                way.full_reads = 0
                if way.exact and not hangup and meter is None:
                    return  # drained: new data or an end raises a new edge
            elif way.splices and self._start_splicing(way):
                return
            budget -= max(count, READ_COST)
            if budget <= 0:
                self._reactor.again(way.source.fileno(), IN | HANGUP)
                return

    def _flush(self, way: _Direction) -> bool:
        sent = way.sink.send(way.pending)
        self._last = self._reactor.now
        way.moved += sent
        way.pending = way.pending[sent:]
        way.blocked = way.pending != b""
        return not way.blocked

    def _start_splicing(self, way: _Direction) -> bool:
        way.full_reads += 1
        if way.full_reads < FULL_READS or self._meter is not None:
            return False
        way.pipe = self._reactor.pipes.take()
        if way.pipe is None:
            return False
        way.calls, way.begin = 0, way.moved
        self._splice(way, way.pipe)
        return True

    def _splice(self, way: _Direction, pipe: Pipe) -> None:
        """Move by pages until one side says EAGAIN (raised), or the source has nothing more for now."""
        source, sink, budget = way.source.fileno(), way.sink.fileno(), BYTES_A_TURN
        while True:
            while pipe.held:
                way.blocked = True
                way.moved += pipe.drain(sink)
                self._last = self._reactor.now
            way.blocked = False
            try:
                count = pipe.fill(source, SIZE)
            except BlockingIOError:
                way.splices = way.moved - way.begin >= SMALL * max(way.calls, 1)
                way.full_reads = 0
                self._release_pipe(way)
                return
            if count == 0:
                self._release_pipe(way)
                self._finish(way)
                return
            way.calls += 1
            budget -= count
            if budget <= 0:
                self._reactor.again(source, IN | HANGUP)
                return

    def _release_pipe(self, way: _Direction) -> None:
        pipe, way.pipe = way.pipe, None
        if pipe is not None:
            self._reactor.pipes.give(pipe)

    def _finish(self, way: _Direction) -> None:
        way.done = True
        if self._up.done and self._down.done:
            self.end(Reason.FINISHED, clean=True)
            return
        self._half_closed = True
        self.deadline = min(self.deadline, self._last + self._limits.half_closed_seconds)
        try:  # noqa: SIM105  `suppress` costs more than the call
            way.sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _breaks_client(self, way: _Direction, error: OSError) -> bool:
        # EPIPE comes from the side that is written to, anything else from the side that was read.
        writing = isinstance(error, BrokenPipeError)
        side = way.sink if writing else way.source
        return side is self._client
