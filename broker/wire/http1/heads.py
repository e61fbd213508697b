"""Request and response heads: octets in, one frozen value out, or a refusal, or None while octets are missing.

A head that is accepted has one reading only: one start line, one host, one framing, plain field lines. Where RFC 9112
lets a recipient repair or choose, this parser refuses. It holds nothing between calls, waits for nothing and decides
no policy. The heads are msgspec structs because a frozen dataclass of this size costs ten times as much to make, twice
for every request.
"""

import re
from typing import Literal

import msgspec

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.bodies import CHUNKED, NO_BODY, UNTIL_CLOSE, Body, Length, NoBody
from broker.wire.http1.faults import CLIENT, UPSTREAM, Faults, explain_partial_request, explain_request_line
from broker.wire.http1.fields import (
    FORGED,
    PROTECTED,
    REQUEST_WATCHED,
    RESPONSE_WATCHED,
    TOKEN,
    Fields,
    collect,
    options_of,
    parse_length,
    split_fields,
)
from broker.wire.http1.limits import Limits
from broker.wire.http1.websocket import is_whole

type Version = tuple[Literal[1], Literal[0, 1]]
type Protocol = Literal["websocket"]

HTTP_10: Version = (1, 0)
HTTP_11: Version = (1, 1)

# The target is visible ASCII without `#` (a fragment is never sent, RFC 9112 §3.2) and `\` (read as `/` by some).
_REQUEST_LINE = re.compile(rb"(?:\r\n)?(" + TOKEN + rb"{1,32}) ([!\"$-\[\]-~]++) HTTP/1\.([01])\r\n")
# The space after the code may be missing with the phrase: widespread, and harmless because it is written anew.
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*+))?\r\n")
_HOST = re.compile(rb"[!-+\--~]+")  # visible ASCII without the comma; the authority parser judges the rest
# In any case: methods are case-sensitive, but not for every server.
_REFUSED_METHODS = frozenset((b"TRACE", b"TRACK", b"DEBUG"))
_START_LINE_SLACK = 64  # method, spaces, version and one leading CRLF around a target


class RequestHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request's start line and fields. `length` counts the octets consumed, a leading CRLF included."""

    method: str
    target: bytes
    version: Version
    fields: Fields
    length: int
    body: Body
    host: bytes  # the raw Host value; empty only in HTTP/1.0 without Host where the target names the authority
    keep_alive: bool  # what the client asked for
    expect_continue: bool
    upgrade: Protocol | None  # a complete WebSocket request; other upgrades are not offered upstream
    connection: frozenset[bytes]  # options in lower case
    section: bytes = b""  # the octets of the fields, as they were received

    def is_read_as(self, other: "RequestHead") -> bool:
        """Whether both were read from the same fields in one reading, so that they differ in their targets only."""
        return self is other or (self.fields is other.fields and bool(self.fields))


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A response's status line and fields. `body` is what follows; `stated` is what the fields say (HEAD, 304)."""

    status: int
    phrase: bytes
    version: Version
    fields: Fields
    length: int
    body: Body
    stated: Body
    keep_alive: bool  # whether the upstream connection may serve another request
    upgrade: bytes  # the raw Upgrade value, empty where there is none
    connection: frozenset[bytes]


