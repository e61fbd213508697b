"""One HTTP/2 request and its response on their way between two connections.

Data is acknowledged to its sender only when the receiver's window has taken it, so what waits here is bounded by the
windows that we grant.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import h2.exceptions

from broker.gateway.h2_streams import EARNED, MAX_FRAME, OCTETS_A_CREDIT, Frames
from broker.gateway.records import About
from broker.policy.decide import Allowed
from broker.wire.http2.fields import Field, Request


class Link(Protocol):
    """The connection to the upstream that an exchange is on."""

    @property
    def frames(self) -> Frames:
        """Its frames."""

    def reset(self, exchange: "H2Exchange", code: int) -> None:
        """Tell the upstream that nobody waits for it any more."""

    def forget(self, exchange: "H2Exchange") -> None:
        """The exchange is over."""


@dataclass(slots=True)
class Way:
    """One direction: data that waits for the receiver's window, then trailers, then the end.

    hyper-h2 compares content-length where DATA ends a stream, not where fields do (RFC 9113 §8.1.1): `is_cut` does.
    """

    waiting: deque[bytes] = field(default_factory=deque)
    trailers: list[Field] | None = None
    ended: bool = False  # the sender has ended
    finished: bool = False  # and the receiver was told
    stated: int | None = None  # octets, by content-length
    received: int = 0
    moved: int = 0
    since: float = 0.0  # when something moved last, or began to wait

    @property
    def is_cut(self) -> bool:
        """Whether the sender, who has ended, had said that there was more, or less."""
        return self.stated is not None and self.stated != self.received

    @property
    def is_over(self) -> bool:
        """Whether the sender has sent more than it had said."""
        return self.stated is not None and self.received > self.stated

    def pump(self, source: Frames, source_id: int, sink: Frames, sink_id: int, now: float) -> None:
        """Send what the window takes, acknowledge it, and end where the sender has."""
        while self.waiting and not sink.outlet.blocked:
            room = min(sink.h2.local_flow_control_window(sink_id), MAX_FRAME, sink.h2.max_outbound_frame_size)
            if room <= 0:
                return
            piece, whole = self._take(room)
            sink.earn(EARNED if whole else len(piece) / OCTETS_A_CREDIT)
            last = self.ended and not self.waiting and self.trailers is None
            sink.h2.send_data(sink_id, piece, end_stream=last)
            sink.flush()
            self.finished = last
            self.moved += len(piece)
            self.since = now
            acknowledge(source, source_id, len(piece))
        if self.ended and not self.waiting and not self.finished:
            self.finished = True
            if self.trailers:
                sink.h2.send_headers(sink_id, self.trailers, end_stream=True)
            else:
                sink.h2.end_stream(sink_id)
            sink.flush()

    def _take(self, room: int) -> tuple[bytes, bool]:
        """As much as fits, over the borders of pieces: else a window that was once cut into slivers stays cut."""
        waiting, pieces = self.waiting, []
        while waiting and room >= len(waiting[0]):
            pieces.append(waiting.popleft())
            room -= len(pieces[-1])
        whole = bool(pieces)
        if waiting and room:
            pieces.append(waiting[0][:room])
            waiting[0] = waiting[0][room:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), whole

    def drop(self) -> int:
        """Forget what waits; how many octets it was, which the sender's connection window still misses."""
        count = sum(map(len, self.waiting))
        self.waiting.clear()
        return count


@dataclass(slots=True)
class H2Exchange:
    """A judged request. `upstream_id` is 0 until it was sent, `status` until a final response has begun."""

    stream_id: int
    about: About
    request: Request
    allowed: Allowed
    up: Way = field(default_factory=Way)
    down: Way = field(default_factory=Way)
    link: Link | None = None
    upstream_id: int = 0
    status: int = 0
    interim: int = 0  # responses before the final one
    repeated: bool = False
    awaited_since: float = 0.0  # a response head
    heads_up: int = 0  # octets of fields that were sent on, trailers included, before compression
    heads_down: int = 0

    @property
    def bytes_up(self) -> int:
        """What the upstream was sent of the request."""
        return self.heads_up + self.up.moved

    @property
    def bytes_down(self) -> int:
        """What the client was sent of the response."""
        return self.heads_down + self.down.moved


def acknowledge(frames: Frames, stream_id: int, count: int) -> None:
    """Open the sender's window again; the stream may be gone by now, its connection not."""
    if count:
        attempt(lambda: frames.h2.acknowledge_received_data(count, stream_id))
        frames.flush()


def attempt(action: Callable[[], None]) -> bool:
    """Do something to a stream that may have been closed meanwhile; False when it was."""
    try:
        action()
    except (h2.exceptions.ProtocolError, KeyError):
        return False
    return True
