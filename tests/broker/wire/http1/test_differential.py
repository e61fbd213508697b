"""What is sent on is read by a second strict parser (h11) exactly as it was judged, for tables and for noise.

The noise is made of valid messages cut, spliced and mixed with the octets that parsers disagree about. Whatever comes
through the exchange must be, for h11, the same number of messages with the same methods, targets, fields and bodies.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.policy.authority import Authority, parse_authority
from broker.policy.reasons import Refusal
from broker.wire.http1.bodies import Chunked, Length, NoBody
from broker.wire.http1.events import (
    AbortClient,
    AbortUpstream,
    ClientRefused,
    Event,
    Judge,
    RequestSent,
    ResponseEnded,
    SendClient,
    SendUpstream,
    UpstreamFailed,
)
from broker.wire.http1.exchange import At, Exchange
from broker.wire.http1.fields import REQUEST_PREFIXES, REQUEST_USES, is_second_spelling
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.targets import AuthorityForm, classify_target, request_authority

CASES = Path(__file__).parents[3] / "cases"
ACCEPTED = tomllib.loads((CASES / "http1_requests_accepted.toml").read_text())["case"]
REFUSED = tomllib.loads((CASES / "http1_requests_refused.toml").read_text())
RESPONSES = tomllib.loads((CASES / "http1_responses.toml").read_text())
CHUNKED = tomllib.loads((CASES / "http1_chunked.toml").read_text())
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
MAXIMUM = 1 << 20


@dataclass(slots=True)
class Message:
    """One message as some parser reads it; names in lower case."""

    start: tuple[bytes, ...]
    fields: list[tuple[bytes, bytes]]
    body: bytes = b""
    trailers: tuple[tuple[bytes, bytes], ...] = ()
    whole: bool = False


@dataclass(slots=True)
class Journey:
    """What became of some octets of a client: the judged heads, and what the upstream was sent."""

    heads: list[RequestHead]
    authorities: list[Authority]
    sent: bytes
    whole: int
    cut: bool


class Traveller:
    """Sends octets of a client through an exchange; every request is allowed and answered at once."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.journey = Journey([], [], b"", 0, False)

    def carry_out(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Judge(head):
                    self.carry_out(self.judge(head))
                case SendUpstream(pieces):
                    self.journey.sent += b"".join(pieces)
                case RequestSent():
                    self.journey.whole += 1
                    self.carry_out(self.exchange.upstream_data(OK))
                case AbortUpstream():
                    self.journey.cut = True
                case _:
                    pass

    def judge(self, head: RequestHead) -> list[Event]:
        try:
            target = classify_target(head)
            authority = request_authority(head, target, "https")
        except Refusal:
            return self.exchange.deny(b"")
        assert not isinstance(target, AuthorityForm)
        self.journey.heads.append(head)
        self.journey.authorities.append(authority)
        return self.exchange.allow(scheme="https", authority=authority, path=target.path)


def travel(segments: Sequence[bytes]) -> Journey:
    traveller = Traveller()
    for segment in segments:
        if traveller.exchange.at is not At.OVER:
            traveller.carry_out(traveller.exchange.client_data(segment))
    return traveller.journey


def cut(octets: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(octets) + 1) for place in places})
    return [octets[begin:end] for begin, end in zip([0, *ends], [*ends, len(octets)], strict=True)]


