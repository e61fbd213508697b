"""What was read before on a connection never changes how the next is read, judged or written."""

import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from broker.policy.authority import parse_authority
from broker.policy.reasons import Refusal
from broker.wire.http1.events import Event, Judge, SendClient, SendUpstream
from broker.wire.http1.exchange import Exchange
from broker.wire.http1.heads import RequestHead, parse_request_head
from broker.wire.http1.limits import DEFAULT_LIMITS

CASES = Path(__file__).parents[3] / "cases"
REQUESTS = [
    case["head"].encode("latin-1")
    for case in tomllib.loads((CASES / "http1_requests_accepted.toml").read_text())["case"]
]
REFUSED = [
    head.encode("latin-1") for _, head, _ in tomllib.loads((CASES / "http1_requests_refused.toml").read_text())["heads"]
]
HOST = "Host: api.example.com\r\n"
GET = f"GET /a HTTP/1.1\r\n{HOST}Accept: */*\r\n\r\n".encode()
ALIKE = [
    GET,
    GET.replace(b"/a", b"/b?c=d"),
    b"\r\n" + GET,
    GET.replace(b"GET", b"HEAD"),
    GET.replace(b"GET", b"POST"),
    GET.replace(b"GET", b"OPTIONS"),
    GET.replace(b"GET /a", b"OPTIONS *"),
    GET.replace(b"/a", b"http://api.example.com/a"),
    GET.replace(b"/a", b"http://other.example.com/a"),
    GET.replace(b"1.1", b"1.0"),
    GET.replace(b"GET /a", b"CONNECT api.example.com:443"),
    GET.replace(b"GET", b"CONNECT"),
    GET.replace(b"GET", b"TRACE"),
    GET.replace(b"api.", b"b.api."),
    GET.replace(b"*/*", b"text/html"),
    GET.replace(b"Accept: */*", b"Connection: close"),
    GET.replace(b"Accept: */*", b"Content-Length: 0"),
    GET.replace(b"Accept: */*", b"Content-Length: 5"),
    GET.replace(b"Accept: */*", b"Transfer-Encoding: chunked"),
    GET.replace(HOST.encode(), b""),
    b"GET http://api.example.com/ HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET /" + b"a" * DEFAULT_LIMITS.target_bytes + b" HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n",
    (
        b"GET /ws HTTP/1.1\r\nHost: api.example.com\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ),
]
OK = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 2\r\n\r\n"
RESPONSES = [
    OK + b"ok",
    OK.replace(b"now", b"then") + b"ok",
    OK.replace(b": 2", b": 20") + b"o" * 20,
    OK.replace(b"200 OK", b"204 No Content").replace(b"Content-Length: 2\r\n", b""),
    OK.replace(b"200 OK", b"304 Not Modified"),
    OK.replace(b"now", b"now\r\nConnection: close") + b"ok",
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"ok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    OK.replace(b"now", b"now\r\nContent-Length: 3") + b"ok",
]
API = parse_authority(b"api.example.com:443", default_port=None)
OTHER = parse_authority(b"other.example.com:443", default_port=None)


def read(octets: bytes, like: RequestHead | None = None, *, allow_connect: bool = True) -> Any:
    try:
        return parse_request_head(octets, DEFAULT_LIMITS, allow_connect=allow_connect, like=like)
    except Refusal as refusal:
        return refusal.reason, refusal.detail


@pytest.mark.parametrize("allow_connect", [True, False])
def test_a_head_is_read_as_if_it_were_the_first(allow_connect: bool) -> None:
    first = {octets: read(octets, allow_connect=allow_connect) for octets in REQUESTS + REFUSED + ALIKE}
    for before, octets in product(first, first):
        like = first[before]
        if isinstance(like, RequestHead):
            assert read(octets, like, allow_connect=allow_connect) == first[octets], (before[:60], octets[:60])


def test_the_same_octets_are_read_once() -> None:
    head = read(GET)
    assert read(GET, head) is head
    assert read(GET.replace(b"/a", b"/b"), head).fields is head.fields


def ask(exchange: Exchange, request: bytes, authority: Any, **options: bool) -> list[Event]:
    events = exchange.client_data(request)
    if not isinstance(events[-1], Judge):
        return events
    try:
        return events + exchange.allow(scheme="https", authority=authority, path=b"/p", **options)
    except Refusal:
        return events


def told(events: list[Event]) -> list[str]:
    return [
        f"{type(event).__name__} {b''.join(event.pieces)!r}"
        if isinstance(event, SendClient | SendUpstream)
        else repr(event)
        for event in events
    ]


@pytest.mark.parametrize("options", [{}, {"websocket": True}, {"keep_upstream": False}], ids=str)
def test_what_is_sent_is_what_would_be_sent_first(options: dict[str, bool]) -> None:
    compared = 0
    for before, request, authority in product(ALIKE, ALIKE, (API, OTHER)):
        exchange = Exchange()
        ask(exchange, before, API)
        exchange.upstream_data(OK + b"ok")
        if exchange.idle:
            compared += 1
            assert told(ask(exchange, request, authority, **options)) == told(
                ask(Exchange(), request, authority, **options)
            ), (before[:60], request[:60])
    assert compared > len(ALIKE) * 8


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("before", RESPONSES, ids=range(len(RESPONSES)))
def test_a_response_is_passed_on_as_if_it_were_the_first(before: bytes, method: bytes) -> None:
    old = GET.replace(b"1.1", b"1.0").replace(b"Accept: */*", b"Connection: keep-alive")
    for response, second, request in product(RESPONSES, (b"GET", b"HEAD"), (GET, old)):
        exchange, alone = Exchange(), Exchange()
        ask(exchange, GET.replace(b"GET", method), API)
        exchange.upstream_data(before[: before.rindex(b"\r\n\r\n") + 4] if method == b"HEAD" else before)
        if exchange.idle:
            for one in (exchange, alone):
                ask(one, request.replace(b"GET", second), API)
            assert told(exchange.upstream_data(response)) == told(alone.upstream_data(response))
