"""The DNS codec: what it reads, byte-exact answers, and a second parser (dnspython) that must read them too."""

import struct
import tomllib
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.reasons import Reason, Refusal
from broker.wire.dns import (
    QUERY_MAX,
    Malformed,
    Query,
    Rcode,
    answer_address,
    answer_empty,
    answer_error,
    format_frame,
    parse_query,
    take_frame,
)
from broker.wire.synthetic import SyntheticZone, respond

CASES = tomllib.loads((Path(__file__).parents[2] / "cases/dns_queries.toml").read_text())["case"]
NAME = b"\x03api\x07example\0".hex()
ADDRESS = IPv4Address("198.18.0.1")


def read(packet: bytes) -> Query:
    query = parse_query(packet)
    assert isinstance(query, Query)
    return query


def ask(name: str, qtype: str = "A", **options: Any) -> bytes:
    return dns.message.make_query(name, qtype, **options).to_wire(max_size=65535)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_table(case: dict[str, Any]) -> None:
    packet = bytes.fromhex(case["packet"].replace("NAME", NAME))
    answer = respond(packet, SyntheticZone(), reserved=lambda _: False)
    if case.get("drop"):
        assert answer is None
        return
    assert answer is not None
    message = dns.message.from_wire(answer)
    assert dns.rcode.to_text(message.rcode()) == case["rcode"]
    assert message.id == 0x1234
    assert message.flags & dns.flags.QR
    assert message.opcode() == packet[2] >> 3 & 0xF
    assert bool(message.flags & dns.flags.RD) == bool(packet[2] & 1)


def test_query_fields() -> None:
    query = read(ask("aPi.ExAmple.com", "AAAA", use_edns=0, payload=4000))
    assert query.name == "api.example.com"
    assert query.question == b"\x03aPi\x07ExAmple\x03com\0" + struct.pack(">HH", 28, 1)
    assert (query.qtype, query.qclass, query.edns, query.udp_size) == (28, 1, True, 4000)
    assert query.recursion_desired
    assert read(ask("a.example")).udp_size == 512
    assert read(ask("a.example", use_edns=0, payload=100)).udp_size == 512
    assert read(ask(".")).name == ""


def test_address_answer_byte_by_byte() -> None:
    packet = bytes.fromhex("abcd 0110 0001 0000 0000 0000") + b"\x01A\x02eX\0\0\x01\0\x01"
    assert answer_address(read(packet), ADDRESS, 60) == (
        bytes.fromhex("abcd 8190 0001 0001 0000 0000")
        + b"\x01A\x02eX\0\0\x01\0\x01"
        + bytes.fromhex("c00c 0001 0001 0000003c 0004 c6120001")
    )


def test_negative_answers_carry_the_time_they_may_be_kept() -> None:
    for answer in (answer_empty(read(ask("a.example")), 30), answer_error(read(ask("a.example")), Rcode.NXDOMAIN, 30)):
        (soa,) = dns.message.from_wire(answer).authority
        assert (soa.rdtype, soa.ttl, soa[0].minimum) == (dns.rdatatype.SOA, 30, 30)


@pytest.mark.parametrize("edns", [-1, 0])
def test_opt_record_comes_back_exactly_when_one_was_sent(edns: int) -> None:
    query = read(
        ask("a.example", use_edns=edns, options=[dns.edns.GenericOption(dns.edns.OptionType.COOKIE, b"12345678")])
    )
    for answer in (answer_address(query, ADDRESS, 1), answer_empty(query), answer_error(query, Rcode.NOTIMP)):
        message = dns.message.from_wire(answer)
        assert message.edns == edns
        assert message.options == ()


def test_bad_edns_version_is_said_with_our_own() -> None:
    message = dns.message.from_wire(answer_error(read(ask("a.example", use_edns=1)), Rcode.BADVERS))
    assert (message.rcode(), message.edns) == (dns.rcode.BADVERS, 0)


