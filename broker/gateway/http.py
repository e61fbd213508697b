"""The HTTP/1.1 plane: every request of a connection judged, what was judged is what is sent.

The protocol itself is `broker.wire.http1.Exchange`, which reads no socket. This module moves octets between it and two
streams, asks for verdicts (`http_request`), and keeps the deadlines. It serves plain HTTP, and the same inside TLS.
"""

from collections.abc import Callable
from typing import assert_never

from broker.gateway.http_request import CurrentRequest
from broker.gateway.http_upstream import UpstreamSide
from broker.gateway.lingering import Lingering
from broker.gateway.metering import metered
from broker.gateway.reactor import BROKEN, HANGUP, IN, OUT, READ_COST
from broker.gateway.session import Session
from broker.gateway.streams import Outlet, Stream
from broker.gateway.upgraded import Upgraded
from broker.gateway.upstreams import Upstream
from broker.policy.authority import Authority
from broker.policy.decide import Denied
from broker.policy.reasons import Family, Reason, Refusal
from broker.wire.http1 import events as on
from broker.wire.http1.exchange import At, Exchange
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.rewrite import Scheme

CONTINUE_SECONDS = 1.0
CHECK_SECONDS = 0.25
REST_SECONDS = 0.5  # a client that asks again sooner gets the same upstream
BYTES_A_TURN = 1 << 20

type _Seldom = on.ClientRefused | on.UpstreamFailed | on.CloseClient | on.AbortClient | on.AbortUpstream | on.Switched
type TakeOver = Callable[[Session, Stream, Authority, str, bytes], None]


