"""Frames of one HTTP/2 connection over a stream: hyper-h2 on one side, octets on the other.

Shared by the client's and the upstream's side. Output that was not taken waits; input is not read meanwhile. What a
peer may make us do without moving anything is counted, because each such frame is cheap for it.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.frame_buffer
import h2.settings
from hpack import Encoder
from hyperframe.frame import Frame, GoAwayFrame

from broker.gateway.lingering import Lingering
from broker.gateway.reactor import BROKEN, HANGUP, IN, OUT, READ_COST, Reactor
from broker.gateway.streams import Outlet, Stream
from broker.wire.http2.portions import Portions

PREFACE = 24  # octets that a client says first (RFC 9113 §3.4)
CONCURRENT_STREAMS = 100
WINDOW = 256 * 1024
CONNECTION_WINDOW = 1 << 20
MAX_FRAME = 16384
HEADER_LIST = 64 * 1024
# Frames of one head: the list's limit twice over, for Huffman codes can be longer than what they stand for. hyper-h2
# takes 64, a megabyte that is decoded in one go before its size is looked at.
h2.frame_buffer.CONTINUATION_BACKLOG = 2 * HEADER_LIST // MAX_FRAME
BYTES_A_TURN = 1 << 20
# What may wait for a peer that does not read. Data waits for its window elsewhere, so this is heads and control frames:
# of a hundred streams those could be seventy megabytes.
HELD = 2 << 20
# Resets, pings, settings, priorities, window updates, empty data, refused requests: how many of them a connection has
# in hand, and how many it gets back in a second. What moves data and what ends well earns some too
# (CVE-2023-44487, CVE-2025-8671, CVE-2019-9511 to 9518 and their like).
CREDIT = 500
CREDIT_A_SECOND = 50.0
EARNED = 2
OCTETS_A_CREDIT = 16  # of a piece that its receiver's window cut: less at a time is a dribble
RESET_COST = 2


@dataclass(frozen=True, slots=True)
class Over:
    """Why a connection is over. `violation`: the peer broke the protocol, or one of our limits."""

    detail: str
    violation: bool = False
    error: OSError | None = None


class _PlainEncoder(Encoder):
    """HPACK without Huffman codes, which are optional (RFC 7541 §5.2): hpack's take time by the square of a value's
    length, most of a second for a field of 60 KB.
    """

    def encode(self, headers: Any, huffman: bool = False) -> bytes:
        return super().encode(headers, huffman)


class _Connection(h2.connection.H2Connection):
    """hyper-h2, but a GOAWAY is not the end: what was begun before it is served to its end (RFC 9113 §6.8)."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class Frames:
    """One connection. `handle` gets each event of hyper-h2; `ended` is told once why the connection is over."""

    def __init__(  # noqa: PLR0913
        self,
        reactor: Reactor,
        stream: Stream,
        *,
        client_side: bool,
        handle: Callable[[h2.events.Event], None],
        ended: Callable[[Over], None],
        drained: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self.stream = stream
        self.outlet = Outlet(stream)
        self._handle = handle
        self._ended = ended
        self._drained = drained
        self._open = True
        self._is_deaf = False  # it takes nothing more
        self._is_full = False  # it has taken too little
        self._portions = Portions(0 if client_side else PREFACE)
        self._credit = float(CREDIT)
        self._credited = reactor.now
        # Malformed field lists are ours to judge: a stream is refused for them, not its whole connection.
        config = h2.config.H2Configuration(
            client_side=client_side, header_encoding=None, validate_inbound_headers=False
        )
        self.h2 = _Connection(config)
        self.h2.encoder = _PlainEncoder()
        self.h2.local_settings = h2.settings.Settings(
            client=client_side,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: CONCURRENT_STREAMS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_LIST,
            },
        )

    @property
    def is_open(self) -> bool:
        """Whether it still has its socket."""
        return self._open

    def start(self) -> None:
        """Take over a socket that the reactor watches."""
        self._reactor.replace(self.stream.sock.fileno(), self.on_event)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW)
        self.flush()
        self.on_event(IN)

    def on_event(self, events: int) -> None:
        """The socket is readable, writable or broken."""
        if self._is_full:
            self._violate(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, "it does not read what it asks for")
            return
        if events & OUT and self.outlet.blocked:
            try:
                self.outlet.flush()
            except OSError as error:
                self._end(Over(error.strerror or "reset", error=error))
                return
            if not self.outlet.blocked:
                self._drained()
        if self._open and events & (IN | HANGUP):
            self._read()
        if events & BROKEN:  # what it said before counts
            self._end(Over("the connection broke"))

    def flush(self) -> None:
        """Send what hyper-h2 has to say."""
        data = self.h2.data_to_send()
        if data and self._open and not self._is_deaf and not self._is_full:
            try:
                self.outlet.put((data,))
                if self.outlet.blocked and self.outlet.held > HELD:
                    self._is_full = True  # in a turn of its own, as below
                    self._reactor.again(self.stream.sock.fileno(), IN)
            except OSError:
                # It may have said why before it closed, and that is read first: in a turn of its own, because a
                # handler may be in the middle of something here.
                self._is_deaf = True
                self._reactor.again(self.stream.sock.fileno(), IN | BROKEN)

    def spend(self, amount: int = 1) -> None:
        """A frame that costs the peer nothing; too many end the connection."""
        now = self._reactor.now
        self._credit = min(CREDIT, self._credit + (now - self._credited) * CREDIT_A_SECOND) - amount
        self._credited = now
        if self._credit < 0:
            self._violate(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def earn(self, amount: float = EARNED) -> None:
        """Something useful happened: the peer may send a few more of the others."""
        self._credit = min(CREDIT, self._credit + amount)

    def close(self, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.NO_ERROR) -> None:
        """Say GOAWAY and end."""
        if self._open:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self.h2.close_connection(code)
            self.flush()
            self._end(Over(code.name.lower()))

    def leave(self) -> None:
        """Say GOAWAY, and let what was sent be read before the socket closes."""
        self._part(h2.errors.ErrorCodes.NO_ERROR, Over("finished"))

    def release(self) -> None:
        """Close the socket; nothing is called back any more."""
        if self._open:
            self._open = False
            self._reactor.remove(self.stream.sock.fileno())
            self.stream.close()

    def _read(self) -> None:
        budget = BYTES_A_TURN
        while self._open and not self.outlet.blocked:
            try:
                count = self.stream.receive(self._reactor.view)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(Over(error.strerror or "reset", error=error))
                return
            if count == 0:
                self._end(Over("closed"))
                return
            self._take(bytes(self._reactor.view[:count]))
            budget -= max(count, READ_COST)
            if budget <= 0 and self._open:
                self._reactor.again(self.stream.sock.fileno(), IN)
                return

    def _take(self, data: bytes) -> None:
        for portion in self._portions.of(data):
            try:
                events = self.h2.receive_data(portion)
            except h2.exceptions.ProtocolError as error:
                self._violate(error.error_code, type(error).__name__)
                return
            for event in events:
                if not self._open:
                    return
                self._handle(event)
            self.flush()

    def _violate(self, code: h2.errors.ErrorCodes, detail: str) -> None:
        self._part(code, Over(f"{h2.errors.ErrorCodes(code).name}: {detail}", violation=True))

    def _part(self, code: h2.errors.ErrorCodes, over: Over) -> None:
        if not self._open:
            return
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.h2.close_connection(code)
        self.flush()
        if self._open:
            self._open = False
            Lingering(self._reactor, self.stream)  # closing at once could reset the connection under its last words
            self._ended(over)

    def _end(self, over: Over) -> None:
        if self._open:
            self._open = False
            self._reactor.remove(self.stream.sock.fileno())
            self.stream.close()
            self._ended(over)
