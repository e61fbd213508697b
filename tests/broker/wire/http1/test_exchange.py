"""One client connection, as transcripts: what arrives on either side, and exactly what has to be done."""

from collections.abc import Sequence

import pytest

from broker.policy.authority import parse_authority
from broker.policy.reasons import Reason, Refusal
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
from broker.wire.http1.exchange import At, Exchange
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.limits import DEFAULT_LIMITS, Limits

API = parse_authority(b"api.example.com:443", default_port=None)
GET = b"GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
OTHER = b"GET /b HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\n\r\n"
CHUNKED_POST = b"POST /p HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"
EXPECTING = b"PUT /p HTTP/1.1\r\nHost: api.example.com\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED_OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"
SOCKET = (
    b"GET /ws HTTP/1.1\r\nHost: api.example.com\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)
ACCEPT = b"Sec-WebSocket-Accept: ZbX6LUtWYQ7CrIna69ZRTb/V5NM=\r\n"
SWITCH = b"HTTP/1.1 101 Switch\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" % ACCEPT
DENIAL = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def closing(response: bytes) -> bytes:
    return response.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


def to_client(events: Sequence[Event]) -> bytes:
    return b"".join(piece for event in events if isinstance(event, SendClient) for piece in event.pieces)


def to_upstream(events: Sequence[Event]) -> bytes:
    return b"".join(piece for event in events if isinstance(event, SendUpstream) for piece in event.pieces)


def rest(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, SendClient | SendUpstream)]


def judged(events: Sequence[Event]) -> RequestHead:
    (event,) = events
    assert isinstance(event, Judge)
    return event.head


def allow(exchange: Exchange, path: bytes = b"/a", **options: bool) -> list[Event]:
    return exchange.allow(scheme="https", authority=API, path=path, **options)


def opened(request: bytes, path: bytes = b"/p", **options: bool) -> Exchange:
    """An exchange whose first request was allowed."""
    exchange = Exchange()
    assert isinstance(exchange.client_data(request)[-1], Judge)
    allow(exchange, path, **options)
    return exchange


def reasons(events: Sequence[Event]) -> list[tuple[type[Event], Reason]]:
    found: list[tuple[type[Event], Reason]] = []
    for event in rest(events):
        match event:
            case AbortClient(reason, _) | AbortUpstream(reason, _):
                found.append((type(event), reason))
            case ClientRefused(refusal) | UpstreamFailed(refusal, _):
                found.append((type(event), refusal.reason))
            case _:
                found.append((type(event), Reason.FINISHED))
    return found


def test_requests_are_served_in_order_on_a_kept_connection() -> None:
    exchange = Exchange()
    for request, path in ((GET, b"/a"), (OTHER, b"/b"), (GET, b"/a")):
        assert exchange.idle
        assert judged(exchange.client_data(request)).target == path
        assert not exchange.wants_client
        events = allow(exchange, path)
        assert (to_upstream(events), rest(events)) == (request, [RequestSent()])
        events = exchange.upstream_data(OK)
        assert (to_client(events), rest(events)) == (OK, [ResponseEnded(200, reusable=True)])
    assert exchange.client_end() == [CloseClient()]


def test_everything_octet_by_octet() -> None:
    exchange = Exchange()
    sent = received = b""
    for octet in CHUNKED_POST + b"5;x=y\r\nhello\r\n00\r\nX: y\r\n\r\n":
        for event in exchange.client_data(bytes([octet])):
            sent += to_upstream([event])
            if isinstance(event, Judge):
                sent += to_upstream(allow(exchange, b"/p"))
    assert sent == CHUNKED_POST + b"5\r\nhello\r\n0\r\nX: y\r\n\r\n"
    assert exchange.at is At.SENT
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\n" + CHUNKED_OK + b"2\r\nok\r\n0\r\n\r\n"
    for octet in answer:
        received += to_client(exchange.upstream_data(bytes([octet])))
    assert received == answer
    assert exchange.idle


