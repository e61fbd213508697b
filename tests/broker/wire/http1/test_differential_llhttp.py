"""The same property with llhttp, the parser of Node.js, as the second reader of what is sent upstream."""

import tomllib
from pathlib import Path

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.policy.authority import parse_authority
from broker.policy.reasons import Refusal
from broker.wire.http1.events import ClientRefused, Event, Judge, SendUpstream
from broker.wire.http1.exchange import Exchange
from broker.wire.http1.heads import RequestHead

CASES = Path(__file__).parents[3] / "cases"
ACCEPTED = tomllib.loads((CASES / "http1_requests_accepted.toml").read_text())["case"]
CHUNKED = tomllib.loads((CASES / "http1_chunked.toml").read_text())
AUTHORITY = parse_authority(b"api.example.com", default_port=443)
FRAGMENTS = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\x00",
    b"\x0b",
    b":",
    b" :",
    b",",
    b";",
    b"0",
    b"5;x",
    b"\r\n ",
    b"\r\nX",
]


class Reading:
    """What llhttp finds: the target, the fields and the body of the first message, and how many were whole."""

    def __init__(self) -> None:
        self.target = self.body = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.trailers: list[tuple[bytes, bytes]] = []
        self.headed = False
        self.whole = 0

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        (self.trailers if self.headed else self.fields).append((name, value))

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.whole += 1


def through(octets: bytes) -> tuple[RequestHead | None, bytes, bool]:
    """The first request among the octets: its head, what is sent for it, and whether it is whole."""
    exchange = Exchange()
    sent: list[bytes | memoryview] = []
    first: RequestHead | None = None
    whole = False
    todo: list[Event] = exchange.client_data(octets)
    while todo:
        match todo.pop(0):
            case Judge(head):
                first = head
                path = head.target if head.target.startswith(b"/") else b"/"
                todo += exchange.allow(scheme="https", authority=AUTHORITY, path=path)
            case SendUpstream(pieces):
                sent += pieces
            case ClientRefused():
                return first, b"".join(sent), False
            case _:
                whole = True
    return first, b"".join(sent), whole


def read(octets: bytes) -> tuple[Reading, bytes]:
    reading = Reading()
    parser = httptools.HttpRequestParser(reading)
    parser.feed_data(octets)
    return reading, parser.get_method()


def agree(octets: bytes) -> None:
    head, sent, whole = through(octets)
    # llhttp knows a fixed set of methods; another one says nothing about the framing
    if head is None or head.method not in {"GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"}:
        return
    reading, method = read(sent)
    assert method.decode() == head.method
    assert reading.target == (head.target if head.target.startswith(b"/") else b"/")
    assert reading.whole == whole
    names = [name.lower() for name, _ in reading.fields]
    assert names.count(b"host") == 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    values = {(name.lower(), value) for name, value in head.fields}
    assert not {b"host", b"content-length", b"transfer-encoding"} & {name.lower() for name, _ in reading.trailers}
    for name, value in reading.fields:
        rewritten = {b"host", b"content-length", b"transfer-encoding", b"expect"}
        assert name.lower() in rewritten or (name.lower(), value) in values


def _valid() -> list[bytes]:
    post = b"POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"
    heads = [case["head"].encode("latin-1") + b"5\r\nhello\r\n0\r\n\r\n" for case in ACCEPTED]
    return heads + [post + row[1].encode("latin-1") for row in CHUNKED["passed"] + CHUNKED["refused"]]


VALID = _valid()


@pytest.mark.parametrize("octets", VALID, ids=range(len(VALID)))
def test_llhttp_reads_what_is_sent_for_the_tables(octets: bytes) -> None:
    agree(octets)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 3), st.sampled_from(FRAGMENTS) | st.binary(max_size=2)),
        max_size=4,
    ),
)
def test_llhttp_reads_what_is_sent_for_noise(octets: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    noise = bytearray(octets)
    for place, length, fragment in edits:
        noise[place : place + length] = fragment
    try:
        agree(bytes(noise))
    except Refusal as refusal:  # the exchange answers with events, never with an exception
        raise AssertionError("a refusal got out of the exchange") from refusal