def parse_request_head(
    data: bytes | bytearray, limits: Limits, *, allow_connect: bool = True, like: RequestHead | None = None
) -> RequestHead | None:
    """Read the request head at the begin of `data`; None while it is incomplete. Raises `Refusal`.

    `allow_connect` is False inside a stream that is already inspected. At most one CRLF before the request is skipped
    (RFC 9112 §2.2). What can never become a request is refused before its end is seen. `like` is a head that was
    accepted under the same limits: most clients send the same fields again, and they need not be read twice.
    """
    end = data.find(b"\r\n\r\n", 0, limits.head_bytes) + 2
    if end < 2:
        _refuse_hopeless_request(data, limits)
        return None
    line = _REQUEST_LINE.match(data)
    if line is None:
        raise explain_request_line(bytes(data[: end + 2]))
    method, target, minor = line.groups()
    if len(target) > limits.target_bytes:
        raise Refusal(Reason.TARGET_TOO_LONG, f"a target of more than {limits.target_bytes} octets")
    section = bytes(data[line.end() : end])
    version = HTTP_11 if minor == b"1" else HTTP_10
    if like is not None and section == like.section and _is_read_alike(like, method, version):
        same = target == like.target and end + 2 == like.length
        return like if same else msgspec.structs.replace(like, target=target, length=end + 2)
    connect = method == b"CONNECT"
    upper = method.upper()
    if upper in _REFUSED_METHODS or (upper == b"CONNECT" and not (connect and allow_connect)):
        raise Refusal(Reason.METHOD_REFUSED, "this method is never forwarded")
    fields = split_fields(data, line.end(), end, limits, CLIENT)
    found = collect(fields, REQUEST_WATCHED, CLIENT)
    if not FORGED.isdisjoint(found):
        raise Refusal(Reason.BAD_FRAMING, "a framing field spelled with an underscore")
    options = options_of(found, CLIENT)
    if not PROTECTED.isdisjoint(options):
        raise Refusal(Reason.BAD_REQUEST, "Connection lists a field that is not hop-by-hop")
    body = _request_body(found, version, connect=connect)
    return RequestHead(
        method=method.decode("ascii"),
        target=target,
        version=version,
        fields=fields,
        length=end + 2,
        body=body,
        host=_host(found, target, version),
        keep_alive=b"close" not in options if version == HTTP_11 else _keeps_alive_10(options),
        expect_continue=b"expect" in found and _expects_continue(found[b"expect"], version, body),
        upgrade=_websocket(found, fields, options, body) if method == b"GET" and version == HTTP_11 else None,
        connection=options,
        section=section,
    )


def _is_read_alike(like: RequestHead, method: bytes, version: Version) -> bool:
    """Whether the same fields mean the same here: the target counts only where no Host stands among them."""
    return like.method.encode() == method and like.version == version and like.host != b""


def parse_response_head(data: bytes | bytearray, request_method: str, limits: Limits) -> ResponseHead | None:
    """Read the response head at the begin of `data`; None while it is incomplete. Raises `Refusal`.

    `request_method` is that of the request it answers: it decides whether a body follows (RFC 9112 §6.3). Every refusal
    is `UPSTREAM_PROTOCOL`.
    """
    end = data.find(b"\r\n\r\n", 0, limits.head_bytes) + 2
    if end < 2:
        _refuse_hopeless_response(data, limits)
        return None
    line = _STATUS_LINE.match(data)
    if line is None:
        raise Refusal(UPSTREAM.malformed, "not an HTTP/1.0 or HTTP/1.1 status line")
    minor, code, phrase = line.groups()
    status = int(code)
    version = HTTP_11 if minor == b"1" else HTTP_10
    fields = split_fields(data, line.end(), end, limits, UPSTREAM)
    found = collect(fields, RESPONSE_WATCHED, UPSTREAM)
    options = options_of(found, UPSTREAM)
    stated = _stated(found, version, UPSTREAM) or UNTIL_CLOSE
    bodiless = status < 200 or status in {204, 304} or request_method == "HEAD"
    if request_method == "CONNECT" and status < 300:
        bodiless = True
    return ResponseHead(
        status=status,
        phrase=(phrase or b"").strip(b" \t"),
        version=version,
        fields=fields,
        length=end + 2,
        body=NO_BODY if bodiless else stated,
        stated=stated,
        keep_alive=b"close" not in options if version == HTTP_11 else _keeps_alive_10(options),
        upgrade=found.get(b"upgrade", b""),
        connection=options,
    )


def _stated(found: dict[bytes, bytes], version: Version, faults: Faults) -> Body | None:
    """The framing that the fields state. Stricter than RFC 9112 §6.3 on purpose: no precedence between the two."""
    coding = found.get(b"transfer-encoding")
    length = found.get(b"content-length")
    if coding is None:
        return None if length is None else Length(parse_length(length, faults))
    if length is not None:
        raise Refusal(faults.framing, "both Content-Length and Transfer-Encoding")
    if version == HTTP_10:
        raise Refusal(faults.framing, "Transfer-Encoding in HTTP/1.0")  # RFC 9112 §6.1
    if coding.lower() != b"chunked":
        raise Refusal(faults.framing, "a Transfer-Encoding that is not exactly chunked")
    return CHUNKED


