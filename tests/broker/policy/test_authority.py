"""Authorities and absolute-form targets: the tables of `tests/cases/authorities.toml`, and what holds for all bytes."""

import string
import tomllib
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.policy.authority import Authority, parse_absolute_form, parse_authority, parse_host
from broker.policy.names import parse_host_name
from broker.policy.reasons import Reason, Refusal

CASES: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "cases" / "authorities.toml").read_text("utf-8"))
REASONS = {
    Reason.BAD_AUTHORITY,
    Reason.BAD_NAME,
    Reason.BAD_ADDRESS,
    Reason.BAD_PORT,
    Reason.BAD_REQUEST,
    Reason.SCHEME_REFUSED,
}


def refused(section: str) -> list[Any]:
    return [
        pytest.param(text.encode(), group["reason"], id=f"{group['kind']}: {text!a}")
        for group in CASES[section]
        for text in group["inputs"]
    ]


def assert_readable(refusal: Refusal) -> None:
    assert refusal.reason in REASONS
    assert refusal.reason.status == 400
    assert refusal.detail
    assert refusal.detail.isascii()
    assert refusal.detail.isprintable()
    assert len(refusal.detail) < 200


@pytest.mark.parametrize(("text", "canonical"), CASES["accepted"].items())
def test_authority_has_one_spelling(text: str, canonical: str) -> None:
    assert str(parse_authority(text.encode(), default_port=None)) == canonical
    assert str(parse_authority(text.encode(), default_port=1)) == canonical


@pytest.mark.parametrize(
    ("text", "port", "canonical"),
    [(text, row["port"], canonical) for row in CASES["default"] for text, canonical in row["inputs"].items()],
)
def test_default_port(text: str, port: int, canonical: str) -> None:
    assert str(parse_authority(text.encode(), default_port=port)) == canonical


@pytest.mark.parametrize(("raw", "reason"), refused("refused"))
def test_authority_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_authority(raw, default_port=None)
    assert caught.value.reason == reason
    assert_readable(caught.value)


@pytest.mark.parametrize(("raw", "reason"), [row for row in refused("refused") if row.id.split(":")[0] != "A10"])
def test_a_default_port_repairs_nothing(raw: bytes, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_authority(raw, default_port=443)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff:443",
        b"a\x80.example:443",
        b"\xc0\xae:443",
        b"b\xfccher.example:443",
        b"a:\xb2",
        b"[\xff]:443",
        b"\xed\xa0\x80:1",
    ],
)
def test_bytes_that_are_no_text_are_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parse_authority(raw, default_port=443)
    assert caught.value.reason is Reason.BAD_NAME


