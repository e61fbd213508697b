"""Heads as they are sent on: written anew from the parsed form, never copied.

A request goes out in origin-form with the Host of the judged authority and exactly one framing field; hop-by-hop
fields, credentials for a proxy and the client's identity stay behind. A response comes back without hop-by-hop fields
and without offers of other ports or protocols. Order and case of the other fields, and the raw octets of path, query
and values, are kept. Nothing of ours is added: no Via, no broker field.

`TE` is never sent on, although `TE: trailers` may be: it is hop-by-hop, trailers are relayed without it, and RFC 9110
§10.1.4 only says that a sender without it should not need them.
"""

import re
from typing import Literal, assert_never

from broker.policy.authority import Authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.bodies import UNTIL_CLOSE, Body, Chunked, Length, NoBody, UntilClose
from broker.wire.http1.fields import (
    OWN_OPTIONS,
    PROTECTED,
    REQUEST_PREFIXES,
    REQUEST_USES,
    RESPONSE_PREFIXES,
    RESPONSE_USES,
    Use,
    is_second_spelling,
)
from broker.wire.http1.heads import HTTP_10, RequestHead, ResponseHead, Version

type Scheme = Literal["http", "https"]

DEFAULT_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}
_FORWARDED, _PROXY = REQUEST_PREFIXES
_PATH = re.compile(rb"/[!\"$-\[\]-~]*+|\*")


def format_request_head(  # noqa: PLR0913  (each is one fact about the request)
    head: RequestHead,
    *,
    scheme: Scheme,
    authority: Authority,
    path: bytes,
    keep_alive: bool = True,
    websocket: bool = False,
) -> bytes:
    """The head to send upstream for a judged request. `path` is the raw path and query, or `*` for OPTIONS.

    `keep_alive` is our own wish for the upstream connection. `websocket` says that the upgrade was judged too; without
    it, an Upgrade stays behind. Raises `Refusal` for CONNECT, which has no origin-form, and ValueError for a path that
    did not come from a parsed target.
    """
    return format_request_line(head, path) + format_request_fields(
        head, scheme=scheme, authority=authority, keep_alive=keep_alive, websocket=websocket
    )


def format_request_line(head: RequestHead, path: bytes) -> bytes:
    """The first line, CRLF included; see `format_request_head`."""
    if head.method == "CONNECT":
        raise Refusal(Reason.METHOD_REFUSED, "CONNECT is never forwarded")
    if _PATH.fullmatch(path) is None:
        raise ValueError("not the path of a parsed request target")
    return b"%b %b HTTP/1.1\r\n" % (head.method.encode("ascii"), path)


def format_request_fields(
    head: RequestHead, *, scheme: Scheme, authority: Authority, keep_alive: bool = True, websocket: bool = False
) -> bytes:
    """What follows the first line, the empty line included. Nothing of method or path goes into it."""
    host = format_host(authority, scheme)
    lines = [] if head.host else [b"Host: " + host]
    lines += _request_fields(head, host)
    if websocket and head.upgrade is not None:
        lines += (b"Connection: Upgrade", b"Upgrade: websocket")
    elif not keep_alive:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def _request_fields(head: RequestHead, host: bytes) -> list[bytes]:
    lines: list[bytes] = []
    listed = head.connection - OWN_OPTIONS
    names = [field[0].lower() for field in head.fields]
    # Most heads have nothing that must be looked for name by name: one look at all names together says so (with `find`,
    # as `in` takes three times as long on bytes).
    together = b"\n".join(names)
    suspect = listed or max(together.find(b"_"), together.find(_FORWARDED), together.find(_PROXY)) >= 0
    for field, name in zip(head.fields, names, strict=True):
        use = REQUEST_USES.get(name)
        if use is None:
            if not suspect or not (name in listed or name.startswith(REQUEST_PREFIXES) or is_second_spelling(name)):
                lines.append(b": ".join(field))
        elif use is Use.HOST:
            lines.append(b"%b: %b" % (field[0], host))
        elif use is Use.LENGTH or use is Use.CODING:
            lines.append(_framing(head.body))
        elif use is Use.EXPECT and head.expect_continue:
            lines.append(b"Expect: 100-continue")
    return lines


def relayed_body(head: ResponseHead, client: Version) -> Body:
    """How the body is delimited on the way to a client of version `client`: HTTP/1.0 knows no chunks."""
    return UNTIL_CLOSE if client == HTTP_10 and isinstance(head.body, Chunked) else head.body


def format_response_head(
    head: ResponseHead, *, client: Version = (1, 1), keep_alive: bool = True, websocket: bool = False
) -> bytes:
    """The head to send to the client. `keep_alive` is whether its connection serves another request.

    A body that ends with the connection always closes it, whatever `keep_alive` says. `websocket` must be set for a
    101, and only where the client asked and the upgrade was judged.
    """
    if (head.status == 101) is not websocket:
        raise ValueError("101 is sent for a judged upgrade, and nothing else is")
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.phrase)]
    lines += _response_fields(head, client)
    if websocket:
        lines += (b"Connection: Upgrade", b"Upgrade: websocket")
    elif head.status >= 200:
        if not keep_alive or isinstance(relayed_body(head, client), UntilClose):
            lines.append(b"Connection: close")
        elif client == HTTP_10:
            lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def _response_fields(head: ResponseHead, client: Version) -> list[bytes]:
    lines: list[bytes] = []
    listed = head.connection - OWN_OPTIONS - PROTECTED  # some origins list Transfer-Encoding: it has no effect here
    framing = _stated_framing(head, client)
    for field in head.fields:
        name = field[0].lower()
        use = RESPONSE_USES.get(name)
        if use is None:
            if name not in listed and not name.startswith(RESPONSE_PREFIXES):
                lines.append(b": ".join(field))
        elif use is Use.LENGTH or use is Use.CODING:
            if framing:
                lines.append(framing)
        elif use is Use.TRAILER and isinstance(relayed_body(head, client), Chunked):
            lines.append(b": ".join(field))
    return lines


def format_host(authority: Authority, scheme: Scheme) -> bytes:
    """The Host value of an authority: brackets for IPv6, no port where it is the scheme's own (RFC 9110 §4.2.3)."""
    host = str(authority.host)
    text = f"[{host}]" if ":" in host else host
    return (text if authority.port == DEFAULT_PORTS[scheme] else f"{text}:{authority.port}").encode("ascii")


def _framing(body: Body) -> bytes:
    match body:
        case Length(n):
            return b"Content-Length: %d" % n
        case Chunked():
            return b"Transfer-Encoding: chunked"
        case NoBody() | UntilClose():
            return b""
        case never:
            assert_never(never)


def _stated_framing(head: ResponseHead, client: Version) -> bytes:
    """The framing field of a response; none with 1xx and 204 (RFC 9110 §8.6), nor chunks for HTTP/1.0."""
    if head.status < 200 or head.status == 204 or (client == HTTP_10 and isinstance(head.stated, Chunked)):
        return b""
    return _framing(head.stated)