def read_requests(octets: bytes) -> list[Message]:
    """The requests that h11 finds; it raises for what it refuses. The last one may not be whole."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=MAXIMUM)
    if octets:
        server.receive_data(octets)
    found: list[Message] = []
    while True:
        event = server.next_event()
        match event:
            case h11.Request():
                found.append(Message((event.method, event.target), list(event.headers)))
            case h11.Data():
                found[-1].body += bytes(event.data)
            case h11.EndOfMessage():
                found[-1].whole = True
                found[-1].trailers = tuple(event.headers)
                if server.our_state is h11.SEND_RESPONSE:
                    server.send(h11.Response(status_code=204, headers=[]))
                    server.send(h11.EndOfMessage())
                if server.states != {h11.SERVER: h11.DONE, h11.CLIENT: h11.DONE}:
                    return found
                server.start_next_cycle()
            case _:
                assert event is h11.NEED_DATA or event is h11.PAUSED
                return found


def agree(journey: Journey) -> None:
    """The second reading is what was judged."""
    read = read_requests(journey.sent)
    assert len(read) == len(journey.heads)
    assert sum(message.whole for message in read) == journey.whole
    for message, head, authority in zip(read, journey.heads, journey.authorities, strict=True):
        target = classify_target(head)
        assert not isinstance(target, AuthorityForm)
        assert message.start == (head.method.encode(), target.path)
        hosts = [value for name, value in message.fields if name == b"host"]
        assert [parse_authority(host, default_port=443) for host in hosts] == [authority]
        assert plain(message.fields) == kept(head)
        framing = [field for field in message.fields if field[0] in {b"content-length", b"transfer-encoding"}]
        match head.body:
            case NoBody():
                assert framing == []
            case Length(n):
                assert framing == [(b"content-length", b"%d" % n)]
                assert len(message.body) == n or not message.whole
            case Chunked():
                assert framing == [(b"transfer-encoding", b"chunked")]
        hidden = {b"connection", b"upgrade", b"via", b"te", b"keep-alive", b"forwarded", b"trailer"}
        assert not hidden & {name for name, _ in message.fields}


def plain(fields: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [field for field in fields if field[0] not in REQUEST_USES]


def kept(head: RequestHead) -> list[tuple[bytes, bytes]]:
    lower = [(name.lower(), value) for name, value in head.fields]
    return [
        (name, value)
        for name, value in lower
        if name not in REQUEST_USES
        and name not in head.connection
        and not name.startswith(REQUEST_PREFIXES)
        and not is_second_spelling(name)
    ]


def _valid_requests() -> list[bytes]:
    bodies = {"none": b"", "chunked": b"5;x=y\r\nhello\r\n0\r\nX-Sum: 1\r\nHost: evil.example\r\n\r\n"}
    found = []
    for case in ACCEPTED:
        body = case.get("body", "none")
        if len(body) > 10:
            continue
        found.append(case["head"].encode("latin-1") + (bodies[body] if body in bodies else b"b" * int(body)))
    post = b"POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"
    return found + [post + row[1].encode("latin-1") for row in CHUNKED["passed"] + CHUNKED["refused"]]


VALID = _valid_requests()
HOSTILE = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\n\n",
        b"\r\n ",
        b" ",
        b"\t",
        b"\x0b",
        b"\x00",
        b"\x7f",
        b"\x85",
        b"\xff",
        b":",
    ),
    *(
        b" :",
        b",",
        b";",
        b"0",
        b"5",
        b"0\r\n\r\n",
        b"chunked",
        b"\r\nContent-Length: 5",
        b"\r\nTransfer-Encoding: chunked",
    ),
    *(
        b"\r\nHost: evil.example",
        b"\r\nConnection: close, X",
        b"\r\nExpect: 100-continue",
        b"GET / HTTP/1.1\r\n",
        b"HTTP/1.0",
    ),
    *(
        b"\r\nTransfer-Encoding:\x0bchunked",
        b"\r\nContent-Length: 0",
        b"\r\nX: a\r\n\tb",
        b"\r\nTrailer: X",
        b"?",
        b"//",
        b"#",
    ),
    *(
        b"\r\nUpgrade: websocket\r\nConnection: Upgrade",
        b"\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"%0d%0a",
    ),
]


@st.composite
def noise(draw: st.DrawFn) -> bytes:
    """A few requests in a row with a few cuts and insertions."""
    octets = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(octets)))
        octets[place : place + draw(st.integers(0, 3))] = draw(st.sampled_from(HOSTILE) | st.binary(max_size=2))
    return bytes(octets)


@pytest.mark.parametrize("octets", VALID, ids=range(len(VALID)))
def test_h11_reads_what_is_sent_for_the_tables(octets: bytes) -> None:
    journey = travel([octets + GET])
    agree(journey)
    if not journey.heads[0].keep_alive or journey.cut:
        return
    assert journey.heads[-1].target == b"/"


@pytest.mark.parametrize("key", ["heads", "fields", "posts"])
def test_nothing_is_sent_for_a_refused_request(key: str) -> None:
    start = {"heads": b"", "fields": GET[:-2], "posts": GET[:-2].replace(b"GET", b"POST")}[key]
    for _, octets, _ in REFUSED[key]:
        whole = start + octets.encode("latin-1") + (b"" if key == "heads" else b"\r\n")
        assert travel([whole + GET]).sent == b""


@settings(max_examples=400, deadline=None)
@given(noise(), st.lists(st.integers(0, 400), max_size=3))
@example(b"\r\n" + GET, [1])
def test_h11_reads_what_is_sent_for_noise(octets: bytes, places: list[int]) -> None:
    whole = travel([octets])
    agree(whole)
    split = travel(cut(octets, places))
    assert (split.heads, split.whole) == (whole.heads, whole.whole)
    agree(split)
    if not whole.cut:
        assert split.sent == whole.sent


NAMES = st.sampled_from(
    [
        b"X-A",
        b"Content-Length",
        b"content-type",
        b"Set-Cookie",
        b"Connection",
        b"Transfer-Encoding",
        b"Host",
        b"TE",
        b"Via",
    ]
) | st.from_regex(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}", fullmatch=True)
VALUES = st.from_regex(
    rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]{0,20}[\x21-\x7e\x80-\xff])?)?", fullmatch=True
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.sampled_from([b"", b" ", b"\t", b" \t "]))
def test_any_legal_field_arrives_as_it_was_judged(fields: list[tuple[bytes, bytes]], blank: bytes) -> None:
    lines = b"".join(b"%b:%b%b%b\r\n" % (name, blank, value, blank) for name, value in fields)
    journey = travel([b"GET /a?b HTTP/1.1\r\nHost: api.example.com\r\n" + lines + b"\r\n"])
    agree(journey)
    special = {name.lower() for name, _ in fields} & REQUEST_USES.keys()
    if not special:
        assert len(journey.heads) == 1


def read_response(octets: bytes, method: bytes, *, closed: bool) -> list[Message]:
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAXIMUM)
    client.send(h11.Request(method=method, target=b"/", headers=[(b"Host", b"a")]))
    client.send(h11.EndOfMessage())
    if octets:  # to h11, no octets are the end of the connection
        client.receive_data(octets)
    if closed:
        client.receive_data(b"")
    found: list[Message] = []
    while True:
        event = client.next_event()
        match event:
            case h11.InformationalResponse() | h11.Response():
                found.append(Message((b"%d" % event.status_code,), list(event.headers)))
            case h11.Data():
                found[-1].body += bytes(event.data)
            case h11.EndOfMessage():
                found[-1].whole = True
                found[-1].trailers = tuple(event.headers)
                assert client.trailing_data[0] == b""
                return found
            case _:
                assert event is h11.NEED_DATA
                return found


def answer(octets: bytes, method: bytes, places: Sequence[int] = ()) -> tuple[bytes, bool, bool]:
    """What a client is sent for an upstream's octets: them, whether the response is whole, whether it was a failure."""
    exchange = Exchange()
    exchange.client_data(GET.replace(b"GET", method))
    exchange.allow(scheme="https", authority=parse_authority(b"api.example.com", default_port=443), path=b"/")
    events: list[Event] = []
    for part in cut(octets, places):
        if exchange.at is At.SENT:
            events += exchange.upstream_data(part)
    if exchange.at is At.SENT:
        events += exchange.upstream_end()
    sent = b"".join(piece for event in events if isinstance(event, SendClient) for piece in event.pieces)
    failed = any(isinstance(event, UpstreamFailed | AbortClient | ClientRefused) for event in events)
    return sent, any(isinstance(event, ResponseEnded) for event in events), failed


