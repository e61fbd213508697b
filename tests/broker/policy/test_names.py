"""Host names: the tables of `tests/cases/names.toml`, and what holds for every text."""

import socket
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.policy.addresses import parse_address
from broker.policy.names import (
    HostName,
    SpecialName,
    classify_name,
    display_name,
    is_public_resolver,
    parse_config_name,
    parse_host_name,
)
from broker.policy.reasons import Reason, Refusal

CASES: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "cases" / "names.toml").read_text("utf-8"))


def refused(section: str) -> list[Any]:
    return [
        pytest.param(text, group["reason"], id=f"{group['kind']}: {text!a}")
        for group in CASES[section]
        for text in group["inputs"]
    ]


def assert_readable(refusal: Refusal) -> None:
    assert refusal.detail
    assert refusal.detail.isascii()
    assert refusal.detail.isprintable()
    assert len(refusal.detail) < 200


@pytest.mark.parametrize(("text", "name"), CASES["accepted"].items())
def test_client_name_has_one_spelling(text: str, name: str) -> None:
    assert parse_host_name(text) == name


@pytest.mark.parametrize(("text", "reason"), refused("refused"))
def test_client_name_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_host_name(text)
    assert caught.value.reason == reason
    assert_readable(caught.value)


@pytest.mark.parametrize(("text", "name"), CASES["config_accepted"].items())
def test_operator_name_becomes_a_labels(text: str, name: str) -> None:
    assert parse_config_name(text) == name


@pytest.mark.parametrize(("text", "reason"), refused("config_refused"))
def test_operator_name_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_config_name(text)
    assert caught.value.reason == reason
    assert_readable(caught.value)


@pytest.mark.parametrize("text", [row.values[0] for row in refused("refused") if str(row.values[0]).isascii()])
def test_operator_gets_no_more_than_a_client_in_ascii(text: str) -> None:
    with pytest.raises(Refusal):
        parse_config_name(text)


LONGEST_LABEL = "a" * 63
LONGEST_NAME = ".".join([LONGEST_LABEL] * 3 + ["a" * 61])


def test_longest_label_and_name_are_accepted() -> None:
    assert len(LONGEST_NAME) == 253
    assert parse_host_name(LONGEST_NAME) == LONGEST_NAME
    assert parse_host_name(LONGEST_NAME + ".") == LONGEST_NAME


@pytest.mark.parametrize("parse", [parse_host_name, parse_config_name])
@pytest.mark.parametrize(
    "text",
    [
        LONGEST_NAME + "a",
        LONGEST_NAME + "..",
        "a." * 127 + "a",
        "a." * 500_000,
        "é." * 500_000,
        "xn--" + "a" * 59 + "9" * 500,
        "é" * 60 + ".example",
        "1" * 4301,  # longer than the language converts to an integer
        "0x" + "0" * 10_000 + "7f000001",
    ],
    ids=lambda text: f"{text[:8]!a}… ({len(text)})",
)
def test_too_long_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(text)
    assert caught.value.reason is Reason.BAD_NAME


