"""Frames of one HTTP/2 connection over a stream: hyper-h2 on one side, octets on the other.

Shared by the client's and the upstream's side. Output that was not taken waits; input is not read meanwhile. What a
peer may make us do without sending a request is counted (`ABUSE`), because each such frame is cheap for it.
"""

import contextlib
from collections.abc import Callable

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from broker.gateway.reactor import BROKEN, HANGUP, IN, OUT, Reactor
from broker.gateway.streams import Outlet, Stream

CONCURRENT_STREAMS = 100
WINDOW = 256 * 1024
MAX_FRAME = 16384
HEADER_LIST = 64 * 1024
BYTES_A_TURN = 1 << 20
# Resets, pings, settings, priorities, empty data: how many a connection may send more than requests it made
# (CVE-2023-44487, CVE-2025-8671, CVE-2019-9511 and their like).
ABUSE = 500


class Frames:
    """One connection. `handle` gets each event of hyper-h2; `ended` is told once why the connection is over."""

    def __init__(  # noqa: PLR0913
        self,
        reactor: Reactor,
        stream: Stream,
        *,
        client_side: bool,
        handle: Callable[[h2.events.Event], None],
        ended: Callable[[str], None],
        drained: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self.stream = stream
        self.outlet = Outlet(stream)
        self._handle = handle
        self._ended = ended
        self._drained = drained
        self._open = True
        self._credit = ABUSE
        config = h2.config.H2Configuration(client_side=client_side, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
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

    def start(self) -> None:
        """Take over a socket that the reactor watches."""
        self._reactor.replace(self.stream.sock.fileno(), self.on_event)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(WINDOW * 4)
        self.flush()
        self.on_event(IN)

    def on_event(self, events: int) -> None:
        """The socket is readable, writable or broken."""
        if events & BROKEN:
            self._end("the connection broke")
            return
        if events & OUT and self.outlet.blocked:
            try:
                self.outlet.flush()
            except OSError as error:
                self._end(error.strerror or "reset")
                return
            if not self.outlet.blocked:
                self._drained()
        if events & (IN | HANGUP):
            self._read()

    def flush(self) -> None:
        """Send what hyper-h2 has to say."""
        data = self.h2.data_to_send()
        if data and self._open:
            try:
                self.outlet.put((data,))
            except OSError as error:
                self._end(error.strerror or "reset")

    def spend(self, amount: int = 1) -> None:
        """A frame that costs the peer nothing; too many end the connection."""
        self._credit -= amount
        if self._credit < 0:
            self.close(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)

    def earn(self) -> None:
        """A request: the peer may send a few more of the others."""
        self._credit = min(ABUSE, self._credit + 4)

    def close(self, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.NO_ERROR) -> None:
        """Say GOAWAY and end."""
        if not self._open:
            return
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.h2.close_connection(code)
        self.flush()
        self._end(code.name.lower())

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
                self._end(error.strerror or "reset")
                return
            if count == 0:
                self._end("closed")
                return
            self._take(bytes(self._reactor.view[:count]))
            budget -= count
            if budget <= 0 and self._open:
                self._reactor.again(self.stream.sock.fileno(), IN)
                return

    def _take(self, data: bytes) -> None:
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self.flush()  # the GOAWAY that says which error
            self._end(f"a protocol error: {type(error).__name__}")
            return
        for event in events:
            if not self._open:
                return
            self._handle(event)
        self.flush()

    def _end(self, detail: str) -> None:
        if self._open:
            self._open = False
            self._reactor.remove(self.stream.sock.fileno())
            self.stream.close()
            self._ended(detail)
