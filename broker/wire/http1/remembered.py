"""What was read and written last: the same octets under the same circumstances come to the same again.

Only values that follow from the octets alone are remembered, and each is compared octet by octet before it is used
again. Verdicts are not among them.
"""

from broker.policy.authority import Authority
from broker.wire.http1.heads import HTTP_11, RequestHead, ResponseHead, Version, parse_response_head
from broker.wire.http1.limits import Limits
from broker.wire.http1.rewrite import Scheme, format_request_fields, format_response_head

MOST = 8192  # octets of a head that is remembered


class Remembered:
    """Of the connections that share it: the last request as it was read and as it was written, the last response."""

    __slots__ = ("_fields", "request", "response")

    def __init__(self) -> None:
        self.request: RequestHead | None = None
        self.response = LastResponse()
        self._fields: tuple[RequestHead, Scheme, Authority, bool, bytes] | None = None

    def keep(self, head: RequestHead) -> None:
        """Remember a request, unless it is long: a session has many of these, which outlive its connections."""
        if head.length <= MOST:
            self.request = head

    def request_fields(self, head: RequestHead, scheme: Scheme, authority: Authority, *, keep_alive: bool) -> bytes:
        """The fields to send, without an upgrade: those written last, where the head was read like that one."""
        last = self._fields
        if last is not None:
            like, of_scheme, of_authority, kept, octets = last
            if of_authority is authority and of_scheme == scheme and kept is keep_alive and head.is_read_as(like):
                return octets
        octets = format_request_fields(head, scheme=scheme, authority=authority, keep_alive=keep_alive)
        if len(octets) <= MOST:
            self._fields = head, scheme, authority, keep_alive, octets
        return octets


class LastResponse:
    """The last final head as it was read, and as it was written."""

    __slots__ = ("_client", "_keep_alive", "_method", "_octets", "_written", "head")

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self._method = ""
        self._octets = b""
        self._client = HTTP_11
        self._keep_alive = False
        self._written = b""

    def read(self, window: bytes, method: str, limits: Limits) -> ResponseHead | None:
        """`parse_response_head`, by comparison where possible; the limits must be the same each time."""
        known = self.head
        if known is not None and method == self._method and window.startswith(self._octets):
            return known
        head = parse_response_head(window, method, limits)
        if head is not None and head.status >= 200 and head.length <= MOST:
            self.head, self._method, self._octets, self._written = head, method, window[: head.length], b""
        return head

    def write(self, head: ResponseHead, *, client: Version, keep_alive: bool) -> bytes:
        """`format_response_head` of what `read` returned last."""
        if self._written and head is self.head and client is self._client and keep_alive is self._keep_alive:
            return self._written
        written = format_response_head(head, client=client, keep_alive=keep_alive)
        if head is self.head:
            self._client, self._keep_alive, self._written = client, keep_alive, written
        return written
