"""One client connection as a state machine: requests in order, each paired with one response from some upstream.

It reads no socket and knows no clock. The owner feeds it what arrives on either side and carries out the events that it
answers with, in order; they are all there is to do. It decides no policy: `Judge` asks for a verdict, and `allow`,
`deny`, `tunnel` give it. At most one request is in work; a pipelined one waits, unread beyond what arrived with the one
before, until the response is over (`wants_client` says when to read).

A message that was cut short is never passed on as a whole one: the side that would believe it is aborted, not closed.
"""

from enum import Enum, auto

from broker.policy.authority import Authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.bodies import NoBody
from broker.wire.http1.events import (
    AbortClient,
    AbortUpstream,
    ClientRefused,
    CloseClient,
    Event,
    Judge,
    RequestSent,
    ResponseEnded,
    SendClient,
    SendUpstream,
    Switched,
    UpstreamFailed,
)
from broker.wire.http1.faults import CLIENT
from broker.wire.http1.framing import BodyReader, reader_for
from broker.wire.http1.heads import RequestHead, parse_request_head
from broker.wire.http1.limits import DEFAULT_LIMITS, Limits
from broker.wire.http1.relay import CONTINUE, ResponseRelay
from broker.wire.http1.remembered import Remembered
from broker.wire.http1.rewrite import Scheme, format_request_fields, format_request_line

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})  # RFC 9110 §9.2.2


class At(Enum):
    """Where the current request is."""

    HEAD = auto()  # waiting for a request
    JUDGED = auto()  # waiting for a verdict
    BODY = auto()  # allowed, its body under way
    SENT = auto()  # whole and sent
    OVER = auto()  # no more requests on this connection


_BLANK = (b"", b"\r", b"\r\n")  # some clients send a CRLF behind a body (RFC 9112 §2.2)
_SHORT = 1024  # octets of a head that are looked at again with every piece
_RELAYING = (At.BODY, At.SENT)


