"""The HTTP/2 plane, for clients that offer nothing else: each stream is a request, judged like any other.

hyper-h2 does the frames (docs/decisions/0005-http2.md). All streams of a connection name the authority that it was
opened for; any other is answered 421. They share one upstream connection (`h2_shared`).
"""

from typing import TYPE_CHECKING

import h2.events as on
from h2.errors import ErrorCodes

from broker.audit.records import Plane
from broker.gateway.h2_exchange import H2Exchange, acknowledge, attempt
from broker.gateway.h2_shared import SharedUpstream
from broker.gateway.h2_streams import RESET_COST, Frames, Over
from broker.gateway.h2_upstream import UpstreamLink, name_of
from broker.gateway.metering import charged
from broker.gateway.records import About
from broker.gateway.requests import judged_question
from broker.gateway.tls_streams import TlsStream
from broker.policy.authority import Authority, parse_authority
from broker.policy.decide import Denied
from broker.policy.facts import Facts, Stage
from broker.policy.grants import Spend
from broker.policy.reasons import Reason, Refusal
from broker.wire.http2.answers import format_answer, is_grpc
from broker.wire.http2.fields import (
    Field,
    Request,
    format_response,
    parse_request,
    parse_response,
    parse_trailers,
    size_of,
)

if TYPE_CHECKING:
    from broker.gateway.session import Session