def test_d15_nothing_behind_a_denied_request_is_executed() -> None:
    exchange = Exchange()
    judged(exchange.client_data(GET + OTHER + b"\x00garbage"))
    assert exchange.deny(DENIAL) == [SendClient((DENIAL,)), CloseClient(linger=True)]
    assert exchange.client_data(OTHER) == []
    assert exchange.at is At.OVER
    assert not exchange.wants_client


def test_d21_a_denied_connect_closes() -> None:
    exchange = Exchange(allow_connect=True)
    judged(exchange.client_data(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n" + GET))
    assert rest(exchange.deny(DENIAL)) == [CloseClient(linger=True)]
    assert exchange.client_data(GET) == []


def test_a_denied_request_with_a_body_closes() -> None:
    exchange = Exchange()
    judged(exchange.client_data(POST + b"he"))
    assert rest(exchange.deny(DENIAL)) == [CloseClient(linger=True)]
    assert exchange.client_data(b"llo" + GET) == []


def test_d16_pipelined_requests_wait_their_turn() -> None:
    exchange = Exchange()
    assert judged(exchange.client_data(GET + POST + b"hello" + OTHER[:10])).target == b"/a"
    assert to_upstream(allow(exchange)) == GET
    events = exchange.upstream_data(OK)
    assert to_client(events) == OK
    assert rest(events)[0] == ResponseEnded(200, reusable=True)
    assert judged(events[2:]).target == b"/p"
    assert to_upstream(allow(exchange, b"/p")) == POST + b"hello"
    assert rest(exchange.upstream_data(OK)) == [ResponseEnded(200, reusable=True)]
    assert judged(exchange.client_data(OTHER[10:])).target == b"/b"


def test_a_malformed_request_behind_a_good_one_is_refused_in_its_turn() -> None:
    exchange = Exchange()
    judged(exchange.client_data(GET + b"GET\t/ HTTP/1.1\r\n\r\n"))
    allow(exchange)
    events = rest(exchange.upstream_data(OK))
    assert events[0] == ResponseEnded(200, reusable=True)
    assert reasons(events)[1] == (ClientRefused, Reason.BAD_REQUEST)
    assert exchange.at is At.OVER


@pytest.mark.parametrize("line", [b"X: ", b"GET /"])
def test_d35_d36_a_head_without_end_is_refused_octet_by_octet(line: bytes) -> None:
    exchange = Exchange(Limits(head_bytes=6000, target_bytes=3000))
    begin = b"" if line.startswith(b"GET") else GET[:-2]
    events: list[Event] = exchange.client_data(begin + line)
    size = len(begin + line)
    while not events:
        events = exchange.client_data(b"y")
        size += 1
    assert size <= (6000 if begin else 3100)
    assert reasons(events) == [(ClientRefused, Reason.HEAD_TOO_LARGE if begin else Reason.TARGET_TOO_LONG)]


def test_d35_fields_without_end_are_refused_before_their_end() -> None:
    exchange = Exchange()
    assert exchange.client_data(GET[:-2] + b"a: b\r\n" * 99) == []
    assert reasons(exchange.client_data(b"a: b\r\na: b\r\n")) == [(ClientRefused, Reason.HEAD_TOO_LARGE)]


@pytest.mark.parametrize("size", [1, 7, 500, 1500])
def test_a_long_head_in_pieces_is_read(size: int) -> None:
    head = GET[:-2] + b"".join(b"X-%d: %b\r\n" % (number, b"y" * 900) for number in range(5)) + b"\r\n"
    exchange = Exchange()
    pieces = [head[begin : begin + size] for begin in range(0, len(head), size)]
    for piece in pieces[:-1]:
        assert exchange.client_data(piece) == []
    assert len(judged(exchange.client_data(pieces[-1])).fields) == 6
    allow(exchange)
    answer = OK.replace(b"\r\n\r\n", b"\r\nX: %b\r\n\r\n" % (b"y" * 3000))
    received = b"".join(to_client(exchange.upstream_data(answer[at : at + size])) for at in range(0, len(answer), size))
    assert received == answer


def test_a_malformed_request_is_answered_and_closed() -> None:
    exchange = Exchange()
    assert reasons(exchange.client_data(b"GET / HTTP/1.1\r\n\r\n")) == [(ClientRefused, Reason.MISSING_HOST)]
    assert exchange.client_data(GET) == []


def test_connect_is_refused_unless_this_is_the_explicit_port() -> None:
    connect = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
    assert reasons(Exchange().client_data(connect)) == [(ClientRefused, Reason.METHOD_REFUSED)]
    exchange = Exchange(allow_connect=True)
    judged(exchange.client_data(connect + b"\x16\x03\x01"))
    events = exchange.tunnel()
    assert to_client(events) == b"HTTP/1.1 200 Connection established\r\n\r\n"
    assert rest(events) == [Switched(client=b"\x16\x03\x01", upstream=b"")]


def test_a_tunnel_is_for_connect_only() -> None:
    exchange = Exchange(allow_connect=True)
    exchange.client_data(GET)
    with pytest.raises(RuntimeError):
        exchange.tunnel()


def test_a_body_is_streamed_without_being_held() -> None:
    exchange = Exchange()
    judged(exchange.client_data(POST.replace(b"5", b"2000000")))
    assert to_upstream(allow(exchange, b"/p")).endswith(b"\r\n\r\n")
    block = memoryview(bytes(1_000_000))
    (event,) = exchange.client_data(block)
    assert isinstance(event, SendUpstream)
    (piece,) = event.pieces
    assert isinstance(piece, memoryview)
    assert piece.obj is block.obj
    assert exchange.client_data(block)[1:] == [RequestSent()]


def test_d13_a_malformed_chunk_cuts_the_request_everywhere() -> None:
    exchange = opened(CHUNKED_POST)
    events = exchange.client_data(b"5\r\nhelloXX")
    assert to_upstream(events) == b""
    assert reasons(events) == [(AbortUpstream, Reason.BAD_FRAMING), (ClientRefused, Reason.BAD_FRAMING)]
    assert exchange.client_data(GET) == []
    assert exchange.upstream_end() == []


def test_a_malformed_chunk_after_the_answer_has_begun_resets_both() -> None:
    exchange = opened(CHUNKED_POST)
    exchange.upstream_data(CHUNKED_OK)
    assert reasons(exchange.client_data(b"x\r\n")) == [
        (AbortUpstream, Reason.BAD_FRAMING),
        (AbortClient, Reason.BAD_FRAMING),
    ]


@pytest.mark.parametrize("request_octets", [POST + b"he", CHUNKED_POST + b"2\r\nhe\r\n", CHUNKED_POST + b"0\r\n"])
@pytest.mark.parametrize("early", [False, True])
def test_d37_a_client_that_closes_inside_its_body_is_a_cut(request_octets: bytes, early: bool) -> None:
    exchange = Exchange()
    exchange.client_data(request_octets)
    if early:
        assert exchange.client_end() == []
        events = allow(exchange, b"/p")
    else:
        allow(exchange, b"/p")
        events = exchange.client_end()
    assert reasons(events)[-2:] == [(AbortUpstream, Reason.CLIENT_CLOSED), (AbortClient, Reason.CLIENT_CLOSED)]


def test_a_client_that_closes_inside_a_head_is_a_cut() -> None:
    exchange = Exchange()
    exchange.client_data(GET[:-1])
    assert reasons(exchange.client_end()) == [(AbortClient, Reason.CLIENT_CLOSED)]


def test_an_empty_line_behind_a_request_is_no_cut() -> None:
    exchange = opened(POST + b"hello\r\n")
    assert rest(exchange.upstream_data(OK)) == [ResponseEnded(200, reusable=True)]
    assert exchange.idle
    assert exchange.client_end() == [CloseClient()]


def test_what_fails_when_nothing_is_in_work_changes_nothing() -> None:
    refusal = Refusal(Reason.UPSTREAM_TIMEOUT, "late")
    exchange = Exchange()
    assert exchange.upstream_failed(refusal) == []
    assert exchange.idle
    exchange.client_data(GET)
    exchange.deny(DENIAL)
    assert exchange.upstream_failed(refusal) == []
    assert exchange.at is At.OVER


def test_d37_half_close_still_gets_the_answer() -> None:
    exchange = opened(GET, b"/a")
    assert exchange.client_end() == []
    events = exchange.upstream_data(OK)
    assert to_client(events) == closing(OK)
    assert rest(events) == [ResponseEnded(200, reusable=True), CloseClient()]


def test_d37_half_close_behind_two_requests_gets_both_answers() -> None:
    exchange = Exchange()
    exchange.client_data(GET + OTHER)
    assert exchange.client_end() == []
    allow(exchange)
    events = exchange.upstream_data(OK)
    assert to_client(events) == OK
    assert judged(events[2:]).target == b"/b"
    allow(exchange, b"/b")
    events = exchange.upstream_data(OK)
    assert to_client(events) == closing(OK)
    assert rest(events)[1:] == [CloseClient()]


def test_half_close_with_half_a_request_behind() -> None:
    exchange = Exchange()
    exchange.client_data(GET + OTHER[:9])
    exchange.client_end()
    allow(exchange)
    events = exchange.upstream_data(OK)
    assert to_client(events).startswith(OK)
    assert reasons(events)[1:] == [(AbortClient, Reason.CLIENT_CLOSED)]


def test_d28_continue_is_relayed_and_not_invented() -> None:
    exchange = Exchange()
    judged(exchange.client_data(EXPECTING))
    assert not exchange.awaits_continue
    assert to_upstream(allow(exchange, b"/p")) == EXPECTING
    assert exchange.awaits_continue
    assert exchange.upstream_data(CONTINUE) == [SendClient([CONTINUE])]
    assert not exchange.awaits_continue
    assert exchange.go_on() == []
    assert to_upstream(exchange.client_data(b"hello")) == b"hello"
    assert rest(exchange.upstream_data(OK)) == [ResponseEnded(200, reusable=True)]


def test_d28_the_fall_back_says_it_once() -> None:
    exchange = opened(EXPECTING)
    assert to_client(exchange.go_on()) == CONTINUE
    assert exchange.go_on() == []
    assert exchange.upstream_data(CONTINUE) == []
    assert to_upstream(exchange.client_data(b"hello")) == b"hello"


def test_d28_a_refused_expectation_closes_because_the_body_may_or_may_not_come() -> None:
    exchange = opened(EXPECTING)
    events = exchange.upstream_data(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
    assert to_client(events) == b"HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert rest(events) == [ResponseEnded(417, reusable=False), CloseClient(linger=True)]
    assert exchange.client_data(b"hello" + GET) == []


def test_an_early_answer_closes_both_sides() -> None:
    exchange = opened(POST)
    exchange.client_data(b"he")
    events = exchange.upstream_data(OK)
    assert to_client(events) == closing(OK)
    assert rest(events) == [ResponseEnded(200, reusable=False), CloseClient(linger=True)]


def test_an_answer_that_overlaps_its_request_is_announced_as_the_last() -> None:
    exchange = opened(CHUNKED_POST)
    assert to_client(exchange.upstream_data(CHUNKED_OK + b"1\r\nx\r\n")) == closing(CHUNKED_OK) + b"1\r\nx\r\n"
    assert to_upstream(exchange.client_data(b"1\r\ny\r\n0\r\n\r\n" + GET)) == b"1\r\ny\r\n0\r\n\r\n"
    events = exchange.upstream_data(b"0\r\n\r\n")
    assert rest(events) == [ResponseEnded(200, reusable=True), CloseClient(linger=True)]


def test_d30_interim_responses_are_bounded() -> None:
    exchange = opened(GET, b"/a")
    for code in (102, 103, 199, 103, 103, 103, 103, 103, 103, 103):
        line = b"HTTP/1.1 %d Hint\r\n\r\n" % code
        assert exchange.upstream_data(line) == [SendClient([line])]
    events = exchange.upstream_data(b"HTTP/1.1 103 Hint\r\n\r\n")
    assert reasons(events) == [(AbortUpstream, Reason.UPSTREAM_PROTOCOL), (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)]
    assert rest(exchange.deny(DENIAL)) == [CloseClient(linger=True)]


def test_d30_a_flood_in_one_read_is_bounded_too() -> None:
    exchange = opened(GET, b"/a")
    events = exchange.upstream_data(b"HTTP/1.1 103 Hint\r\n\r\n" * 1000)
    assert to_client(events) == b""
    assert reasons(events)[1] == (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)


def test_interim_responses_are_not_for_http_10() -> None:
    exchange = opened(GET.replace(b"1.1", b"1.0"), b"/a")
    assert to_client(exchange.upstream_data(CONTINUE + b"HTTP/1.1 103 Hint\r\n\r\n" + OK)) == closing(OK)


def test_d22_a_switch_that_nobody_asked_for() -> None:
    for request, websocket in ((GET, False), (GET, True), (SOCKET, False)):
        exchange = opened(request, b"/a", websocket=websocket)
        events = exchange.upstream_data(SWITCH + b"\x81\x00")
        assert to_client(events) == b""
        assert reasons(events)[1] == (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)


@pytest.mark.parametrize(
    "switch",
    [
        SWITCH.replace(b"websocket", b"h2c"),
        SWITCH.replace(b"Connection", b"X"),
        SWITCH.replace(b"Upgrade:", b"X:"),
        SWITCH.replace(ACCEPT, b""),
        SWITCH.replace(ACCEPT, ACCEPT * 2),
        SWITCH.replace(ACCEPT, ACCEPT.lower().replace(b"sec-websocket-accept", b"Sec-WebSocket-Accept")),
        SWITCH.replace(ACCEPT, b"Sec-WebSocket-Accept: eA==\r\n"),
        SWITCH.replace(ACCEPT, ACCEPT + b"Sec-WebSocket-Accept:\r\n"),
    ],
)
def test_d22_a_switch_to_something_else(switch: bytes) -> None:
    exchange = opened(SOCKET, b"/ws", websocket=True)
    assert reasons(exchange.upstream_data(switch))[1] == (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)


def test_d23_a_judged_switch_joins_the_sides_with_what_came_early() -> None:
    exchange = Exchange()
    judged(exchange.client_data(SOCKET + b"client frame"))
    assert to_upstream(allow(exchange, b"/ws", websocket=True)) == SOCKET
    events = exchange.upstream_data(SWITCH + b"server frame")
    assert to_client(events) == SWITCH
    assert rest(events) == [Switched(client=b"client frame", upstream=b"server frame")]
    assert exchange.at is At.OVER


def test_d22_a_server_may_ignore_the_upgrade() -> None:
    exchange = opened(SOCKET, b"/ws", websocket=True)
    events = exchange.upstream_data(OK)
    assert to_client(events) == OK
    assert rest(events) == [ResponseEnded(200, reusable=True)]


@pytest.mark.parametrize("forged", [b"x", OK, b"\r\n"])
@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n",
        CHUNKED_OK + b"0\r\n\r\n",
    ],
)
def test_octets_behind_a_response_are_no_response(answer: bytes, forged: bytes) -> None:
    exchange = opened(GET, b"/a")
    events = exchange.upstream_data(answer + forged)
    assert to_client(events) == answer
    assert isinstance(rest(events)[0], ResponseEnded)
    assert not rest(events)[0].reusable  # type: ignore[union-attr]
    assert reasons(exchange.upstream_data(forged)) == [(AbortUpstream, Reason.UPSTREAM_PROTOCOL)]


def test_octets_before_a_request_are_no_response() -> None:
    assert reasons(Exchange().upstream_data(OK)) == [(AbortUpstream, Reason.UPSTREAM_PROTOCOL)]


def test_head_has_no_body_whatever_is_stated() -> None:
    exchange = opened(GET.replace(b"GET", b"HEAD"), b"/a")
    head = OK.removesuffix(b"ok")
    events = exchange.upstream_data(head)
    assert (to_client(events), rest(events)) == (head, [ResponseEnded(200, reusable=True)])
    assert exchange.idle


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "begin", [OK[:-1], CHUNKED_OK, CHUNKED_OK + b"2\r\no", CHUNKED_OK + b"2\r\nok\r\n", CHUNKED_OK + b"0\r\n"]
)
def test_a_response_that_is_cut_never_looks_whole(begin: bytes, clean: bool) -> None:
    exchange = opened(GET, b"/a")
    assert rest(exchange.upstream_data(begin)) == []
    assert reasons(exchange.upstream_end(clean=clean)) == [
        (AbortUpstream, Reason.UPSTREAM_CLOSED),
        (AbortClient, Reason.UPSTREAM_CLOSED),
    ]