def test_longest_name_is_read_and_one_byte_more_is_not() -> None:
    header, tail = bytes.fromhex("0001 0100 0001 0000 0000 0000"), bytes.fromhex("00 0001 0001")
    longest = (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61
    assert len(longest) + 1 == 255
    query = read(header + longest + tail)
    assert len(query.name or "") == 253
    assert len(answer_address(query, ADDRESS, 1)) <= 512
    assert isinstance(parse_query(header + longest + b"\x01a" + tail), Malformed)
    assert isinstance(parse_query(header + b"\x01a" * 200 + tail), Malformed)


def test_oversized_query_is_malformed() -> None:
    fits = ask(
        "a.example", use_edns=0, options=[dns.edns.GenericOption(dns.edns.OptionType.PADDING, bytes(QUERY_MAX - 42))]
    )
    assert len(fits) == QUERY_MAX
    assert isinstance(parse_query(fits), Query)
    padded = ask(
        "a.example", use_edns=0, options=[dns.edns.GenericOption(dns.edns.OptionType.PADDING, bytes(QUERY_MAX - 41))]
    )
    assert isinstance(parse_query(padded), Malformed)


@given(
    st.lists(st.binary(min_size=1, max_size=63), max_size=3),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
    st.sampled_from([-1, 0]),
)
def test_every_question_that_dnspython_writes_is_read_and_echoed(
    labels: list[bytes], qtype: int, qclass: int, edns: int
) -> None:
    name = dns.name.Name([*labels, b""])
    question = (name.to_wire() or b"") + struct.pack(">HH", qtype, qclass)
    opt = b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0) if edns == 0 else b""
    query = read(struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, len(opt) > 0) + question + opt)
    assert query.question == question
    if query.name is not None:
        found = query.name.encode().split(b".") if query.name else []  # no text form: that has escapes
        assert dns.name.Name([*found, b""]) == name
    for answer in (answer_empty(query, 5), answer_error(query, Rcode.REFUSED), answer_error(query, Rcode.NXDOMAIN)):
        assert dns.message.from_wire(answer, ignore_trailing=False).id == 7
        assert answer[12 : 12 + len(question)] == question


QUERIES = [ask("api.example.com"), ask("api.example.com", use_edns=0), ask(".", "NS"), ask("localhost", "AAAA")]


@given(
    st.sampled_from([b"", *QUERIES]),
    st.lists(st.tuples(st.integers(0, 70), st.binary(min_size=1, max_size=3)), max_size=5),
    st.binary(max_size=80),
)
def test_any_packet_gets_a_readable_answer_or_none(start: bytes, edits: list[tuple[int, bytes]], rest: bytes) -> None:
    packet = bytearray(start)
    for at, bytes_there in edits:
        packet[at : at + len(bytes_there)] = bytes_there
    packet += rest if not start else b""
    answer = respond(bytes(packet), SyntheticZone(), reserved=lambda name: name == "localhost")
    if answer is None:
        assert len(packet) < 12 or packet[2] & 0x80
        return
    message = dns.message.from_wire(answer, ignore_trailing=False)
    assert message.id == int.from_bytes(packet[:2])
    assert message.flags & dns.flags.QR
    assert len(answer) <= 512


def test_tcp_frames() -> None:
    first, second = ask("a.example"), ask("b.example")
    stream = format_frame(first) + format_frame(second)
    taken = take_frame(stream)
    assert taken == (first, len(first) + 2)
    assert take_frame(stream[taken[1] :]) == (second, len(second) + 2)
    assert all(take_frame(format_frame(first)[:size]) is None for size in range(len(first) + 2))


@pytest.mark.parametrize("size", [0, 1, 11, QUERY_MAX + 1, 0xFFFF])
def test_tcp_length_that_no_query_has_is_refused_from_its_two_bytes(size: int) -> None:
    with pytest.raises(Refusal) as caught:
        take_frame(size.to_bytes(2))
    assert caught.value.reason is Reason.BAD_FRAMING
