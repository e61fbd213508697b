"""The HTTP/2 plane, for clients that offer nothing else: each stream is a request, judged like any other.

hyper-h2 does the frames (docs/decisions/0005-http2.md). All streams of a connection name the authority that it was
opened for; any other is answered 421. They share one upstream connection, which is reached for the first allowed one.
"""

from typing import TYPE_CHECKING

import h2.errors
import h2.events as on

from broker.audit.records import Plane
from broker.gateway.h2_exchange import H2Exchange, acknowledge, attempt
from broker.gateway.h2_streams import Frames
from broker.gateway.reach import Reaching
from broker.gateway.records import About
from broker.gateway.requests import judged_question
from broker.gateway.tls_streams import TlsStream
from broker.gateway.upstreams import Upstream
from broker.policy.authority import Authority, parse_authority
from broker.policy.decide import Allowed, Denied, Facts, Stage
from broker.policy.grants import Spend
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.rewrite import format_host
from broker.wire.http2.fields import (
    Request,
    format_request,
    format_response,
    parse_request,
    parse_response,
    parse_trailers,
)
from broker.wire.problem import problem

if TYPE_CHECKING:
    from broker.gateway.session import Session

CHECK_SECONDS = 1.0
ALPN = ("h2",)


class H2Connection:
    """One client connection whose handshake is done. `refused`: every request is answered with this denial."""

    def __init__(
        self, session: "Session", client: TlsStream, *, asked: Authority, wanted: str, refused: Denied | None
    ) -> None:
        self._session = session
        self._asked = asked
        self._wanted = wanted
        self._refused = refused
        self._client = Frames(
            session.reactor,
            client,
            client_side=False,
            handle=self._from_client,
            ended=self._client_ended,
            drained=self._client_drained,
        )
        self._upstream: Frames | None = None
        self._upstream_address = ""
        self._reaching: Reaching | None = None
        self._exchanges: dict[int, H2Exchange] = {}
        self._by_upstream: dict[int, H2Exchange] = {}
        self._has_paid = False
        self._last = session.reactor.now
        self.deadline = self._last + CHECK_SECONDS

    def start(self) -> None:
        """Begin to serve."""
        self._session.remember(self)
        self._session.reactor.watch(self)
        self._client.start()

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End every stream on record, and the connection."""
        self._end(reason, detail)
        self._client.close()

    def judge_again(self) -> None:
        """End the streams that the policy does not allow any more."""
        for exchange in list(self._exchanges.values()):
            verdict = self._session.decide(self._facts(exchange.request, self._asked))
            if isinstance(verdict, Denied):
                self._reset(exchange, Reason.POLICY_CHANGED, verdict.detail)

    def on_deadline(self, _events: int) -> None:
        """Look at whatever is awaited."""
        now, limits = self._session.reactor.now, self._session.limits
        self.deadline = now + CHECK_SECONDS
        self._client.earn()
        for exchange in list(self._exchanges.values()):
            awaited = exchange.upstream_id and not exchange.status and exchange.up.ended
            if awaited and now - exchange.awaited_since >= limits.upstream_head_seconds:
                self._fail(exchange, Refusal(Reason.UPSTREAM_TIMEOUT, "no response in time"))
        if now - self._last >= limits.idle_seconds:
            self.abort(Reason.IDLE_TIMEOUT, f"nothing moved for {limits.idle_seconds:g} s")

    # the client's side

    def _from_client(self, event: on.Event) -> None:
        self._last = self._session.reactor.now
        match event:
            case on.RequestReceived():
                self._client.earn()
                self._request(event.stream_id or 0, list(event.headers or ()), ended=event.stream_ended is not None)
            case on.DataReceived():
                self._data_up(event.stream_id or 0, event.data or b"", event.flow_controlled_length or 0)
            case on.TrailersReceived():
                self._trailers_up(event.stream_id or 0, list(event.headers or ()))
            case on.StreamEnded():
                self._ended_up(event.stream_id or 0)
            case on.StreamReset():
                self._client.spend(4)
                self._client_reset(event.stream_id or 0)
            case on.WindowUpdated():
                self._client_drained()
            case on.ConnectionTerminated():
                self._end(Reason.CLIENT_CLOSED, "the client said GOAWAY")
                self._client.close()
            case on.PingReceived() | on.RemoteSettingsChanged() | on.PriorityUpdated():
                self._client.spend()
            case _:
                pass

    def _request(self, stream_id: int, headers: list[tuple[bytes, bytes]], *, ended: bool) -> None:
        about = About(Plane.H2, self._wanted, scheme="https", authority=str(self._asked))
        about.started = self._session.reactor.now
        try:
            request = parse_request(headers, self._session.http_limits)
            about.method, about.path = request.method, request.path.decode("ascii")
            authority = parse_authority(request.authority, default_port=443)
            about.authority = str(authority)
            if authority != self._asked:
                detail = f":authority names {authority}, but the connection was opened for {self._asked}"
                raise Refusal(Reason.NAME_MISMATCH, detail)
            question = judged_question(self._facts(request, authority), request.path, request.fields)
        except Refusal as refusal:
            self._deny(stream_id, about, Denied(refusal.reason, None, refusal.detail))
            return
        decided = self._refused or self._session.decide(question.facts)
        cost = (Spend.REQUEST,) if self._has_paid else (Spend.CONNECTION, Spend.REQUEST)
        verdict = self._session.settle(about, decided, *cost)
        if isinstance(verdict, Denied):
            self._answer(stream_id, about, verdict.reason, verdict.detail)
            return
        self._has_paid = True
        exchange = self._exchanges[stream_id] = H2Exchange(stream_id, about, request)
        exchange.up.ended = ended
        self._reach(exchange, verdict)

    def _data_up(self, stream_id: int, data: bytes, controlled: int) -> None:
        exchange = self._exchanges.get(stream_id)
        acknowledge(self._client, stream_id, controlled - len(data))
        if exchange is None:
            acknowledge(self._client, stream_id, len(data))
            return
        if not data:
            self._client.spend()
        meter = self._session.meter
        if meter is not None:
            if meter.room_up < len(data):
                meter.exhausted()
                return
            meter.count_up(len(data))
        exchange.up.waiting.append(data)
        self._pump_up(exchange)

    def _trailers_up(self, stream_id: int, headers: list[tuple[bytes, bytes]]) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is None:
            return
        try:
            exchange.up.trailers = parse_trailers(headers, self._session.http_limits, Reason.BAD_REQUEST)
        except Refusal as refusal:
            self._reset(exchange, refusal.reason, refusal.detail)

    def _ended_up(self, stream_id: int) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is not None:
            exchange.up.ended = True
            exchange.awaited_since = self._session.reactor.now
            self._pump_up(exchange)

    def _client_reset(self, stream_id: int) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is not None:
            self._finish(exchange, Reason.CLIENT_CLOSED, "the client reset the stream")
            self._reset_upstream(exchange)

    def _client_drained(self) -> None:
        for exchange in list(self._exchanges.values()):
            self._pump_down(exchange)

    def _client_ended(self, detail: str) -> None:
        self._end(Reason.CLIENT_CLOSED, detail)

    # the upstream's side

    def _reach(self, exchange: H2Exchange, allowed: Allowed) -> None:
        if self._upstream is not None:
            self._send(exchange)
        elif self._reaching is None:
            self._reaching = reaching = Reaching(
                self._session.dialler,
                self._session.inspector,
                scheme="https",
                authority=self._asked,
                seconds=self._session.limits.connect_seconds,
                done=self._reached,
                alpn=ALPN,
            )
            reaching.start(allowed.addresses)

    def _reached(self, outcome: Upstream | Refusal) -> None:
        self._reaching = None
        if isinstance(outcome, Refusal):
            for exchange in list(self._exchanges.values()):
                self._fail(exchange, outcome)
            return
        self._upstream_address = outcome.address
        self._upstream = Frames(
            self._session.reactor,
            outcome.stream,
            client_side=True,
            handle=self._from_upstream,
            ended=self._upstream_ended,
            drained=self._upstream_drained,
        )
        self._upstream.start()
        for exchange in list(self._exchanges.values()):
            self._send(exchange)

    def _send(self, exchange: H2Exchange) -> None:
        upstream = self._upstream
        if upstream is None or exchange.upstream_id:
            return
        headers = format_request(exchange.request, host=format_host(self._asked, "https"))
        exchange.upstream_id = upstream_id = upstream.h2.get_next_available_stream_id()
        exchange.about.dialled = self._upstream_address
        exchange.awaited_since = self._session.reactor.now
        bodiless = exchange.up.ended and not exchange.up.waiting and exchange.up.trailers is None
        self._by_upstream[upstream_id] = exchange
        if not attempt(lambda: upstream.h2.send_headers(upstream_id, headers, end_stream=bodiless)):
            self._fail(exchange, Refusal(Reason.UPSTREAM_PROTOCOL, "the upstream takes no further stream"))
            return
        exchange.up.finished = bodiless
        upstream.flush()
        self._pump_up(exchange)

    def _from_upstream(self, event: on.Event) -> None:
        self._last = self._session.reactor.now
        exchange = self._by_upstream.get(getattr(event, "stream_id", None) or 0)
        match event:
            case on.ResponseReceived() if exchange is not None:
                self._response(exchange, list(event.headers or ()))
            case on.DataReceived():
                self._data_down(exchange, event.stream_id or 0, event.data or b"", event.flow_controlled_length or 0)
            case on.TrailersReceived() if exchange is not None:
                self._trailers_down(exchange, list(event.headers or ()))
            case on.StreamEnded() if exchange is not None:
                exchange.down.ended = True
                self._pump_down(exchange)
            case on.StreamReset() if exchange is not None:
                self._fail(exchange, Refusal(Reason.UPSTREAM_CLOSED, "the upstream reset the stream"))
            case on.WindowUpdated() | on.RemoteSettingsChanged():
                self._upstream_drained()
            case on.ConnectionTerminated():
                self._upstream_ended("the upstream said GOAWAY")
            case _:
                pass  # interim responses and ALTSVC are not passed on

    def _response(self, exchange: H2Exchange, headers: list[tuple[bytes, bytes]]) -> None:
        try:
            response = parse_response(headers, self._session.http_limits)
        except Refusal as refusal:
            self._fail(exchange, refusal)
            return
        exchange.status = response.status
        if attempt(lambda: self._client.h2.send_headers(exchange.stream_id, format_response(response))):
            self._client.flush()

    def _data_down(self, exchange: H2Exchange | None, upstream_id: int, data: bytes, controlled: int) -> None:
        upstream = self._upstream
        if upstream is None:
            return
        acknowledge(upstream, upstream_id, controlled - len(data))
        if exchange is None:
            acknowledge(upstream, upstream_id, len(data))
            return
        meter = self._session.meter
        if meter is not None:
            if meter.room_down < len(data):
                meter.exhausted()
                return
            meter.count_down(len(data))
        exchange.down.waiting.append(data)
        self._pump_down(exchange)

    def _trailers_down(self, exchange: H2Exchange, headers: list[tuple[bytes, bytes]]) -> None:
        try:
            exchange.down.trailers = parse_trailers(headers, self._session.http_limits, Reason.UPSTREAM_PROTOCOL)
        except Refusal as refusal:
            self._fail(exchange, refusal)

    def _upstream_drained(self) -> None:
        for exchange in list(self._exchanges.values()):
            self._pump_up(exchange)

    def _upstream_ended(self, detail: str) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.release()
        for exchange in list(self._by_upstream.values()):
            self._fail(exchange, Refusal(Reason.UPSTREAM_CLOSED, detail))

    # both

    def _pump_up(self, exchange: H2Exchange) -> None:
        upstream = self._upstream
        if upstream is not None and exchange.upstream_id and not exchange.up.finished:
            attempt(lambda: exchange.up.pump(self._client, exchange.stream_id, upstream, exchange.upstream_id))

    def _pump_down(self, exchange: H2Exchange) -> None:
        upstream = self._upstream
        if upstream is None or not exchange.status:
            return
        attempt(lambda: exchange.down.pump(upstream, exchange.upstream_id, self._client, exchange.stream_id))
        if exchange.down.finished:
            self._finish(exchange, Reason.FINISHED, "")
            if not exchange.up.finished:
                self._reset_upstream(exchange)
                attempt(lambda: self._client.h2.reset_stream(exchange.stream_id, h2.errors.ErrorCodes.NO_ERROR))
                self._client.flush()

    def _facts(self, request: Request, authority: Authority) -> Facts:
        path, mark, query = request.path.decode("ascii").partition("?")
        return Facts(
            stage=Stage.REQUEST,
            scheme="https",
            authority=authority,
            method=request.method,
            path=path,
            query=query if mark else None,
        )

    def _deny(self, stream_id: int, about: About, denied: Denied) -> None:
        self._session.settle(about, denied)
        self._answer(stream_id, about, denied.reason, denied.detail)

    def _answer(self, stream_id: int, about: About, reason: Reason, detail: str) -> None:
        self._session.flush()
        body = problem(
            reason,
            detail=detail,
            rule=about.rule or None,
            reachable=self._session.reachable,
            record=about.record or None,
        )
        headers = [
            (b":status", str(reason.status or 403).encode("ascii")),
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode("ascii")),
            (b"cache-control", b"no-store"),
        ]
        frames = self._client
        bodiless = about.method == "HEAD"
        if attempt(lambda: frames.h2.send_headers(stream_id, headers, end_stream=bodiless)) and not bodiless:
            attempt(lambda: frames.h2.send_data(stream_id, body, end_stream=True))
        # RFC 9113 §8.1: a whole answer to half a request ends with a reset that is no error.
        attempt(lambda: frames.h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR))
        frames.flush()

    def _fail(self, exchange: H2Exchange, refusal: Refusal) -> None:
        """The upstream failed: an answer if none has begun, else a reset, so that nobody takes it for the end."""
        if exchange.status:
            self._reset(exchange, refusal.reason, refusal.detail)
            return
        self._forget(exchange)
        self._session.recorder.refuse(exchange.about, refusal)
        self._reset_upstream(exchange)
        self._answer(exchange.stream_id, exchange.about, refusal.reason, refusal.detail)

    def _reset(self, exchange: H2Exchange, reason: Reason, detail: str) -> None:
        self._finish(exchange, reason, detail)
        self._reset_upstream(exchange)
        attempt(lambda: self._client.h2.reset_stream(exchange.stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR))
        self._client.flush()

    def _reset_upstream(self, exchange: H2Exchange) -> None:
        upstream = self._upstream
        if upstream is not None and exchange.upstream_id:
            attempt(lambda: upstream.h2.reset_stream(exchange.upstream_id, h2.errors.ErrorCodes.CANCEL))
            upstream.flush()

    def _forget(self, exchange: H2Exchange) -> None:
        self._exchanges.pop(exchange.stream_id, None)
        self._by_upstream.pop(exchange.upstream_id, None)

    def _finish(self, exchange: H2Exchange, reason: Reason, detail: str) -> None:
        self._forget(exchange)
        self._session.recorder.close(
            exchange.about,
            reason,
            detail,
            bytes_up=exchange.up.moved,
            bytes_down=exchange.down.moved,
            status=exchange.status,
        )

    def _end(self, reason: Reason, detail: str) -> None:
        self._session.reactor.unwatch(self)
        self._session.forget(self)
        if self._reaching is not None:
            self._reaching.cancel()
            self._reaching = None
        for exchange in list(self._exchanges.values()):
            self._finish(exchange, reason, detail)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.release()
