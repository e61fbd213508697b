"""The upstream's side of HTTP/2: judged streams on one connection to their authority.

Streams beyond what the upstream takes at once wait here. After its GOAWAY, those that it still serves go on; those that
it has not looked at are handed back, to be sent on another connection (RFC 9113 §6.8).
"""

from collections import deque
from typing import TYPE_CHECKING, Protocol

import h2.events as on
from h2.errors import ErrorCodes

from broker.gateway.h2_exchange import H2Exchange, acknowledge, attempt
from broker.gateway.h2_streams import Frames, Over
from broker.gateway.metering import charged
from broker.gateway.reach import broken_upstream
from broker.gateway.upstreams import Upstream
from broker.policy.authority import Authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.rewrite import format_host
from broker.wire.http2.fields import Field, format_request, parse_trailers, size_of

if TYPE_CHECKING:
    from broker.gateway.session import Session


class Owner(Protocol):
    """Serves the client's side of the exchanges."""

    def interim(self, exchange: H2Exchange, headers: list[Field]) -> None:
        """A response before the final one."""

    def response(self, exchange: H2Exchange, headers: list[Field], *, ended: bool) -> None:
        """The final response's fields; `ended`: there is nothing behind them."""

    def pump_down(self, exchange: H2Exchange) -> None:
        """Data, trailers or the end are there to be sent on."""

    def pump_up(self, exchange: H2Exchange) -> None:
        """The upstream may take more."""

    def drop_up(self, exchange: H2Exchange) -> None:
        """The rest of the request is not wanted."""

    def fail(self, exchange: H2Exchange, refusal: Refusal, code: int = ErrorCodes.INTERNAL_ERROR) -> None:
        """It failed. `code` is what a reset of the client's stream says."""

    def repeat(self, exchange: H2Exchange) -> None:
        """The upstream has not looked at it: send it on another connection."""

    def link_ended(self, link: "UpstreamLink") -> None:
        """The connection takes no further streams."""