@pytest.mark.parametrize("parse", [parse_host_name, parse_config_name])
@pytest.mark.parametrize("text", ["\ud800", "a\udcffb.example", "\udfff.com", "bücher\udc80.example", "xn--\ud800"])
def test_lone_surrogates_are_refused(parse: Any, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(text)
    assert caught.value.reason is Reason.BAD_NAME
    assert_readable(caught.value)


@pytest.mark.parametrize(
    "code", [*range(0x2D), 0x2F, *range(0x3A, 0x41), *range(0x5B, 0x5F), 0x60, *range(0x7B, 0x100)]
)
@pytest.mark.parametrize("shape", ["{}", "a{}", "{}a", "a{}b.example", "a.example{}", "xn--bcher{}kva.example"])
def test_every_other_byte_is_refused_in_every_place(code: int, shape: str) -> None:
    with pytest.raises(Refusal):
        parse_host_name(shape.format(chr(code)))


def test_homographs_are_different_names() -> None:
    latin, cyrillic = parse_host_name("api.example.com"), parse_config_name("\N{CYRILLIC SMALL LETTER A}pi.example.com")
    assert latin != cyrillic


@pytest.mark.parametrize(("name", "shown"), CASES["display"].items())
def test_display_shows_the_wire_form_first(name: str, shown: str) -> None:
    assert display_name(parse_host_name(name)) == shown


def test_display_of_an_undecodable_record_is_the_record() -> None:
    assert display_name(HostName("xn--pokxncvks.example")) == "xn--pokxncvks.example"


SPECIAL = [(name, cls) for cls, names in CASES["special"].items() for name in names]


@pytest.mark.parametrize(("name", "cls"), SPECIAL)
def test_special_name_is_recognised_in_any_spelling(name: str, cls: str) -> None:
    assert classify_name(parse_host_name(name)) is SpecialName[cls]
    assert classify_name(parse_host_name(name.upper() + ".")) is SpecialName[cls]


@pytest.mark.parametrize("name", CASES["ordinary"]["names"][:-2])
def test_neighbours_of_special_names_are_ordinary(name: str) -> None:
    assert classify_name(parse_host_name(name)) is None


def test_every_class_has_names() -> None:
    assert set(CASES["special"]) == set(SpecialName.__members__)


def test_never_reachable_classes() -> None:
    never = {cls.name for cls in SpecialName if not cls.grantable}
    assert never == {"LOCALHOST", "METADATA", "DISCOVERY", "INFRASTRUCTURE", "INVALID"}


@pytest.mark.parametrize("host", CASES["resolvers"]["public"])
def test_public_resolver(host: str) -> None:
    assert is_public_resolver(parse_address(host) or parse_host_name(host))


@pytest.mark.parametrize("host", CASES["resolvers"]["others"])
def test_not_a_public_resolver(host: str) -> None:
    assert not is_public_resolver(parse_address(host) or parse_host_name(host))


# What holds for every text.

NAME_LIKE = st.text(alphabet=string.ascii_letters + string.digits + ".-_x", max_size=80)
NUMBER_LIKE = st.lists(
    st.one_of(
        st.integers(0, 2**33).map(str),
        st.integers(0, 2**33).map(hex),
        st.integers(0, 2**33).map(lambda n: f"0{n:o}"),
        st.integers(0, 300).map(lambda n: f"{n:010}"),
        st.sampled_from(["", "0x", "0X7F", "1_0", "08", "a", "example"]),
    ),
    min_size=1,
    max_size=6,
).map(".".join)
PUNYCODE_LIKE = st.text(alphabet=string.ascii_lowercase + string.digits + "-", max_size=40).map("xn--{}".format)
U_LABEL = st.text(min_size=1, max_size=12).map(lambda text: "xn--" + text.encode("punycode", "ignore").decode("ascii"))
ANY_TEXT = st.one_of(st.text(), NAME_LIKE, NUMBER_LIKE, PUNYCODE_LIKE, U_LABEL)


def parsed(parse: Any, text: str) -> HostName | None:
    """The name, or `None` where the text was refused; any other exception fails the test."""
    try:
        name: HostName = parse(text)
    except Refusal as caught:
        refusal = caught
    else:
        return name
    assert refusal.reason in {Reason.BAD_NAME, Reason.BAD_ADDRESS}
    assert_readable(refusal)
    return None


@settings(deadline=None)
@given(ANY_TEXT)
@example("127.0.0.1")
@example("0x7f.1")
@example("xn--bcher-kva.example.")
def test_parsing_is_total_and_idempotent(text: str) -> None:
    name = parsed(parse_host_name, text)
    if name is not None:
        assert parse_host_name(name) == name
        assert parse_config_name(name) == name
        assert set(name) <= set(string.ascii_lowercase + string.digits + ".-_")
        assert len(name) <= 253


@settings(deadline=None)
@given(st.one_of(ANY_TEXT, st.text(alphabet="\uff10\uff11\uff12\uff17\u2460\u3002\uff0e.x\uff58\xe9", max_size=12)))
def test_config_parsing_is_total_and_idempotent(text: str) -> None:
    name = parsed(parse_config_name, text)
    if name is not None:
        assert parse_host_name(name) == name


@settings(deadline=None)
@given(st.one_of(NUMBER_LIKE, NAME_LIKE, NUMBER_LIKE.map(lambda text: text + ".")))
def test_nothing_accepted_is_an_address_to_the_c_library(text: str) -> None:
    name = parsed(parse_host_name, text)
    if name is not None:
        with pytest.raises(OSError, match="illegal"):
            socket.inet_aton(name)
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo(name, 80, flags=socket.AI_NUMERICHOST)


@settings(deadline=None)
@given(ANY_TEXT)
def test_classes_and_display_are_total(text: str) -> None:
    name = parsed(parse_host_name, text)
    if name is not None:
        found = classify_name(name)
        assert found is None or isinstance(found, SpecialName)
        assert found is not None or "." in name
        assert display_name(name).startswith(name)
        assert is_public_resolver(name) in {True, False}


@settings(deadline=None)
@given(NAME_LIKE)
def test_below_a_never_reachable_zone_nothing_is_grantable(prefix: str) -> None:
    for zone in ("localhost", "invalid", "in-addr.arpa", "metadata.google.internal", "localdomain"):
        name = parsed(parse_host_name, f"{prefix}.{zone}")
        if name is not None:
            found = classify_name(name)
            assert found is not None
            assert not found.grantable