def test_a_body_until_close_ends_cleanly_or_is_cut() -> None:
    for clean in (True, False):
        exchange = opened(GET, b"/a")
        assert to_client(exchange.upstream_data(UNTIL_CLOSE + b"data")) == closing(UNTIL_CLOSE) + b"data"
        events = exchange.upstream_end(clean=clean)
        if clean:
            assert rest(events) == [ResponseEnded(200, reusable=False), CloseClient()]
        else:
            assert reasons(events)[1] == (AbortClient, Reason.UPSTREAM_CLOSED)


def test_chunks_for_http_10_become_data_and_a_cut_is_still_a_cut() -> None:
    for end in (b"0\r\n\r\n", None):
        exchange = opened(GET.replace(b"1.1", b"1.0"), b"/a")
        assert to_client(exchange.upstream_data(CHUNKED_OK + b"2\r\nok\r\n")) == closing(UNTIL_CLOSE) + b"ok"
        if end is None:
            assert reasons(exchange.upstream_end())[1] == (AbortClient, Reason.UPSTREAM_CLOSED)
        else:
            events = exchange.upstream_data(end)
            assert (to_client(events), rest(events)) == (b"", [ResponseEnded(200, reusable=True), CloseClient()])


def test_d34_http_10_keeps_its_connection_where_it_asks_and_the_length_is_known() -> None:
    request = b"GET /a HTTP/1.0\r\nHost: api.example.com\r\nConnection: keep-alive\r\n\r\n"
    exchange = opened(request, b"/a")
    kept = OK.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
    events = exchange.upstream_data(OK)
    assert (to_client(events), rest(events)) == (kept, [ResponseEnded(200, reusable=True)])
    judged(exchange.client_data(request))
    allow(exchange)
    assert to_client(exchange.upstream_data(UNTIL_CLOSE)) == closing(UNTIL_CLOSE)
    assert rest(exchange.upstream_end())[1:] == [CloseClient()]