class UpstreamLink:
    """One connection to `authority`."""

    def __init__(self, session: "Session", upstream: Upstream, owner: Owner, authority: Authority) -> None:
        self._session = session
        self._owner = owner
        self._authority = authority
        self.address = upstream.address
        self._exchanges: dict[int, H2Exchange] = {}
        self._queue: deque[H2Exchange] = deque()
        self._draining = False
        self._over = Refusal(Reason.UPSTREAM_CLOSED, "the upstream went away as soon as it came")
        self._is_told = False  # what it takes: until its settings have come, one stream is safe to open
        self.last = session.reactor.now  # when it said something
        self.frames = Frames(
            session.reactor,
            upstream.stream,
            client_side=True,
            handle=self._handle,
            ended=self._ended,
            drained=self._drained,
        )

    def start(self) -> None:
        """Say hello. It may be over when this returns."""
        self.frames.start()

    def send(self, exchange: H2Exchange) -> None:
        """Send a judged request, now or when the upstream takes another stream."""
        exchange.link = self
        if self._draining or not self.frames.is_open:
            self._owner.fail(exchange, self._over)
            return
        self._queue.append(exchange)
        self._send_queued()

    def forget(self, exchange: H2Exchange) -> None:
        """The exchange is over for its owner."""
        if exchange in self._queue:
            self._queue.remove(exchange)
        if self._exchanges.pop(exchange.upstream_id, None) is not None:
            acknowledge(self.frames, exchange.upstream_id, exchange.down.drop())
        self._send_queued()
        self._close_if_done()

    def reset(self, exchange: H2Exchange, code: int = ErrorCodes.CANCEL) -> None:
        """Tell the upstream that nobody waits for it any more."""
        if exchange.upstream_id:
            attempt(lambda: self.frames.h2.reset_stream(exchange.upstream_id, code))
            self.frames.flush()

    def release(self) -> None:
        """Close without a word to the owner."""
        self.frames.release()

    def _send_queued(self) -> None:
        h2 = self.frames.h2
        while self._queue and not self._draining and self.frames.is_open:
            if h2.open_outbound_streams >= (h2.remote_settings.max_concurrent_streams if self._is_told else 1):
                return
            self._send_now(self._queue.popleft())

    def _send_now(self, exchange: H2Exchange) -> None:
        h2, up = self.frames.h2, exchange.up
        headers = format_request(exchange.request, host=format_host(self._authority, "https"))
        exchange.about.dialled = self.address
        exchange.awaited_since = self._session.reactor.now
        upstream_id = h2.get_next_available_stream_id()
        bodiless = up.ended and not up.waiting and up.trailers is None
        if not attempt(lambda: h2.send_headers(upstream_id, headers, end_stream=bodiless)):
            self._owner.fail(exchange, Refusal(Reason.UPSTREAM_PROTOCOL, "the upstream takes no further stream"))
            return
        exchange.upstream_id = upstream_id
        exchange.heads_up += size_of(headers)
        self._exchanges[upstream_id] = exchange
        up.finished = bodiless
        self.frames.flush()
        self._owner.pump_up(exchange)

    def _handle(self, event: on.Event) -> None:  # noqa: C901  one arm an event
        self.last = self._session.reactor.now
        exchange = self._exchanges.get(getattr(event, "stream_id", None) or 0)
        match event:
            case on.DataReceived():
                self._data(exchange, event)
            case on.WindowUpdated():
                self._drained()
            case on.RemoteSettingsChanged():
                self._is_told = True
                self.frames.spend()
                self._drained()
                self._send_queued()
            case on.PingReceived() | on.PriorityUpdated() | on.PingAckReceived() | on.UnknownFrameReceived():
                self.frames.spend()
            case on.ConnectionTerminated():
                self._goaway(event.last_stream_id or 0, event.error_code or 0)
            case _ if exchange is None:
                pass
            case on.InformationalResponseReceived():
                self._owner.interim(exchange, list(event.headers or ()))
            case on.ResponseReceived():
                ended = event.stream_ended is not None
                exchange.down.ended = ended
                self._owner.response(exchange, list(event.headers or ()), ended=ended)
            case on.TrailersReceived():
                self._trailers(exchange, list(event.headers or ()))
            case on.StreamEnded() if exchange.down.is_cut:
                refusal = Refusal(Reason.UPSTREAM_PROTOCOL, "the response has another length than it stated")
                self._owner.fail(exchange, refusal)
            case on.StreamEnded():
                exchange.down.ended = True
                self._owner.pump_down(exchange)
            case on.StreamReset():
                self._was_reset(exchange, event.error_code or 0, ours=not event.remote_reset)
            case _:
                pass  # ALTSVC is not passed on

    def _data(self, exchange: H2Exchange | None, event: on.DataReceived) -> None:
        data, controlled = event.data or b"", event.flow_controlled_length or 0
        stream_id = event.stream_id or 0
        acknowledge(self.frames, stream_id, controlled - len(data))  # padding
        if not data:
            self.frames.spend()
        if exchange is None:
            acknowledge(self.frames, stream_id, len(data))
            return
        if not charged(self._session.meter, len(data), upward=False):
            return
        exchange.down.received += len(data)
        if exchange.down.is_over:
            refusal = Refusal(Reason.UPSTREAM_PROTOCOL, "more content than there can be")
            self._owner.fail(exchange, refusal)
            acknowledge(self.frames, stream_id, len(data))
            return
        if data:
            exchange.down.waiting.append(data)
            exchange.down.since = exchange.down.since if len(exchange.down.waiting) > 1 else self.last
        self._owner.pump_down(exchange)

    def _trailers(self, exchange: H2Exchange, headers: list[Field]) -> None:
        if not charged(self._session.meter, size_of(headers), upward=False):
            return
        try:
            trailers = parse_trailers(headers, self._session.http_limits, Reason.UPSTREAM_PROTOCOL)
        except Refusal as refusal:
            self._owner.fail(exchange, refusal)
            return
        exchange.down.trailers = trailers
        exchange.heads_down += size_of(trailers)

    def _was_reset(self, exchange: H2Exchange, code: int, *, ours: bool) -> None:
        if ours:
            self._owner.fail(exchange, Refusal(Reason.UPSTREAM_PROTOCOL, f"HTTP/2: {name_of(code)}"), code)
            return
        if code == ErrorCodes.NO_ERROR and exchange.down.ended:
            exchange.up.finished = True  # RFC 9113 §8.1: the answer is whole, the rest of the request is not wanted
            self._owner.drop_up(exchange)
            return
        refusal = Refusal(Reason.UPSTREAM_CLOSED, f"the upstream reset the stream ({name_of(code)})")
        self._owner.fail(exchange, refusal, code)

    def _goaway(self, last: int, code: int) -> None:
        """No further streams; those above `last` were not looked at."""
        if self._draining:
            self.frames.spend()
            return
        self._draining = True
        self._owner.link_ended(self)
        queued, self._queue = list(self._queue), deque()
        unseen = [one for number, one in self._exchanges.items() if number > last]
        for exchange in unseen:
            del self._exchanges[exchange.upstream_id]
        for exchange in (*unseen, *queued):
            if exchange.repeated or exchange.up.moved:
                said = f"the upstream said GOAWAY ({name_of(code)})"
                self._owner.fail(exchange, Refusal(Reason.UPSTREAM_CLOSED, said))
            else:
                exchange.upstream_id, exchange.up.finished, exchange.repeated = 0, False, True
                self._owner.repeat(exchange)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._draining and not self._exchanges:
            self.frames.close()

    def _drained(self) -> None:
        for exchange in list(self._exchanges.values()):
            self._owner.pump_up(exchange)

    def _ended(self, over: Over) -> None:
        reason = Reason.UPSTREAM_PROTOCOL if over.violation else Reason.UPSTREAM_CLOSED
        refusal = Refusal(reason, f"the upstream's connection: {over.detail}")
        if over.error is not None:
            refusal = broken_upstream(over.error, self._authority)
        self._over = refusal
        self._owner.link_ended(self)
        left = [*self._exchanges.values(), *self._queue]
        self._exchanges.clear()
        self._queue.clear()
        for exchange in left:
            self._owner.fail(exchange, refusal)


def name_of(code: int) -> str:
    """An error code's name (RFC 9113 §7), or its number."""
    try:
        return ErrorCodes(code).name
    except ValueError:
        return str(code)
