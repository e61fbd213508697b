"""The address guard: the tables of `tests/cases/addresses.toml`, and what holds for every address."""

import ipaddress
import socket
import tomllib
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.policy.address_registry import REGISTRY
from broker.policy.addresses import (
    Address,
    AddressClass,
    Opening,
    canonical_address,
    classify_address,
    embedded_addresses,
    judge_answers,
    parse_address,
    parse_network,
    unwrap_address,
)
from broker.policy.reasons import Reason, Refusal

CASES: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "cases" / "addresses.toml").read_text("utf-8"))


def inputs(section: str) -> list[Any]:
    return [pytest.param(text, id=f"{group['kind']}: {text!a}") for group in CASES[section] for text in group["inputs"]]


@pytest.mark.parametrize(("text", "shown"), CASES["parsed"].items())
def test_strict_literal(text: str, shown: str) -> None:
    assert str(parse_address(text)) == str(ip_address(shown))


@pytest.mark.parametrize("text", inputs("not_parsed"))
def test_other_notations_are_no_addresses(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize(("text", "shown"), CASES["networks"].items())
def test_network(text: str, shown: str) -> None:
    assert str(parse_network(text)) == shown


@pytest.mark.parametrize("text", inputs("not_networks"))
def test_not_a_network(text: str) -> None:
    assert parse_network(text) is None


BLOCKS = [(ip_network(text), AddressClass[cls]) for cls, texts in CASES["blocks"].items() for text in texts]


def expected_class(address: Address) -> AddressClass | None:
    """The class by the transcribed blocks: of the longest one that contains the address."""
    found = [(block.prefixlen, cls) for block, cls in BLOCKS if address in block]
    return max(found, key=lambda row: row[0])[1] if found else None


@pytest.mark.parametrize(("block", "cls"), BLOCKS, ids=str)
def test_ends_of_each_block(block: IPv4Network | IPv6Network, cls: AddressClass) -> None:
    for address in (block[0], block[-1], block[block.num_addresses // 2]):
        assert classify_address(address) is not AddressClass.PUBLIC
        narrower = any(address in other and other.prefixlen > block.prefixlen for other, _ in BLOCKS)
        carries = bool(embedded_addresses(address))
        if not narrower and not carries:
            assert classify_address(address) is cls


@pytest.mark.parametrize(("text", "cls"), CASES["classes"].items())
def test_class(text: str, cls: str) -> None:
    address = parse_address(text)
    assert address is not None
    assert classify_address(address) is AddressClass[cls]


@pytest.mark.parametrize(("text", "inner"), CASES["unwrapped"].items())
def test_unwrapping(text: str, inner: str) -> None:
    assert unwrap_address(ip_address(text)) == ip_address(inner)


def test_the_two_transcriptions_agree() -> None:
    """Every row of the product's table lies in a transcribed block of the same class, or carries IPv4."""
    carriers = {"V4_COMPATIBLE", "V4_MAPPED", "V4_TRANSLATED", "NAT64", "SIX_TO_FOUR", "TEREDO", "PUBLIC"}
    for network, cls in REGISTRY:
        if cls.name not in carriers and network.prefixlen > 0:
            known = [other for other, theirs in BLOCKS if theirs is cls and other.version == network.version]
            assert any(network.overlaps(other) for other in known), network


@pytest.mark.parametrize(
    ("cls", "opening"),
    [
        (AddressClass.PUBLIC, Opening.NONE_NEEDED),
        (AddressClass.METADATA, Opening.EXACT),
        (AddressClass.LINK_LOCAL, Opening.EXACT),
        (AddressClass.PRIVATE, Opening.NETWORK),
        (AddressClass.LOOPBACK, Opening.NETWORK),
        (AddressClass.UNSPECIFIED, Opening.NEVER),
        (AddressClass.MULTICAST, Opening.NEVER),
        (AddressClass.BROADCAST, Opening.NEVER),
        (AddressClass.DISCARD, Opening.NEVER),
        (AddressClass.V4_COMPATIBLE, Opening.NEVER),
        (AddressClass.NAT64, Opening.NEVER),
        (AddressClass.NAT64_LOCAL, Opening.NEVER),
    ],
)
def test_opening_of_a_class(cls: AddressClass, opening: Opening) -> None:
    assert cls.opening is opening


def test_only_public_needs_no_opening() -> None:
    assert [cls for cls in AddressClass if cls.opening is Opening.NONE_NEEDED] == [AddressClass.PUBLIC]


def judge(case: dict[str, Any], answers: list[Address]) -> tuple[Address, ...]:
    return judge_answers(
        answers,
        opened=tuple(ip_network(text, strict=False) for text in case.get("opened", [])),
        own=frozenset(ip_address(text) for text in case.get("own", [])),
        on_link=tuple(ip_network(text) for text in case.get("on_link", [])),
        nat64_prefixes=tuple(IPv6Network(text) for text in case.get("nat64", [])),
    )


@pytest.mark.parametrize("case", CASES["answer"], ids=lambda case: case["name"])
def test_answer(case: dict[str, Any]) -> None:
    answers = [ip_address(text) for text in case["answers"]]
    if "refused" in case:
        with pytest.raises(Refusal) as caught:
            judge(case, answers)
        assert caught.value.reason == case["refused"]
        assert case["says"] in caught.value.detail
    else:
        assert [str(address) for address in judge(case, answers)] == case["gives"]


@pytest.mark.parametrize("length", [32, 40, 48, 56, 64, 96])
def test_nat64_prefix_lengths(length: int) -> None:
    """RFC 6052 §2.4: its own examples, for 192.0.2.33."""
    written = {
        32: "2001:db8:c000:221::",
        40: "2001:db8:1c0:2:21::",
        48: "2001:db8:122:c000:2:2100::",
        56: "2001:db8:122:3c0:0:221::",
        64: "2001:db8:122:344:c0:2:2100::",
        96: "2001:db8:122:344::192.0.2.33",
    }
    address = IPv6Address(written[length])
    prefix = IPv6Network((int(address) >> (128 - length) << (128 - length), length))
    assert embedded_addresses(address, [prefix]) == (IPv4Address("192.0.2.33"),)
    assert unwrap_address(address, [prefix]) == IPv4Address("192.0.2.33")


def test_a_wrong_nat64_prefix_is_our_fault_not_theirs() -> None:
    with pytest.raises(ValueError, match="no NAT64 prefix"):
        embedded_addresses(IPv6Address("2001:db8::1"), [IPv6Network("2001:db8::/33")])


def test_a_zone_is_dropped_from_what_is_dialled() -> None:
    assert canonical_address(IPv6Address("2606:4700::1%eth0")) == IPv6Address("2606:4700::1")
    assert classify_address(IPv6Address("fe80::1%eth0")) is AddressClass.LINK_LOCAL
    assert classify_address(IPv6Address("::ffff:10.0.0.1%eth0")) is AddressClass.PRIVATE


# What holds for every address.

V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(IPv6Address)
CARRIER_PREFIXES = ["::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "2a00::5efe:0:0", "2a00::200:5efe:0:0", "fe80::"]
CARRYING = st.tuples(st.sampled_from(CARRIER_PREFIXES), V4).map(
    lambda pair: IPv6Address(int(IPv6Address(pair[0])) | int(pair[1]))
)
IN_BLOCKS = st.sampled_from(BLOCKS).flatmap(
    lambda row: st.integers(0, row[0].num_addresses - 1).map(lambda offset: row[0][offset])
)
ANY = st.one_of(V4, V6, CARRYING, IN_BLOCKS)


@settings(deadline=None)
@given(IN_BLOCKS)
def test_nothing_inside_a_block_is_public(address: Address) -> None:
    assert classify_address(address) is not AddressClass.PUBLIC


@settings(deadline=None)
@given(st.one_of(V4, IN_BLOCKS))
def test_classes_follow_the_transcribed_blocks(address: Address) -> None:
    if isinstance(address, IPv4Address):
        assert classify_address(address) is (expected_class(address) or AddressClass.PUBLIC)


@settings(deadline=None)
@given(ANY)
def test_public_means_global_to_the_language_too(address: Address) -> None:
    """Where the language's table calls an address not global, ours never calls it public."""
    if not canonical_address(address).is_global:
        assert classify_address(address) is not AddressClass.PUBLIC


@settings(deadline=None)
@given(ANY)
def test_a_carried_special_address_is_never_public(address: Address) -> None:
    if any(classify_address(inner) is not AddressClass.PUBLIC for inner in embedded_addresses(address)):
        assert classify_address(address) is not AddressClass.PUBLIC
        with pytest.raises(Refusal):
            judge_answers([address])


@settings(deadline=None)
@given(ANY)
def test_canonical_form_is_idempotent_and_keeps_the_class(address: Address) -> None:
    canonical = canonical_address(address)
    assert canonical_address(canonical) == canonical
    assert classify_address(canonical) is classify_address(address)
    assert classify_address(canonical) is not AddressClass.V4_MAPPED
    assert parse_address(str(canonical)) == canonical


@settings(deadline=None)
@given(st.lists(ANY, max_size=5))
def test_an_answer_passes_only_if_all_of_it_is_public(answers: list[Address]) -> None:
    classes = {classify_address(address) for address in answers}
    if classes == {AddressClass.PUBLIC}:
        assert judge_answers(answers) == tuple(canonical_address(address) for address in answers)
    else:
        with pytest.raises(Refusal):
            judge_answers(answers)


EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@settings(deadline=None)
@given(st.lists(ANY, min_size=1, max_size=3))
def test_opening_everything_opens_neither_metadata_nor_never(answers: list[Address]) -> None:
    try:
        given_back = judge_answers(answers, opened=EVERYTHING)
    except Refusal:
        return
    for address in given_back:
        for part in (address, *embedded_addresses(address)):
            assert classify_address(part).opening in {Opening.NONE_NEEDED, Opening.NETWORK}


@settings(deadline=None)
@given(ANY)
def test_own_addresses_are_refused_whatever_network_is_open(address: Address) -> None:
    own = frozenset({canonical_address(address)})
    with pytest.raises(Refusal) as caught:
        judge_answers([address], opened=EVERYTHING, own=own)
    if not embedded_addresses(address):  # else what it carries may be refused first
        assert caught.value.reason is Reason.SELF


@settings(deadline=None)
@given(st.one_of(st.text(max_size=20), st.text(alphabet="0123456789.:xabcf%[]/", max_size=45)))
def test_what_parses_is_what_the_c_library_reads(text: str) -> None:
    address = parse_address(text)
    if address is not None:
        family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
        assert socket.inet_pton(family, text) == address.packed
        assert ipaddress.ip_address(text) == address
        assert parse_address(str(address)) == address


@settings(deadline=None)
@given(st.text(alphabet="0123456789.:/abcdef", max_size=30))
def test_networks_are_total(text: str) -> None:
    network = parse_network(text)
    if network is not None:
        assert parse_network(str(network)) == network
