"""Connections that share what they remember do what each would do alone, in whatever order they speak."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.policy.authority import parse_authority
from broker.wire.http1.events import ClientRefused, Event, Judge, SendClient, SendUpstream, UpstreamFailed
from broker.wire.http1.exchange import At, Exchange
from broker.wire.http1.limits import DEFAULT_LIMITS
from broker.wire.http1.remembered import MOST, Remembered

API = parse_authority(b"api.example.com:443", default_port=None)
REQUESTS = (
    b"GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    b"GET /b HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    b"HEAD /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: api.example.com\r\nX-Forwarded-For: me\r\nAccept: */*\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /a HTTP/1.0\r\nHost: api.example.com\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
)
RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes",
    b"HTTP/1.1 204 No Content\r\nServer: one\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAlt-Svc: h3=":443"\r\nConnection: close\r\n\r\nok',
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
)
STEPS = st.tuples(st.integers(0, 2), st.sampled_from(REQUESTS), st.sampled_from(RESPONSES), st.booleans())


def plainly(event: Event) -> object:
    """An event with its octets as such: pieces may be cut otherwise."""
    match event:
        case SendClient(pieces) | SendUpstream(pieces):
            return type(event), b"".join(bytes(piece) for piece in pieces)
        case ClientRefused(refusal) | UpstreamFailed(refusal):
            return type(event), refusal.reason, refusal.detail
        case _:
            return event


def speak(exchange: Exchange, request: bytes, response: bytes, *, keep: bool) -> list[object]:
    """One request and its response, as far as they get."""
    events: Sequence[Event] = exchange.client_data(request)
    said = [*map(plainly, events)]
    for event in events:
        if isinstance(event, Judge):
            said += map(plainly, exchange.allow(scheme="https", authority=API, path=b"/p", keep_upstream=keep))
            said += map(plainly, exchange.upstream_data(memoryview(response)))
    return said


@given(st.lists(STEPS, max_size=12))
def test_shared_or_not(steps: list[tuple[int, bytes, bytes, bool]]) -> None:
    shared = Remembered()
    together = [Exchange(DEFAULT_LIMITS, remembered=shared) for _ in range(3)]
    alone = [Exchange(DEFAULT_LIMITS) for _ in range(3)]
    for number, request, response, keep in steps:
        fresh = Exchange(DEFAULT_LIMITS)
        if alone[number].at is not At.HEAD:
            together[number], alone[number] = Exchange(DEFAULT_LIMITS, remembered=shared), fresh
        expected = speak(alone[number], request, response, keep=keep)
        assert speak(together[number], request, response, keep=keep) == expected
        assert together[number].at is alone[number].at


def test_the_next_connection_gets_what_the_last_one_read() -> None:
    shared = Remembered()
    first, second = (Exchange(DEFAULT_LIMITS, remembered=shared) for _ in range(2))
    heads = [
        event.head for one in (first, second) for event in one.client_data(REQUESTS[0]) if isinstance(event, Judge)
    ]
    assert heads[0] is heads[1]


def test_a_long_head_is_not_kept() -> None:
    shared = Remembered()
    long = REQUESTS[0][:-2] + b"X: " + b"x" * MOST + b"\r\n\r\n"
    assert speak(
        Exchange(DEFAULT_LIMITS, remembered=shared), long, RESPONSES[0][:-6] + b"X: " + long[-9000:] + b"ok", keep=True
    )
    assert shared.request is None
    assert shared.response.head is None