def test_connection_close_of_the_client_closes_after_the_answer() -> None:
    exchange = opened(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"/a")
    events = exchange.upstream_data(OK)
    assert (to_client(events), rest(events)) == (closing(OK), [ResponseEnded(200, reusable=True), CloseClient()])


def test_connection_close_of_the_upstream_is_not_the_clients() -> None:
    exchange = opened(GET, b"/a")
    events = exchange.upstream_data(closing(OK))
    assert (to_client(events), rest(events)) == (OK, [ResponseEnded(200, reusable=False)])
    assert exchange.idle


def test_an_upstream_that_we_will_not_keep_is_told_so() -> None:
    exchange = Exchange()
    judged(exchange.client_data(GET))
    assert to_upstream(allow(exchange, keep_upstream=False)) == closing(GET)
    assert rest(exchange.upstream_data(OK)) == [ResponseEnded(200, reusable=False)]


@pytest.mark.parametrize(
    ("request_octets", "heard", "repeatable"),
    [
        (GET, b"", True),
        (GET, b"HTTP", False),
        (POST + b"hello", b"", False),
        (GET.replace(b"GET", b"POST"), b"", False),
    ],
)
def test_a_kept_upstream_that_closed_may_be_replaced(request_octets: bytes, heard: bytes, repeatable: bool) -> None:
    exchange = opened(request_octets)
    if heard:
        assert exchange.upstream_data(heard) == []
    aborted, failed = exchange.upstream_end()
    assert isinstance(aborted, AbortUpstream)
    assert isinstance(failed, UpstreamFailed)
    assert (failed.refusal.reason, failed.repeatable) == (Reason.UPSTREAM_CLOSED, repeatable)
    if repeatable:
        assert to_upstream(allow(exchange)) == GET
        assert to_client(exchange.upstream_data(OK)) == OK
    else:
        assert to_client(exchange.deny(DENIAL)) == DENIAL