class HttpConnection:
    """One client connection. `asked` is the authority that it was opened for; None for the explicit proxy.

    `take_over` serves what follows an accepted CONNECT; it is needed only with the explicit proxy. `refused` is the
    answer to every request of a connection that was refused as a whole.
    """

    def __init__(  # noqa: PLR0913
        self,
        session: Session,
        client: Stream,
        *,
        asked: Authority | None,
        wanted: str,
        scheme: Scheme = "http",
        take_over: TakeOver | None = None,
        refused: Denied | None = None,
    ) -> None:
        self._session = session
        self._reactor = session.reactor
        self._client = client
        self._outlet = Outlet(client)
        self._wanted = wanted
        self._scheme: Scheme = scheme
        self._take_over = take_over
        remembered = session.asking(scheme, asked).remembered
        self._exchange = Exchange(session.http_limits, allow_connect=asked is None, remembered=remembered)
        self._upstream = UpstreamSide(
            session, scheme, on_event=self.on_upstream, reached=self._reached, failed=self._failed
        )
        self._request = CurrentRequest(
            session, self._outlet, self._upstream, scheme=scheme, asked=asked, wanted=wanted, refused=refused
        )
        self._todo: list[on.Event] = []  # a handful at most
        self._busy = False
        self._client_later = False
        self._upstream_later = False
        self._unread = False
        self._ends_show = False  # nothing of the client had come when we last looked: even its end raises an edge
        self._open = True
        self._closing: on.CloseClient | None = None
        self._switching: on.Switched | None = None
        self._last = self._reactor.now  # something moved
        self._head_since: float | None = self._last  # a head is awaited; None between requests
        self.deadline = self._last + CHECK_SECONDS

    def start(self) -> None:
        """Take over a socket that the reactor watches."""
        self._session.remember(self)
        self._reactor.watch(self)
        self._reactor.replace(self._client.sock.fileno(), self.on_client)
        self._read_client()

    # events of the two sockets

    def on_client(self, events: int) -> None:
        """The client's socket is readable, writable or broken."""
        if events & BROKEN:
            self._end(Reason.CLIENT_CLOSED, "the client's connection broke")
            return
        if events & OUT and self._outlet.blocked:
            self._flush_client()
        if events & HANGUP:
            self._ends_show = False
        if events & (IN | HANGUP):
            self._read_client()

    def on_upstream(self, events: int) -> None:
        """The upstream's socket is readable, writable or broken."""
        upstream = self._upstream.current
        if upstream is None:
            self._upstream.stir(events)
            return
        if events & HANGUP:
            self._upstream.hung_up = True
        if events & OUT and upstream.outlet.blocked:
            try:
                upstream.outlet.flush()
            except OSError:
                self._read_upstream()  # it may have answered before it closed
                return
            self._last = self._reactor.now
            self._switch_when_sent()
            self._read_client()
        if events & (IN | HANGUP):
            self._read_upstream()
        if self._unread:
            self._read_client()

    def on_deadline(self, _events: int) -> None:
        """Look at whatever is awaited."""
        now = self._reactor.now
        self.deadline = now + CHECK_SECONDS
        limits = self._session.limits
        if self._outlet.blocked or self._closing is not None:
            if now - self._last >= limits.stalled_write_seconds:
                self._end(Reason.IDLE_TIMEOUT, "the client does not take its response")
            return
        match self._exchange.at:
            case At.HEAD:
                self._check_head(now)
            case At.BODY | At.SENT:
                self._check_exchange(now)
            case At.JUDGED | At.OVER:
                pass

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it with resets and a record."""
        self._end(reason, detail)

    def judge_again(self) -> None:
        """End a request under way that the policy does not allow any more."""
        if denied := self._request.judge_again():
            self._end(Reason.POLICY_CHANGED, denied.detail)

    # moving octets

    def _read_client(self) -> None:
        if self._busy:
            self._client_later = True  # events that wait hold views of the one buffer: reading would overwrite them
            return
        budget = BYTES_A_TURN
        meter, view, exchange = self._session.meter, self._reactor.view, self._exchange
        # An edge that comes while nothing may be read is not repeated: the next request, or the end, waits behind it.
        self._unread = True
        while self._open and self._closing is None and exchange.wants_client and not self._is_blocked():
            try:
                receive = self._client.receive
                count = receive(view) if meter is None else metered(meter, receive, view, upward=True)
            except BlockingIOError:
                self._unread = False
                self._ends_show = True
                return
            except OSError as error:
                self._end(Reason.CLIENT_CLOSED, error.strerror or "reset")
                return
            self._unread = not (self._ends_show and self._client.is_drained())
            if count and self._head_since is None and exchange.at is At.HEAD:
                self._head_since = self._reactor.now
            self._came(exchange.client_data(view[:count]) if count else exchange.client_end())
            if not self._unread:
                return
            budget -= max(count, READ_COST)
            if budget <= 0 or self._reactor.is_late():
                self._reactor.again(self._client.sock.fileno(), IN)
                return

    def _read_upstream(self) -> None:
        if self._busy:
            self._upstream_later = True
            return
        budget = BYTES_A_TURN
        meter, view = self._session.meter, self._reactor.view
        while self._open and not self._outlet.blocked and (upstream := self._upstream.current) is not None:
            if not self._is_relaying():
                return
            try:
                receive = upstream.stream.receive
                count = receive(view) if meter is None else metered(meter, receive, view, upward=False)
            except BlockingIOError:
                return
            except OSError as error:
                self._carry_out(self._exchange.upstream_failed(self._upstream.explain(error)))
                return
            exchange = self._exchange
            self._came(exchange.upstream_data(view[:count]) if count else exchange.upstream_end())
            budget -= max(count, READ_COST)
            if (budget <= 0 or self._reactor.is_late()) and self._upstream.current is upstream:
                self._reactor.again(upstream.stream.sock.fileno(), IN)
                return

    def _came(self, events: list[on.Event]) -> None:
        """Octets of which nothing comes, such as the next one of a head or a trailer, are no movement."""
        if events:
            self._last = self._reactor.now
            self._carry_out(events)

    def _is_blocked(self) -> bool:
        return self._outlet.blocked or self._upstream.blocked

    def _is_relaying(self) -> bool:
        return self._exchange.at is At.BODY or self._exchange.at is At.SENT

    def _flush_client(self) -> None:
        try:
            self._outlet.flush()
        except OSError as error:
            self._end(Reason.CLIENT_CLOSED, error.strerror or "reset")
            return
        self._last = self._reactor.now
        if self._outlet.blocked:
            return
        if self._closing is not None:
            self._finish_closing(self._closing)
            return
        self._switch_when_sent()
        self._read_upstream()
        self._read_client()

    # what the exchange asks for

    def _carry_out(self, events: list[on.Event]) -> None:
        if self._busy:
            self._todo.extend(events)
            return
        self._busy = True
        try:
            for event in events:
                if self._open:
                    self._do(event)
            while self._todo and self._open:
                self._do(self._todo.pop(0))
        finally:
            self._busy = False
        if self._client_later:
            self._client_later = False
            self._read_client()
        if self._upstream_later:
            self._upstream_later = False
            self._read_upstream()

    def _do(self, event: on.Event) -> None:
        # In the order in which they are frequent, and by type alone: a class pattern costs three times as much.
        if isinstance(event, on.SendClient):
            try:
                self._outlet.put(event.pieces)
            except OSError as error:
                self._end(Reason.CLIENT_CLOSED, error.strerror or "reset")
        elif isinstance(event, on.SendUpstream):
            try:
                self._upstream.put(event.pieces)
            except OSError:
                # It may have answered before it closed: what it said counts, else its end is found there.
                self._read_upstream()
        elif isinstance(event, on.Judge):
            self._judge(event.head)
        elif isinstance(event, on.ResponseEnded):
            self._response_ended(event.status, reusable=event.reusable)
        elif isinstance(event, on.RequestSent):
            self._last = self._reactor.now
        else:
            self._do_seldom(event)

    def _do_seldom(self, event: _Seldom) -> None:
        match event:
            case on.ClientRefused(refusal):
                self._refuse(refusal)
            case on.UpstreamFailed(refusal, repeatable):
                self._upstream_failed(refusal, repeatable=repeatable)
            case on.CloseClient():
                self._closing = event
                if not self._outlet.blocked:
                    self._finish_closing(event)
            case on.AbortClient(reason, detail):
                self._end(reason, detail)
            case on.AbortUpstream():
                pass  # `UpstreamFailed` or an end of the client follows, and drops it
            case on.Switched():
                self._switching = event
                self._switch_when_sent()
            case never:
                assert_never(never)

    def _judge(self, head: RequestHead) -> None:
        self._head_since = None
        verdict = self._request.judge(head)
        if isinstance(verdict, Denied):
            self._send_problem(verdict.reason, verdict.detail, verdict.rule.name if verdict.rule else None)
        elif (asked := self._request.question) is None or asked.connect:
            self._carry_out(self._exchange.tunnel())
        else:
            self._upstream.reach(asked, verdict)

    def _reached(self, upstream: Upstream) -> None:
        asked = self._request.question
        assert asked is not None
        self._request.goes_to(upstream.address)
        self._last = self._reactor.now
        self._carry_out(
            self._exchange.allow(
                scheme=self._scheme,
                authority=asked.facts.authority,
                path=asked.target,
                websocket=asked.facts.websocket,
            )
        )
        if self._unread:
            self._read_client()
        if not upstream.used:
            self._read_upstream()  # what a new one said while it was reached raised its edge then

    def _failed(self, refusal: Refusal) -> None:
        self._upstream_failed(refusal, repeatable=False)

    def _upstream_failed(self, refusal: Refusal, *, repeatable: bool) -> None:
        request = self._request
        again = repeatable and self._upstream.may_be_stale
        moved = request.moved()
        self._upstream.drop()
        if again and request.question is not None and request.allowed is not None:
            self._upstream.reach(request.question, request.allowed, fresh=True)
            return
        request.fail(refusal, moved)
        self._send_problem(refusal.reason, refusal.detail, request.rule)

    def _response_ended(self, status: int, *, reusable: bool) -> None:
        self._request.close(Reason.FINISHED, "", status)
        self._upstream.release(reusable=reusable)
        self._last = self._reactor.now
        self._head_since = None if self._exchange.idle else self._last

    def _switch_when_sent(self) -> None:
        """A tunnel writes past the outlets: what they still hold goes first."""
        switched = self._switching
        if switched is not None and not self._is_blocked():
            self._switching = None
            self._switch(switched.client, switched.upstream)

    def _switch(self, early: bytes, late: bytes) -> None:
        asked = self._request.question
        assert asked is not None
        self._open = False
        self._reactor.unwatch(self)
        self._session.forget(self)
        if asked.connect:
            assert self._take_over is not None
            self._take_over(self._session, self._client, asked.facts.authority, self._wanted, early)
            return
        heads = self._request.moved()
        client, upstream = self._client.joinable, self._upstream.hand_over().stream.joinable
        Upgraded(self._session, self._request, client, upstream, heads=heads, early=early, late=late).start()

    # refusals and ends

    def _refuse(self, refusal: Refusal) -> None:
        """Answer octets that are no acceptable request, or the rest of one that is not."""
        if refusal.reason.family is Family.END:
            self._end(refusal.reason, refusal.detail)
            return
        self._request.refuse(refusal)
        self._upstream.drop()
        self._session.flush()
        response = self._request.problem(refusal.reason, refusal.detail, rule=self._request.rule)
        self._carry_out([on.SendClient((response,)), on.CloseClient(linger=True)])

    def _send_problem(self, reason: Reason, detail: str, rule: str | None) -> None:
        self._session.flush()
        self._carry_out(self._exchange.deny(self._request.problem(reason, detail, rule=rule)))

    def _finish_closing(self, closing: on.CloseClient) -> None:
        self._leave()
        if closing.linger:
            Lingering(self._reactor, self._client)
        else:
            self._reactor.remove(self._client.sock.fileno())
            self._client.close()

    def _end(self, reason: Reason, detail: str, *, clean: bool = False) -> None:
        """Close both sides; unless `clean`, with resets."""
        if not self._open:
            return
        if self._request.allowed is not None:
            self._request.close(reason, detail, self._exchange.status)
        self._leave(detail)
        self._reactor.remove(self._client.sock.fileno())
        if clean:
            self._client.close()
        else:
            self._client.reset()

    def _leave(self, why: str = "") -> None:
        self._open = False
        self._request.record_silence(why)
        self._todo.clear()
        self._reactor.unwatch(self)
        self._session.forget(self)
        self._upstream.leave()

    def _check_head(self, now: float) -> None:
        limits = self._session.limits
        if self._head_since is None:
            if now - self._last >= REST_SECONDS:
                self._upstream.rest()
            if now - self._last >= limits.idle_seconds:
                self._end(Reason.IDLE_TIMEOUT, "no further request", clean=True)
        elif now - self._head_since >= limits.head_seconds:
            self._refuse(Refusal(Reason.HEAD_TIMEOUT, "the request head did not arrive in time"))

    def _check_exchange(self, now: float) -> None:
        self._request.goes_on(*self._request.moved())
        exchange, limits = self._exchange, self._session.limits
        quiet = now - self._last
        if exchange.awaits_continue and quiet >= CONTINUE_SECONDS:
            self._carry_out(exchange.go_on())
        if not exchange.answering and exchange.at is At.SENT:
            if quiet >= limits.upstream_head_seconds:
                refusal = Refusal(Reason.UPSTREAM_TIMEOUT, f"no response within {limits.upstream_head_seconds:g} s")
                self._carry_out(exchange.upstream_failed(refusal))
        elif quiet >= limits.idle_seconds:
            self._end(Reason.IDLE_TIMEOUT, f"nothing moved for {limits.idle_seconds:g} s")
