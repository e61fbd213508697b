"""The response side of one request: octets of the upstream in, octets for the client out.

Interim responses are passed on and counted, 101 ends HTTP only where it was asked for and judged, the final head is
written anew and its body follows piece by piece. Octets behind the response belong to nobody and are never sent.
"""

from broker.policy.reasons import Refusal
from broker.wire.http1.bodies import UNTIL_CLOSE, Chunked, UntilClose
from broker.wire.http1.faults import UPSTREAM
from broker.wire.http1.framing import BodyReader, Piece, reader_for
from broker.wire.http1.heads import HTTP_11, RequestHead, ResponseHead
from broker.wire.http1.limits import Limits
from broker.wire.http1.remembered import LastResponse
from broker.wire.http1.rewrite import format_response_head, relayed_body
from broker.wire.http1.websocket import is_answered

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ResponseRelay:
    """`feed` and `end` raise `Refusal` for what the upstream may not do; nothing of that feed has been sent then."""

    __slots__ = (
        "_body",
        "_held",
        "_informational",
        "_last",
        "_limits",
        "_request",
        "_websocket",
        "continued",
        "done",
        "head",
        "heard",
        "keep_client",
        "rest",
        "switched",
    )

    def __init__(self, request: RequestHead, limits: Limits, *, websocket: bool, last: LastResponse) -> None:
        self._request = request
        self._last = last
        self._limits = limits
        self._websocket = websocket
        self._held = b""  # an incomplete head
        self._body: BodyReader | None = None
        self._informational = 0
        self.head: ResponseHead | None = None  # the final head, once it is sent
        self.heard = False  # whether the upstream has sent anything at all
        self.continued = False  # whether the client has been told to go on
        self.keep_client = False  # whether the client was told that its connection serves another request
        self.done = False
        self.switched = False
        self.rest = b""  # octets behind the response or the 101

    def feed(self, data: memoryview, *, last: bool) -> list[Piece]:
        """Read octets of the upstream. `last`: the client's connection cannot serve another request after this one."""
        self.heard = True
        unanswered = self.head is None
        try:
            return self._feed(data, last=last)
        except Refusal:
            if unanswered:
                self.head = None  # it was read, but nothing of it has been sent: there can still be an answer of ours
            raise

    def _feed(self, data: memoryview, *, last: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self.head is None and not self.switched:
            window = self._held + bytes(data[: self._limits.head_bytes - len(self._held)])
            if self._held and len(window) < self._limits.head_bytes and window.find(b"\n", len(self._held)) < 0:
                self._held = window  # the middle of a line
                return pieces
            head = self._last.read(window, self._request.method, self._limits)
            if head is None:
                self._held = window
                return pieces
            data = data[head.length - len(self._held) :]
            self._held = b""
            pieces.extend(self._begin(head, last=last))
            if not data and self.head is None:
                return pieces
        if self._body is not None:
            fed = self._body.feed(data)
            pieces += fed.pieces
            data = data[fed.consumed :]
            self.done = fed.done
        self.rest += data
        return pieces

    def end(self, *, clean: bool) -> None:
        """The upstream has closed. Returns if that completes the response."""
        if self.head is None:
            raise Refusal(UPSTREAM.cut, "closed before a response")
        if not clean or self._body is None:
            raise Refusal(UPSTREAM.cut, "the connection was cut inside a response body")
        self._body.end()
        self.done = True

    @property
    def reusable(self) -> bool:
        """Whether the upstream connection is as it was before the request. Octets behind a response are a forgery."""
        head = self.head
        return self.done and head is not None and head.keep_alive and not self.rest and head.body is not UNTIL_CLOSE

    def _begin(self, head: ResponseHead, *, last: bool) -> list[Piece]:
        if head.status == 101:
            return [self._switch(head)]
        if head.status < 200:
            return self._inform(head)
        client = self._request.version
        self.keep_client = not last and not isinstance(relayed_body(head, client), UntilClose)
        dechunk = isinstance(head.body, Chunked) and client != HTTP_11
        self._body = reader_for(head.body, self._limits, UPSTREAM, dechunk=dechunk)
        self.done = self._body is None or self._body.done
        self.head = head
        return [self._last.write(head, client=client, keep_alive=self.keep_client)]

    def _inform(self, head: ResponseHead) -> list[Piece]:
        self._informational += 1
        if self._informational > self._limits.informational:
            raise Refusal(UPSTREAM.malformed, f"more than {self._limits.informational} interim responses")
        if self._request.version != HTTP_11:
            return []  # RFC 9110 §15.2: HTTP/1.0 has no interim responses
        if head.status == 100:
            if self.continued:
                return []
            self.continued = True
        return [format_response_head(head)]

    def _switch(self, head: ResponseHead) -> Piece:
        if not self._websocket or head.upgrade.lower() != b"websocket" or b"upgrade" not in head.connection:
            raise Refusal(UPSTREAM.malformed, "a switch of protocols that was not asked for")
        if not is_answered(self._request.fields, head.fields):
            raise Refusal(UPSTREAM.malformed, "a switch to WebSocket that does not answer the key")
        self.switched = True
        return format_response_head(head, websocket=True)