@pytest.mark.parametrize(
    "raw",
    [
        b"a" * 300,
        b"a:" + b"0" * 1_000_000 + b"443",
        b"a:" + b"4" * 5000,
        b"[" * 100_000,
        b"@" * 100_000,
        b"a." * 500_000,
    ],
    ids=len,
)
def test_long_input_is_refused_at_once(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parse_authority(raw, default_port=443)
    assert caught.value.reason is Reason.BAD_AUTHORITY


def test_the_longest_name_and_port_fit() -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert str(parse_authority(f"{name}.:65535".encode(), default_port=None)) == f"{name}:65535"


def test_userinfo_never_shows_in_the_detail() -> None:
    for raw in (b"user:hunter2@api.example.com:443", b"hunter2@[::1]:1", b"a:hunter2@b"):
        with pytest.raises(Refusal) as caught:
            parse_authority(raw, default_port=443)
        assert "hunter2" not in str(caught.value)


def test_equal_destinations_are_equal_values() -> None:
    assert len({parse_authority(raw, default_port=443) for raw in (b"A.example.", b"a.example:443", b"a.EXAMPLE")}) == 1
    assert parse_authority(b"[::ffff:8.8.8.8]:1", default_port=None) == Authority(IPv4Address("8.8.8.8"), 1)
    assert parse_authority(b"a.example:1", default_port=None) != parse_authority(b"a.example:2", default_port=None)


def test_an_authority_cannot_hold_a_mapped_address_or_a_zone() -> None:
    assert Authority(IPv6Address("::ffff:10.0.0.1"), 443) == Authority(IPv4Address("10.0.0.1"), 443)
    assert str(Authority(IPv6Address("fe80::1%eth0"), 443)) == "[fe80::1]:443"


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_authority_cannot_hold_an_impossible_port(port: int) -> None:
    with pytest.raises(ValueError, match="no port"):
        Authority(IPv4Address("10.0.0.1"), port)


def test_literals_are_told_from_names() -> None:
    assert parse_authority(b"8.8.8.8:1", default_port=None).is_literal
    assert parse_authority(b"[2001:db8::1]:1", default_port=None).is_literal
    assert not parse_authority(b"8.8.8.8.nip.io:1", default_port=None).is_literal


def test_host_alone() -> None:
    assert parse_host("API.example.com.") == parse_host_name("api.example.com")
    assert parse_host("[::1]") == IPv6Address("::1")
    assert parse_host("10.0.0.1") == IPv4Address("10.0.0.1")
    for text in ("::1", "[10.0.0.1]", "[]", "[", "10.1", "a:80", "[::1]:80", "[::1%lo]"):
        with pytest.raises(Refusal):
            parse_host(text)


@pytest.mark.parametrize(("text", "parts"), CASES["targets"].items())
def test_target_is_split(text: str, parts: list[str]) -> None:
    scheme, authority, rest = parse_absolute_form(text.encode())
    assert [scheme, str(authority), rest.decode()] == parts


@pytest.mark.parametrize(("text", "parts"), CASES["targets_with_https"].items())
def test_target_is_split_where_https_is_served(text: str, parts: list[str]) -> None:
    scheme, authority, rest = parse_absolute_form(text.encode(), schemes={"http", "https"})
    assert [scheme, str(authority), rest.decode()] == parts


@pytest.mark.parametrize(("raw", "reason"), refused("targets_refused"))
def test_target_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_absolute_form(raw)
    assert caught.value.reason == reason
    assert_readable(caught.value)


# What holds for all bytes.

ALPHABET = string.ascii_letters + string.digits + ".:-_[]@%/\\?# "
BYTES = st.one_of(st.binary(max_size=60), st.text(alphabet=ALPHABET, max_size=60).map(str.encode))
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map("[{}]".format),
    st.from_regex(r"[a-zA-Z0-9_]{1,8}(\.[a-zA-Z0-9_-]{1,8}){0,3}\.?", fullmatch=True),
)
AUTHORITIES = st.tuples(HOSTS, st.integers(0, 70_000)).map(lambda pair: f"{pair[0]}:{pair[1]}".encode())


@settings(deadline=None)
@given(st.one_of(BYTES, AUTHORITIES))
@example(b"[::ffff:8.8.8.8]:443")
def test_parsing_is_total_and_idempotent(raw: bytes) -> None:
    try:
        authority = parse_authority(raw, default_port=443)
    except Refusal as caught:
        refusal = caught
    else:
        assert parse_authority(str(authority).encode(), default_port=None) == authority
        assert 1 <= authority.port <= 65535
        return
    assert_readable(refusal)


@settings(deadline=None)
@given(st.one_of(BYTES, st.tuples(AUTHORITIES, BYTES).map(lambda pair: b"http://" + pair[0] + pair[1])))
def test_a_second_parser_reads_the_same_target(target: bytes) -> None:
    """What is accepted means the same host, port and path to the standard library's lenient parser."""
    try:
        _, authority, rest = parse_absolute_form(target)
    except Refusal as caught:
        refusal = caught
    else:
        other = urlsplit(target.decode("latin-1"))
        assert other.username is None
        assert not other.fragment
        assert (other.port or 80) == authority.port
        host = f"[{other.hostname}]" if ":" in (other.hostname or "") else other.hostname
        assert parse_host(host or "") == authority.host
        assert rest.startswith(b"/")
        assert target.endswith((rest, rest[1:]))
        return
    assert_readable(refusal)