def _request_body(found: dict[bytes, bytes], version: Version, *, connect: bool) -> Body:
    body = _stated(found, version, CLIENT)
    if body is None:
        return NO_BODY
    if connect:
        # RFC 9110 §9.3.6: what follows is tunnel data; a stated length would give it a second reading.
        raise Refusal(Reason.BAD_FRAMING, "CONNECT with a body")
    return body


def _host(found: dict[bytes, bytes], target: bytes, version: Version) -> bytes:
    host = found.get(b"host")
    if not host:
        # RFC 9112 §3.2. HTTP/1.0 may omit it only where the target itself names the authority.
        if host is None and version == HTTP_10 and not target.startswith((b"/", b"*")):
            return b""
        raise Refusal(Reason.MISSING_HOST, "no Host")
    if _HOST.fullmatch(host) is None:
        raise Refusal(Reason.BAD_REQUEST, "Host is not one authority")
    return host


def _keeps_alive_10(options: frozenset[bytes]) -> bool:
    return b"keep-alive" in options and b"close" not in options


def _expects_continue(value: bytes, version: Version, body: Body) -> bool:
    """RFC 9110 §10.1.1: the only expectation there is. It means nothing in HTTP/1.0 or without a body."""
    if value.lower() != b"100-continue":
        raise Refusal(Reason.EXPECTATION_FAILED, "an expectation other than 100-continue")
    return version == HTTP_11 and not isinstance(body, NoBody)


def _websocket(found: dict[bytes, bytes], fields: Fields, options: frozenset[bytes], body: Body) -> Protocol | None:
    """Tell whether this is a whole WebSocket handshake (RFC 6455 §4.1), with no body that could be read as frames."""
    if found.get(b"upgrade", b"").lower() != b"websocket" or b"upgrade" not in options:
        return None
    return "websocket" if is_whole(fields) and body in {NO_BODY, Length(0)} else None


def _refuse_hopeless_request(data: bytes | bytearray, limits: Limits) -> None:
    """Refuse an incomplete head that no further octet can save, so that its sender is told instead of timed out."""
    limit = limits.target_bytes + _START_LINE_SLACK
    first = data.find(b"\n", 2, limit)
    if first < 0 and len(data) >= limit:
        raise Refusal(Reason.TARGET_TOO_LONG, f"a target of more than {limits.target_bytes} octets")
    if first >= 0 and _REQUEST_LINE.match(data) is None:
        raise explain_request_line(bytes(data[: first + 1]))
    if first < 0:
        explain_partial_request(bytes(data))
    end = limits.head_bytes  # up to here there is no CRLF CRLF, so an LF before a line end is a bare one
    if data.find(b"\n\n", 0, end) >= 0 or data.find(b"\n\r\n", 2, end) >= 0:
        raise Refusal(Reason.BAD_REQUEST, "a line that ends with a bare LF")
    if len(data) >= limits.head_bytes or data.count(b"\n") > limits.fields + 2:
        raise Refusal(
            Reason.HEAD_TOO_LARGE, f"a head of more than {limits.head_bytes} octets or {limits.fields} fields"
        )


def _refuse_hopeless_response(data: bytes | bytearray, limits: Limits) -> None:
    if len(data) >= limits.head_bytes:
        raise Refusal(UPSTREAM.too_large, f"a head of more than {limits.head_bytes} octets")
    if not b"HTTP/1.".startswith(data[:7]) or (b"\n" in data[:1024] and _STATUS_LINE.match(data) is None):
        raise Refusal(UPSTREAM.malformed, "not an HTTP/1.0 or HTTP/1.1 status line")
    if data.find(b"\n\n") >= 0:
        raise Refusal(UPSTREAM.malformed, "a line that ends with a bare LF")
