"""What is sent on for an accepted head, by table; and that nothing can be made to add a line."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.policy.authority import Authority, parse_authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.bodies import CHUNKED, UNTIL_CLOSE, Length
from broker.wire.http1.heads import HTTP_10, HTTP_11, RequestHead, ResponseHead, parse_request_head, parse_response_head
from broker.wire.http1.limits import DEFAULT_LIMITS
from broker.wire.http1.rewrite import Scheme, format_host, format_request_head, format_response_head, relayed_body
from broker.wire.http1.targets import AuthorityForm, classify_target, request_authority

CASES = Path(__file__).parents[3] / "cases"
REQUESTS = tomllib.loads((CASES / "http1_requests_accepted.toml").read_text())["case"]
RESPONSES = tomllib.loads((CASES / "http1_responses.toml").read_text())["case"]
AUTHORITY = parse_authority(b"api.example.com", default_port=443)


def read(octets: bytes) -> RequestHead:
    head = parse_request_head(octets, DEFAULT_LIMITS)
    assert head is not None
    return head


def answer(octets: bytes, method: str = "GET") -> ResponseHead:
    head = parse_response_head(octets, method, DEFAULT_LIMITS)
    assert head is not None
    return head


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_what_is_sent_upstream(case: dict[str, Any]) -> None:
    head = read(case["head"].encode("latin-1"))
    scheme: Scheme = case.get("scheme", "https")
    target = classify_target(head)
    assert not isinstance(target, AuthorityForm)
    authority = request_authority(head, target, scheme)
    sent = format_request_head(
        head, scheme=scheme, authority=authority, path=target.path, websocket=case.get("websocket", False)
    )
    assert sent == case["sent"].encode("latin-1")
    again = read(sent)
    assert (again.method, again.target, again.body) == (head.method, target.path, head.body)
    assert format_request_head(again, scheme=scheme, authority=authority, path=again.target, websocket=True) == sent


@pytest.mark.parametrize("case", RESPONSES, ids=lambda case: case["name"])
def test_what_is_sent_to_the_client(case: dict[str, Any]) -> None:
    method = case.get("method", "GET")
    head = answer(case["head"].encode("latin-1"), method)
    sent = format_response_head(head, client=HTTP_10 if "client" in case else HTTP_11)
    assert sent == case["sent"].encode("latin-1")
    assert answer(sent, method).status == head.status


def test_a_connection_that_will_not_be_kept_is_announced() -> None:
    head = read(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n")
    sent = format_request_head(head, scheme="https", authority=AUTHORITY, path=b"/", keep_alive=False)
    assert sent == b"GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"
    response = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    closed = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert format_response_head(response, keep_alive=False) == closed
    assert format_response_head(response, client=HTTP_10, keep_alive=False) == closed


def test_connect_is_never_sent_on() -> None:
    head = read(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n")
    with pytest.raises(Refusal) as caught:
        format_request_head(head, scheme="https", authority=AUTHORITY, path=b"/")
    assert caught.value.reason is Reason.METHOD_REFUSED


@pytest.mark.parametrize(
    "path", [b"", b"x", b"http://a/", b"/ x", b"/\r\nX: y", b"/\n", b"/\t", b"/#", b"/\\", b"/\x80", b"**", b"/\x00"]
)
def test_a_path_that_was_not_parsed_is_our_own_fault(path: bytes) -> None:
    head = read(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    with pytest.raises(ValueError, match="path"):
        format_request_head(head, scheme="https", authority=AUTHORITY, path=path)


def test_a_switch_of_protocols_is_sent_only_where_it_was_judged() -> None:
    head = answer(
        b"HTTP/1.1 101 Switch\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"
    )
    assert format_response_head(head, websocket=True) == (
        b"HTTP/1.1 101 Switch\r\nSec-WebSocket-Accept: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    with pytest.raises(ValueError, match="101"):
        format_response_head(head)
    with pytest.raises(ValueError, match="101"):
        format_response_head(answer(b"HTTP/1.1 200 OK\r\n\r\n"), websocket=True)


def test_chunks_are_undone_for_http_10_only() -> None:
    chunked = answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert relayed_body(chunked, HTTP_10) == UNTIL_CLOSE
    assert relayed_body(chunked, HTTP_11) == CHUNKED
    assert relayed_body(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), HTTP_10) == Length(3)


@pytest.mark.parametrize(
    ("raw", "scheme", "host"),
    [
        (b"a.example:443", "https", b"a.example"),
        (b"a.example:443", "http", b"a.example:443"),
        (b"a.example:80", "http", b"a.example"),
        (b"a.example:80", "https", b"a.example:80"),
        (b"192.0.2.1:8080", "http", b"192.0.2.1:8080"),
        (b"[2001:db8::1]:443", "https", b"[2001:db8::1]"),
        (b"[2001:DB8::1]:80", "https", b"[2001:db8::1]:80"),
    ],
)
def test_the_host_of_an_authority(raw: bytes, scheme: Scheme, host: bytes) -> None:
    authority: Authority = parse_authority(raw, default_port=None)
    assert format_host(authority, scheme) == host