CHECK_SECONDS = 1.0


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
            handle=self._handle,
            ended=self._client_ended,
            drained=self._drained,
        )
        self._upstream = SharedUpstream(session, asked, self, self._unsent)
        self._exchanges: dict[int, H2Exchange] = {}
        self._has_paid = False
        self._is_leaving = False  # the client said GOAWAY
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
            facts = self._facts(exchange.request, self._asked)
            verdict = self._session.decide_again(facts, exchange.allowed, exchange.about.dialled)
            if isinstance(verdict, Denied):
                self._reset(exchange, Reason.POLICY_CHANGED, verdict.detail)

    def on_deadline(self, _events: int) -> None:
        """Look at whatever is awaited."""
        now, limits = self._session.reactor.now, self._session.limits
        self.deadline = now + CHECK_SECONDS
        for exchange in list(self._exchanges.values()):
            recorder = self._session.recorder
            recorder.progress(exchange.about, bytes_up=exchange.bytes_up, bytes_down=exchange.bytes_down)
            awaited = exchange.upstream_id and not exchange.status and exchange.up.ended
            if awaited and now - exchange.awaited_since >= limits.upstream_head_seconds:
                self.fail(exchange, Refusal(Reason.UPSTREAM_TIMEOUT, "no response in time"))
            elif exchange.down.waiting and now - exchange.down.since >= limits.stalled_write_seconds:
                self._reset(exchange, Reason.IDLE_TIMEOUT, "the client does not take its response")
        if now - max(self._last, self._upstream.last) >= limits.idle_seconds:
            self.abort(Reason.IDLE_TIMEOUT, f"nothing moved for {limits.idle_seconds:g} s")

    # the client's side

    def _handle(self, event: on.Event) -> None:
        self._last = self._session.reactor.now
        match event:
            case on.RequestReceived():
                self._request(event.stream_id or 0, list(event.headers or ()), ended=event.stream_ended is not None)
            case on.DataReceived():
                self._data_up(event.stream_id or 0, event.data or b"", event.flow_controlled_length or 0)
            case on.TrailersReceived():
                self._trailers_up(event.stream_id or 0, list(event.headers or ()))
            case on.StreamEnded():
                self._ended_up(event.stream_id or 0)
            case on.StreamReset():
                self._client.spend(RESET_COST)
                self._client_reset(event.stream_id or 0, event.error_code or 0, ours=not event.remote_reset)
            case on.WindowUpdated():
                self._client.spend()
                self._drained()
            case on.ConnectionTerminated():
                self._client.spend()
                self._is_leaving = True
                self._leave_if_done()
            case on.RemoteSettingsChanged():
                self._client.spend()
                self._drained()  # its windows may be larger now
            case on.PingReceived() | on.PingAckReceived() | on.PriorityUpdated() | on.UnknownFrameReceived():
                self._client.spend()
            case _:
                pass

    def _request(self, stream_id: int, headers: list[Field], *, ended: bool) -> None:
        about = About(Plane.H2, self._wanted, scheme="https", authority=str(self._asked))
        about.started = self._session.reactor.now
        try:
            request = parse_request(headers, self._session.http_limits)
            if ended and request.length:
                raise Refusal(Reason.BAD_FRAMING, "a content-length and no content")
        except Refusal as refusal:
            self._session.settle(about, Denied(refusal.reason, None, refusal.detail))
            # RFC 9113 §8.1.1: malformed is a stream error; an answer may come before it.
            self._answer(stream_id, about, refusal, code=ErrorCodes.PROTOCOL_ERROR)
            return
        about.method, about.path = request.method, request.path.decode("ascii")
        grpc = is_grpc(request.fields)
        try:
            facts = self._judged(about, request)
        except Refusal as refusal:
            self._session.settle(about, Denied(refusal.reason, None, refusal.detail))
            self._answer(stream_id, about, refusal, grpc=grpc)
            return
        decided = self._refused or self._session.decide(facts)
        cost = (Spend.REQUEST,) if self._has_paid else (Spend.CONNECTION, Spend.REQUEST)
        verdict = self._session.settle(about, decided, *cost)
        if isinstance(verdict, Denied):
            self._answer(stream_id, about, Refusal(verdict.reason, verdict.detail), grpc=grpc)
            return
        self._has_paid = True
        exchange = self._exchanges[stream_id] = H2Exchange(stream_id, about, request, verdict)
        exchange.up.ended, exchange.up.stated = ended, request.length
        if charged(self._session.meter, size_of(headers), upward=True):
            self._upstream.send(exchange)

    def _judged(self, about: About, request: Request) -> Facts:
        authority = parse_authority(request.authority, default_port=443)
        about.authority = str(authority)
        if authority != self._asked:
            detail = f":authority names {authority}, but the connection was opened for {self._asked}"
            raise Refusal(Reason.NAME_MISMATCH, detail)
        return judged_question(self._facts(request, authority), request.path, request.fields).facts

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

    def _data_up(self, stream_id: int, data: bytes, controlled: int) -> None:
        exchange = self._exchanges.get(stream_id)
        acknowledge(self._client, stream_id, controlled - len(data))  # padding
        if not data:
            self._client.spend()
        if exchange is None or exchange.up.finished:
            acknowledge(self._client, stream_id, len(data))
            return
        if not charged(self._session.meter, len(data), upward=True):
            return
        if data:
            exchange.up.waiting.append(data)
            exchange.up.received += len(data)
        self.pump_up(exchange)

    def _trailers_up(self, stream_id: int, headers: list[Field]) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is None or not charged(self._session.meter, size_of(headers), upward=True):
            return
        try:
            trailers = parse_trailers(headers, self._session.http_limits, Reason.BAD_REQUEST)
        except Refusal as refusal:
            self._reset(exchange, refusal.reason, refusal.detail, ErrorCodes.PROTOCOL_ERROR)
            return
        exchange.up.trailers = trailers
        exchange.heads_up += size_of(trailers)

    def _ended_up(self, stream_id: int) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is not None and exchange.up.is_cut and not exchange.up.finished:
            detail = "the request has another length than it stated"
            self._reset(exchange, Reason.BAD_FRAMING, detail, ErrorCodes.PROTOCOL_ERROR)
        elif exchange is not None:
            exchange.up.ended = True
            exchange.awaited_since = self._session.reactor.now
            self.pump_up(exchange)

    def _client_reset(self, stream_id: int, code: int, *, ours: bool) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is None:
            return
        if ours:
            self._finish(exchange, Reason.BAD_FRAMING, f"HTTP/2: {name_of(code)}", code)
        else:
            self._finish(exchange, Reason.CLIENT_CLOSED, f"the client reset the stream ({name_of(code)})", code)

    def _drained(self) -> None:
        for exchange in list(self._exchanges.values()):
            self.pump_down(exchange)
        self._leave_if_done()

    def _client_ended(self, over: Over) -> None:
        if over.violation:
            about = About(Plane.H2, self._wanted, scheme="https", authority=str(self._asked))
            self._session.recorder.refuse(about, Refusal(Reason.BAD_FRAMING, f"HTTP/2: {over.detail}"))
        self._end(Reason.CLIENT_CLOSED, over.detail)

    # the upstream's side; see `h2_upstream.Owner`

    def _unsent(self) -> list[H2Exchange]:
        return [one for one in self._exchanges.values() if one.link is None]

    def link_ended(self, link: UpstreamLink) -> None:
        self._upstream.link_ended(link)

    def repeat(self, exchange: H2Exchange) -> None:
        exchange.link = None
        self._upstream.send(exchange)

    def interim(self, exchange: H2Exchange, headers: list[Field]) -> None:
        exchange.interim += 1
        if exchange.interim > self._session.http_limits.informational:
            self.fail(exchange, Refusal(Reason.UPSTREAM_PROTOCOL, "too many interim responses"))
            return
        if not charged(self._session.meter, size_of(headers), upward=False):
            return
        try:
            response = parse_response(headers, self._session.http_limits)
        except Refusal as refusal:
            self.fail(exchange, refusal)
            return
        fields = format_response(response)
        if attempt(lambda: self._client.h2.send_headers(exchange.stream_id, fields)):
            exchange.heads_down += size_of(fields)
            self._client.flush()

    def response(self, exchange: H2Exchange, headers: list[Field], *, ended: bool) -> None:
        if not charged(self._session.meter, size_of(headers), upward=False):
            return
        try:
            response = parse_response(headers, self._session.http_limits)
            # Where content cannot be, a length is that of another response (RFC 9110 §6.4.1).
            bodiless = exchange.request.method == "HEAD" or response.status in {204, 304}
            exchange.down.stated = 0 if bodiless else response.length
            if ended and exchange.down.is_cut:
                raise Refusal(Reason.UPSTREAM_PROTOCOL, "a content-length and no content")
        except Refusal as refusal:
            self.fail(exchange, refusal)
            return
        exchange.status = response.status
        fields = format_response(response)
        # The end must come with the fields where it did: gRPC's "trailers-only" is read from that.
        if attempt(lambda: self._client.h2.send_headers(exchange.stream_id, fields, end_stream=ended)):
            exchange.down.finished = ended
            exchange.heads_down += size_of(fields)
            self._client.flush()
            self.pump_down(exchange)

    def pump_up(self, exchange: H2Exchange) -> None:
        link = exchange.link
        if link is None or not exchange.upstream_id or exchange.up.finished:
            return
        now = self._session.reactor.now
        attempt(lambda: exchange.up.pump(self._client, exchange.stream_id, link.frames, exchange.upstream_id, now))

    def pump_down(self, exchange: H2Exchange) -> None:
        link = exchange.link
        if link is None or not exchange.status:
            return
        now = self._session.reactor.now
        if not exchange.down.finished and not attempt(
            lambda: exchange.down.pump(link.frames, exchange.upstream_id, self._client, exchange.stream_id, now)
        ):
            self._reset(exchange, Reason.UPSTREAM_PROTOCOL, "the response cannot be passed on")
            return
        if exchange.down.finished:
            self._client.earn()
            whole = exchange.up.finished
            self._finish(exchange, Reason.FINISHED, "")
            if not whole:  # RFC 9113 §8.1: a whole answer to half a request ends with a reset that is no error
                attempt(lambda: self._client.h2.reset_stream(exchange.stream_id, ErrorCodes.NO_ERROR))
                self._client.flush()

    def drop_up(self, exchange: H2Exchange) -> None:
        acknowledge(self._client, exchange.stream_id, exchange.up.drop())

    def fail(self, exchange: H2Exchange, refusal: Refusal, code: int = ErrorCodes.INTERNAL_ERROR) -> None:
        """An answer if none has begun, else a reset, so that nobody takes it for the end."""
        if exchange.status:
            self._reset(exchange, refusal.reason, refusal.detail, code or ErrorCodes.INTERNAL_ERROR)
            return
        moved = {"bytes_up": exchange.bytes_up, "bytes_down": exchange.bytes_down}
        self._session.recorder.refuse(exchange.about, refusal, **moved)
        self._forget(exchange)
        if code == ErrorCodes.REFUSED_STREAM:  # the client may send it again by itself (RFC 9113 §8.7)
            attempt(lambda: self._client.h2.reset_stream(exchange.stream_id, code))
            self._client.flush()
        else:
            self._answer(exchange.stream_id, exchange.about, refusal, grpc=is_grpc(exchange.request.fields))
        self._leave_if_done()

    # ends

    def _answer(
        self, stream_id: int, about: About, refusal: Refusal, *, grpc: bool = False, code: int = ErrorCodes.NO_ERROR
    ) -> None:
        self._client.spend()
        self._session.flush()
        headers, body = format_answer(
            refusal.reason,
            detail=refusal.detail,
            rule=about.rule or None,
            reachable=self._session.reachable,
            record=about.record or None,
            grpc=grpc,
        )
        frames = self._client.h2
        body = b"" if about.method == "HEAD" else body
        final = code == ErrorCodes.NO_ERROR  # else the stream must still be open for its error
        if attempt(lambda: frames.send_headers(stream_id, headers, end_stream=final and not body)) and body:
            attempt(lambda: frames.send_data(stream_id, body, end_stream=final))
        # RFC 9113 §8.1: where the request has not ended, the client need not send the rest.
        attempt(lambda: frames.reset_stream(stream_id, code))
        self._client.flush()

    def _reset(self, exchange: H2Exchange, reason: Reason, detail: str, code: int = ErrorCodes.INTERNAL_ERROR) -> None:
        self._finish(exchange, reason, detail)
        attempt(lambda: self._client.h2.reset_stream(exchange.stream_id, code))
        self._client.flush()

    def _finish(self, exchange: H2Exchange, reason: Reason, detail: str, code: int = ErrorCodes.CANCEL) -> None:
        """Put an exchange's end on record; what the upstream still sends for it is not wanted."""
        self._session.recorder.close(
            exchange.about,
            reason,
            detail,
            bytes_up=exchange.bytes_up,
            bytes_down=exchange.bytes_down,
            status=exchange.status,
        )
        self._forget(exchange, code)
        self._leave_if_done()

    def _forget(self, exchange: H2Exchange, code: int = ErrorCodes.CANCEL) -> None:
        self._exchanges.pop(exchange.stream_id, None)
        acknowledge(self._client, exchange.stream_id, exchange.up.drop())
        link = exchange.link
        if link is not None:
            if not (exchange.up.finished and exchange.down.finished):
                link.reset(exchange, code)
            link.forget(exchange)

    def _leave_if_done(self) -> None:
        if self._is_leaving and not self._exchanges and not self._client.outlet.blocked:
            self._client.leave()

    def _end(self, reason: Reason, detail: str) -> None:
        self._session.reactor.unwatch(self)
        self._session.forget(self)
        self._upstream.leave()
        for exchange in list(self._exchanges.values()):
            self._finish(exchange, reason, detail)
        self._upstream.release()