def _valid_responses() -> list[bytes]:
    heads = [case["head"].encode("latin-1") for case in RESPONSES["case"] if case.get("method") != "CONNECT"]
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return (
        [head + b"0123456" for head in heads if b"101" not in head]
        + [b"HTTP/1.1 103 Hint\r\nLink: <x>\r\n\r\n" + head + b"012" for head in heads]
        + [chunked + row[1].encode("latin-1") for row in CHUNKED["passed"] + CHUNKED["refused"]]
    )


VALID_RESPONSES = _valid_responses()


@st.composite
def response_noise(draw: st.DrawFn) -> bytes:
    octets = bytearray(draw(st.sampled_from(VALID_RESPONSES)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(octets)))
        octets[place : place + draw(st.integers(0, 3))] = draw(st.sampled_from(HOSTILE) | st.binary(max_size=2))
    return bytes(octets)


@settings(max_examples=400, deadline=None)
@given(response_noise(), st.sampled_from([b"GET", b"HEAD", b"POST"]), st.lists(st.integers(0, 200), max_size=3))
def test_a_client_reads_one_response_whatever_the_upstream_sends(
    octets: bytes, method: bytes, places: list[int]
) -> None:
    sent, whole, failed = answer(octets, method, places)
    at_once, whole_at_once, _ = answer(octets, method)
    assert whole is whole_at_once
    if whole:
        assert sent == at_once
    assert whole is not failed
    closed = b"connection: close" in sent.lower()
    read = read_response(sent, method, closed=whole and closed)
    if whole:
        assert read[-1].whole
        assert all(code.startswith(b"1") for message in read[:-1] for code in message.start)
        names = [name for name, _ in read[-1].fields]
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        assert not {b"alt-svc", b"keep-alive", b"upgrade"} & set(names)
    else:
        assert not any(message.whole for message in read)


@pytest.mark.parametrize("octets", VALID_RESPONSES, ids=range(len(VALID_RESPONSES)))
def test_a_client_reads_the_responses_of_the_tables(octets: bytes) -> None:
    for method in (b"GET", b"HEAD"):
        sent, whole, _ = answer(octets, method)
        read = read_response(sent, method, closed=whole and b"Connection: close" in sent)
        assert whole is (bool(read) and read[-1].whole)