class Exchange:
    """See the module. The events of one call are carried out, in order, before the next call.

    `remembered`: shared by exchanges with the same limits and the same leave to CONNECT, of one session only.
    """

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, *, allow_connect: bool = False, remembered: Remembered | None = None
    ) -> None:
        self._limits = limits
        self._allow_connect = allow_connect
        self._client_closed = False
        self.at = At.HEAD
        """Where the current request is."""
        self._waiting = b""  # an incomplete head, or octets of the client behind the message in work
        self._request: RequestHead | None = None
        self._remembered = Remembered() if remembered is None else remembered
        self._body: BodyReader | None = None
        self._relay: ResponseRelay | None = None
        self._keep_upstream = True

    @property
    def wants_client(self) -> bool:
        """Whether to read from the client: not while a verdict or a response is awaited (back pressure)."""
        return (self.at is At.HEAD or self.at is At.BODY) and not self._client_closed

    @property
    def idle(self) -> bool:
        """Whether the connection is between requests, with nothing received of the next."""
        return self.at is At.HEAD and self._waiting in _BLANK

    @property
    def awaits_continue(self) -> bool:
        """Whether the client may be holding back its body until it is told to go on (start the fall-back timer)."""
        relay = self._relay
        if self.at is not At.BODY or relay is None or relay.head is not None or relay.continued:
            return False
        return self._request is not None and self._request.expect_continue

    @property
    def answering(self) -> bool:
        """Whether a final response head has gone to the client: from here on a failure can only abort."""
        return self._relay is not None and self._relay.head is not None

    @property
    def status(self) -> int:
        """Of the response that is under way to the client, or was when it broke; 0 before."""
        relay = self._relay
        return relay.head.status if relay is not None and relay.head is not None else 0

    def client_data(self, data: bytes | memoryview) -> list[Event]:
        """Octets from the client."""
        match self.at:
            case At.HEAD:
                seen = len(self._waiting)
                self._waiting = self._waiting + data if seen else bytes(data)
                return [] if self._is_middle_of_line(seen) else self._next_request()
            case At.BODY:
                return self._forward_request(memoryview(data))
            case At.JUDGED | At.SENT:
                self._waiting += data
            case At.OVER:
                pass
        return []

    def client_end(self) -> list[Event]:
        """The client has closed its side. A whole request still gets its response (half-close)."""
        self._client_closed = True
        match self.at:
            case At.HEAD:
                return self._finish_client()
            case At.BODY:
                return self._cut_request(Refusal(CLIENT.cut, "closed inside a request body"))
            case _:
                return []  # a body that is still missing shows when it is to be forwarded

    def allow(
        self, *, scheme: Scheme, authority: Authority, path: bytes, websocket: bool = False, keep_upstream: bool = True
    ) -> list[Event]:
        """Send the judged request to the upstream that the owner has dialled or taken from its pool."""
        head = self._judged()
        if self._body is not None:
            raise RuntimeError("the body of this request has already been spent")
        websocket = websocket and head.upgrade is not None
        out = format_request_line(head, path) + (
            format_request_fields(head, scheme=scheme, authority=authority, keep_alive=keep_upstream, websocket=True)
            if websocket
            else self._remembered.request_fields(head, scheme, authority, keep_alive=keep_upstream)
        )
        self._keep_upstream = keep_upstream
        self._relay = ResponseRelay(head, self._limits, websocket=websocket, last=self._remembered.response)
        body = reader_for(head.body, self._limits, CLIENT)
        if body is None or body.done:
            self.at = At.SENT
            return [SendUpstream((out,)), RequestSent()]
        self._body = body
        self.at = At.BODY
        events: list[Event] = [SendUpstream((out,))]
        begin, self._waiting = self._waiting, b""
        if begin:
            events += self._forward_request(memoryview(begin))
        if self._client_closed and self.at is At.BODY:
            events += self._cut_request(Refusal(CLIENT.cut, "closed inside a request body"))
        return events

    def deny(self, response: bytes) -> list[Event]:
        """Answer the judged (or failed) request with a whole response of ours, and close.

        What the client sent behind it was meant for after an allowed request: it is never executed.
        """
        self._judged()
        self.at = At.OVER
        self._waiting = b""
        return [SendClient((response,)), CloseClient(linger=True)]

    def tunnel(self) -> list[Event]:
        """Accept a judged CONNECT: what follows is opaque, and this object is done."""
        if self._judged().method != "CONNECT":
            raise RuntimeError("only CONNECT opens a tunnel")
        self.at = At.OVER
        early, self._waiting = self._waiting, b""
        return [SendClient((_ESTABLISHED,)), Switched(client=early, upstream=b"")]

    def go_on(self) -> list[Event]:
        """The fall-back of 100-continue: the upstream has been silent, so tell the client to send its body."""
        if not self.awaits_continue or self._relay is None:
            return []
        self._relay.continued = True
        return [SendClient((CONTINUE,))]

    def upstream_data(self, data: bytes | memoryview) -> list[Event]:
        """Octets from the upstream of the current request."""
        relay = self._relay
        if relay is None or self._request is None or self.at not in _RELAYING:
            return [AbortUpstream(Reason.UPSTREAM_PROTOCOL, "octets that answer no request")]
        last = not self._request.keep_alive or self.at is At.BODY or (self._client_closed and not self._waiting)
        try:
            pieces = relay.feed(memoryview(data), last=last)
        except Refusal as refusal:
            return self.upstream_failed(refusal)
        events: list[Event] = [SendClient(pieces)] if pieces else []
        if relay.switched:
            self.at = At.OVER
            early, self._waiting = self._waiting, b""
            events.append(Switched(client=early, upstream=relay.rest))
        elif relay.done:
            events += self._finish_response(relay)
        return events

    def upstream_end(self, *, clean: bool = True) -> list[Event]:
        """The upstream has closed. `clean` is False after a reset, and for TLS without close_notify."""
        if self._relay is None or self.at not in _RELAYING:
            return []
        try:
            self._relay.end(clean=clean)
        except Refusal as refusal:
            return self.upstream_failed(refusal)
        return self._finish_response(self._relay)

    def upstream_failed(self, refusal: Refusal) -> list[Event]:
        """The upstream cannot be reached, broke its protocol or timed out: a cut, or a chance to answer."""
        if self.at is At.HEAD or self.at is At.OVER:
            return []
        events: list[Event] = []
        relay, request = self._relay, self._request
        if relay is not None:
            events.append(AbortUpstream(refusal.reason, refusal.detail))
        if self.answering:
            self.at = At.OVER
            return [*events, AbortClient(refusal.reason, refusal.detail)]
        bodiless = request is not None and isinstance(request.body, NoBody) and request.method in _REPEATABLE
        self._relay = None
        self.at = At.JUDGED
        return [*events, UpstreamFailed(refusal, repeatable=bodiless and relay is not None and not relay.heard)]

    def _judged(self) -> RequestHead:
        if self.at is not At.JUDGED or self._request is None:
            raise RuntimeError("no request awaits a verdict")
        return self._request

    def _is_middle_of_line(self, seen: int) -> bool:
        """Whether octets behind the first `seen` only make a long line longer: a head sent in small pieces is cheap."""
        if seen < _SHORT or self._waiting.find(b"\n", seen) >= 0:
            return False
        lined = self._waiting.find(b"\n", 2, self._limits.target_bytes) >= 0
        return len(self._waiting) < (self._limits.head_bytes if lined else self._limits.target_bytes)

    def _next_request(self) -> list[Event]:
        try:
            head = parse_request_head(
                self._waiting, self._limits, allow_connect=self._allow_connect, like=self._remembered.request
            )
        except Refusal as refusal:
            self.at = At.OVER
            return [ClientRefused(refusal)]
        if head is None:
            return []
        self._waiting = self._waiting[head.length :]
        self._request = head
        self._remembered.keep(head)
        self.at = At.JUDGED
        return [Judge(head)]

    def _forward_request(self, data: memoryview) -> list[Event]:
        if self._body is None:
            raise RuntimeError("no request body is under way")
        try:
            fed = self._body.feed(data)
        except Refusal as refusal:
            return self._cut_request(refusal)
        events: list[Event] = [SendUpstream(fed.pieces)] if fed.pieces else []
        if fed.done:
            self.at = At.SENT
            self._waiting = bytes(data[fed.consumed :])
            events.append(RequestSent())
        return events

    def _cut_request(self, refusal: Refusal) -> list[Event]:
        """The request will never be whole: its upstream must not think so, and nothing behind it can be trusted."""
        answering = self.answering
        self.at = At.OVER
        abort = AbortUpstream(refusal.reason, refusal.detail)
        if answering or self._client_closed:
            return [abort, AbortClient(refusal.reason, refusal.detail)]
        return [abort, ClientRefused(refusal)]

    def _finish_response(self, relay: ResponseRelay) -> list[Event]:
        if relay.head is None:
            raise RuntimeError("a response without a head")
        whole = self.at is At.SENT
        reusable = whole and self._keep_upstream and relay.reusable
        events: list[Event] = [ResponseEnded(relay.head.status, reusable=reusable)]
        self._relay = self._body = self._request = None
        if not relay.keep_client:
            # An early response: the rest of the request has nowhere to go, and no reading of it as a new one is safe.
            linger = not whole or bool(self._waiting)
            self.at = At.OVER
            self._waiting = b""
            return [*events, CloseClient(linger=linger)]
        self.at = At.HEAD
        if self._waiting:
            events += self._next_request()
        if self._client_closed and self.at is At.HEAD:
            events += self._finish_client()
        return events

    def _finish_client(self) -> list[Event]:
        """The client has closed and no whole request is left."""
        self.at = At.OVER
        if self._waiting in _BLANK:
            return [CloseClient()]
        return [AbortClient(CLIENT.cut, "closed inside a request head")]
