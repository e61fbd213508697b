"""Heads by table: whole, octet by octet and with a tail the same reading comes out, or the same refusal."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.bodies import CHUNKED, NO_BODY, UNTIL_CLOSE, Body, Length
from broker.wire.http1.heads import RequestHead, ResponseHead, parse_request_head, parse_response_head
from broker.wire.http1.limits import DEFAULT_LIMITS, Limits

CASES = Path(__file__).parents[3] / "cases"
ACCEPTED = tomllib.loads((CASES / "http1_requests_accepted.toml").read_text())["case"]
REFUSED = tomllib.loads((CASES / "http1_requests_refused.toml").read_text())
RESPONSES = tomllib.loads((CASES / "http1_responses.toml").read_text())
TAILS = (b"", b"\r\n", b"GET / HTTP/1.1\r\nHost: tail.example\r\n\r\n", b"\x00\n \r", b"x" * 70_000)
GET = "GET / HTTP/1.1\r\nHost: api.example.com\r\n"
POST = "POST / HTTP/1.1\r\nHost: api.example.com\r\n"


def _refused() -> list[Any]:
    rows = [(name, head, reason) for name, head, reason in REFUSED["heads"]]
    rows += [(name, f"{GET}{lines}\r\n", reason) for name, lines, reason in REFUSED["fields"]]
    rows += [(name, f"{GET}{lines}X-Last: 1\r\n\r\n", reason) for name, lines, reason in REFUSED["fields"]]
    rows += [(name, f"{POST}{lines}\r\n", reason) for name, lines, reason in REFUSED["posts"]]
    return [pytest.param(head.encode("latin-1"), Reason(reason), id=name) for name, head, reason in rows]


def _refused_responses() -> list[Any]:
    rows = [(name, head) for name, head in RESPONSES["refused"]]
    rows += [(name, f"HTTP/1.1 200 OK\r\n{lines}\r\n") for name, lines in RESPONSES["fields"]]
    return [pytest.param(head.encode("latin-1"), id=name) for name, head in rows]


def body_of(text: str) -> Body:
    fixed: dict[str, Body] = {"none": NO_BODY, "chunked": CHUNKED, "close": UNTIL_CLOSE}
    return fixed.get(text) or Length(int(text))


def request(data: bytes | bytearray, limits: Limits = DEFAULT_LIMITS) -> RequestHead | None:
    return parse_request_head(data, limits)


def response(data: bytes | bytearray, method: str = "GET", limits: Limits = DEFAULT_LIMITS) -> ResponseHead | None:
    return parse_response_head(data, method, limits)


def _octet_by_octet(parse: Callable[[bytes], object], octets: bytes) -> None:
    for end in range(len(octets) + 1):
        assert parse(octets[:end]) is None


@pytest.mark.parametrize("tail", TAILS, ids=range(len(TAILS)))
@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_an_accepted_request_has_one_reading(case: dict[str, Any], tail: bytes) -> None:
    octets = case["head"].encode("latin-1")
    head = request(octets + tail)
    assert head is not None
    assert head == request(bytearray(octets))
    assert head.length == len(octets)
    assert head.body == body_of(case.get("body", "none"))
    assert head.keep_alive is case.get("keep_alive", True)
    assert head.expect_continue is case.get("expect_continue", False)
    assert head.upgrade == ("websocket" if case.get("upgrade", False) else None)


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_an_accepted_request_is_incomplete_until_its_last_octet(case: dict[str, Any]) -> None:
    octets = case["head"].encode("latin-1")
    assert [request(octets[:end]) for end in range(len(octets))] == [None] * len(octets)


@pytest.mark.parametrize("tail", TAILS, ids=range(len(TAILS)))
@pytest.mark.parametrize(("octets", "reason"), _refused())
def test_a_refused_request_is_refused_with_its_reason(octets: bytes, reason: Reason, tail: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        request(octets + tail)
    assert caught.value.reason is reason
    assert caught.value.detail.isprintable()


@pytest.mark.parametrize(("octets", "reason"), _refused())
def test_a_refused_request_is_refused_octet_by_octet(octets: bytes, reason: Reason) -> None:
    with pytest.raises(Refusal) as caught:
        _octet_by_octet(request, octets)
    assert caught.value.reason.status in {reason.status, 400, 505}


@pytest.mark.parametrize("tail", TAILS, ids=range(len(TAILS)))
@pytest.mark.parametrize("case", RESPONSES["case"], ids=lambda case: case["name"])
def test_an_accepted_response_has_one_reading(case: dict[str, Any], tail: bytes) -> None:
    octets = case["head"].encode("latin-1")
    method = case.get("method", "GET")
    head = response(octets + tail, method)
    assert head is not None
    assert head.length == len(octets)
    assert head.body == body_of(case["body"])
    assert head.keep_alive is case.get("keep_alive", True)
    assert [response(octets[:end], method) for end in range(len(octets))] == [None] * len(octets)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("octets", _refused_responses())
def test_a_refused_response_is_the_upstreams_fault(octets: bytes, method: str) -> None:
    with pytest.raises(Refusal) as caught:
        response(octets, method)
    assert caught.value.reason is Reason.UPSTREAM_PROTOCOL
    with pytest.raises(Refusal):
        _octet_by_octet(lambda begin: response(begin, method), octets)


HOPELESS = (
    *(
        b"GET / HTTP/1.1\nHost",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET / HTTP/1.1\r\nA: b\n\r\n",
        b"GET / HTTP/1.1\r\r\n",
    ),
    *(
        b"GET\t",
        b"GET  ",
        b" ",
        b"\n",
        b"\r\r",
        b"\r\n\r\r",
        b"\r\n\r\n",
        b"\x00",
        b"\x16\x03\x01",
        b"GET /#",
        b"GET /\x80",
    ),
    *(
        b"GET / X",
        b"GET / HTTP/2",
        b"GET / HTTP/1.1\r\x00",
        b"GET /\r\n",
        b"A" * 33,
        b"SSH-2.0-x\r\n",
        b"PRI * HTTP/2.0\r\n",
    ),
)


@pytest.mark.parametrize("octets", HOPELESS)
def test_a_hopeless_begin_is_not_waited_for(octets: bytes) -> None:
    with pytest.raises(Refusal):
        request(octets)


@pytest.mark.parametrize("octets", [b"HTTQ", b"<", b"\r\n", b"HTTP/2", b"HTTP/1.1 2000", b"HTTP/1.1 200 OK\n"])
def test_a_hopeless_response_is_not_waited_for(octets: bytes) -> None:
    with pytest.raises(Refusal):
        response(octets + (b"\r\n" if b"2000" in octets else b""))


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
def test_connect_is_refused_inside_a_stream(method: str) -> None:
    octets = f"{method} a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n".encode()
    with pytest.raises(Refusal) as caught:
        parse_request_head(octets, DEFAULT_LIMITS, allow_connect=False)
    assert caught.value.reason is Reason.METHOD_REFUSED


def test_connect_is_read_on_the_explicit_port() -> None:
    head = request(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n")
    assert head is not None
    assert (head.method, head.target, head.body) == ("CONNECT", b"a.example:443", NO_BODY)


def _sized_head(size: int) -> bytes:
    start = f"{GET}X: ".encode()
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


def test_a_head_of_the_limit_is_read_and_one_octet_more_is_not() -> None:
    head = request(_sized_head(65_536) + b"tail")
    assert head is not None
    assert head.length == 65_536
    for octets in (_sized_head(65_537), _sized_head(65_537)[:-1], _sized_head(2_000_000)):
        with pytest.raises(Refusal) as caught:
            request(octets)
        assert caught.value.reason is Reason.HEAD_TOO_LARGE


def test_a_hundred_fields_are_read_and_one_more_is_not() -> None:
    octets = GET.encode() + b"".join(b"X-%d: y\r\n" % number for number in range(99))
    head = request(octets + b"\r\n")
    assert head is not None
    assert len(head.fields) == 100
    for extra in (1, 400):
        with pytest.raises(Refusal) as caught:
            request(octets + b"Y: z\r\n" * extra + b"\r\n")
        assert caught.value.reason is Reason.HEAD_TOO_LARGE


def test_a_target_of_the_limit_is_read_and_one_octet_more_is_not() -> None:
    for size, fits in ((16_384, True), (16_385, False), (60_000, False), (500_000, False)):
        octets = b"GET /" + b"a" * (size - 1) + b" HTTP/1.1\r\nHost: a.example\r\n\r\n"
        if fits:
            head = request(octets)
            assert head is not None
            assert len(head.target) == size
            continue
        with pytest.raises(Refusal) as caught:
            request(octets)
        assert caught.value.reason is Reason.TARGET_TOO_LONG
        assert caught.value.reason.status == 414


def test_an_endless_target_is_refused_before_its_end() -> None:
    with pytest.raises(Refusal) as caught:
        request(b"GET /" + b"a" * 16_500)
    assert caught.value.reason is Reason.TARGET_TOO_LONG


def test_response_limits() -> None:
    big = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 65_536
    many = b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n"
    for octets in (big, big + b"\r\n\r\n", many):
        with pytest.raises(Refusal) as caught:
            response(octets)
        assert caught.value.reason is Reason.UPSTREAM_PROTOCOL


def test_the_limits_are_the_ones_given() -> None:
    limits = Limits(head_bytes=100, fields=2, target_bytes=10)
    assert request(b"GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n", limits) is not None
    for octets, reason in (
        (b"GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\nX: y\r\n\r\n", Reason.HEAD_TOO_LARGE),
        (b"GET /a HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70 + b"\r\n\r\n", Reason.HEAD_TOO_LARGE),
        (b"GET /aaaaaaaaaa HTTP/1.1\r\nHost: a\r\n\r\n", Reason.TARGET_TOO_LONG),
    ):
        with pytest.raises(Refusal) as caught:
            request(octets, limits)
        assert caught.value.reason is reason