def test_a_spent_body_is_not_sent_twice() -> None:
    exchange = opened(POST + b"he")
    exchange.upstream_end()
    with pytest.raises(RuntimeError):
        allow(exchange, b"/p")
    assert to_client(exchange.deny(DENIAL)) == DENIAL


def test_a_dial_that_fails_is_answered() -> None:
    exchange = Exchange()
    exchange.client_data(GET)
    refusal = Refusal(Reason.CONNECT_REFUSED, "refused")
    assert exchange.upstream_failed(refusal) == [UpstreamFailed(refusal, repeatable=False)]
    assert to_client(exchange.deny(DENIAL)) == DENIAL


def test_d32_a_malformed_response_is_a_failure_and_not_an_answer() -> None:
    exchange = opened(GET, b"/a")
    events = exchange.upstream_data(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello")
    assert to_client(events) == b""
    assert reasons(events) == [(AbortUpstream, Reason.UPSTREAM_PROTOCOL), (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)]


def test_a_malformed_chunk_right_behind_the_head_can_still_be_answered() -> None:
    exchange = opened(GET, b"/a")
    events = exchange.upstream_data(CHUNKED_OK + b"5 \r\nhello\r\n")
    assert to_client(events) == b""
    assert reasons(events) == [(AbortUpstream, Reason.UPSTREAM_PROTOCOL), (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)]
    assert to_client(exchange.deny(DENIAL)) == DENIAL


def test_a_malformed_chunk_of_a_response_resets_both() -> None:
    exchange = opened(GET, b"/a")
    exchange.upstream_data(CHUNKED_OK)
    assert reasons(exchange.upstream_data(b"5 \r\nhello\r\n")) == [
        (AbortUpstream, Reason.UPSTREAM_PROTOCOL),
        (AbortClient, Reason.UPSTREAM_PROTOCOL),
    ]


def test_d17_each_request_of_a_connection_is_judged_with_its_own_authority() -> None:
    exchange = Exchange()
    first = judged(exchange.client_data(b"GET http://mirror.example/ HTTP/1.1\r\nHost: mirror.example\r\n\r\n"))
    allow(exchange, b"/")
    exchange.upstream_data(OK)
    second = judged(exchange.client_data(b"GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n"))
    assert (first.host, second.host) == (b"mirror.example", b"evil.com")


def test_limits_are_the_ones_given() -> None:
    exchange = Exchange(Limits(informational=0, fields=1))
    judged(exchange.client_data(GET))
    allow(exchange)
    assert reasons(exchange.upstream_data(CONTINUE))[1] == (UpstreamFailed, Reason.UPSTREAM_PROTOCOL)
    assert DEFAULT_LIMITS.informational == 10


def test_a_verdict_without_a_request_is_our_own_fault() -> None:
    exchange = Exchange()
    with pytest.raises(RuntimeError):
        allow(exchange)
    with pytest.raises(RuntimeError):
        exchange.deny(DENIAL)
    with pytest.raises(RuntimeError):
        exchange.tunnel()
