"""Synthetic addresses and the name server's decision for each kind of name and type."""

import tomllib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.resolver
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.names import HostName, classify_name, parse_host_name
from broker.wire.synthetic import ADDRESSES, TTL, SyntheticZone, respond

TYPES: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parents[2] / "cases/dns_types.toml").read_text())
NAMES = {"legal": "Denied.example.org", "reserved": "metadata.google.internal", "illegal": "-bad-.example", "root": "."}
RANGE, LINK = IPv4Network("198.18.0.0/15"), IPv4Network("198.19.255.0/24")


def is_special(name: HostName) -> bool:
    return classify_name(name) is not None


def ask(zone: SyntheticZone, name: str, qtype: str) -> dns.message.Message:
    query = dns.message.make_query(name, dns.rdatatype.from_text(qtype))
    answer = respond(query.to_wire(), zone, reserved=is_special)
    assert answer is not None
    message = dns.message.from_wire(answer)
    assert query.is_response(message)
    return message


@pytest.mark.parametrize(
    ("kind", "qtype", "outcome"),
    [(kind, qtype, outcome) for kind, types in TYPES.items() for qtype, outcome in types.items()],
)
def test_types(kind: str, qtype: str, outcome: str) -> None:
    zone = SyntheticZone()
    message = ask(zone, NAMES[kind], qtype)
    expected = outcome if outcome.isupper() else "NOERROR"
    assert dns.rcode.to_text(message.rcode()) == expected
    if outcome == "address":
        (answer,) = message.answer
        assert (answer.ttl, len(answer)) == (TTL, 1)
        assert zone.name_of(IPv4Address(answer[0].address)) == NAMES[kind].lower()
    else:
        assert message.answer == []
        assert len(zone) == 0


def test_names_are_one_in_any_case_and_keep_their_address() -> None:
    zone = SyntheticZone()
    answers = [
        ask(zone, name, "A").answer[0][0].address for name in ("A.example", "b.example", "a.EXAMPLE", "A.example.")
    ]
    assert answers == ["198.18.0.1", "198.18.0.2", "198.18.0.1", "198.18.0.1"]


def test_reverse_lookup_fails_at_once() -> None:
    zone = SyntheticZone()
    zone.assign(parse_host_name("a.example"))
    assert ask(zone, "1.0.18.198.in-addr.arpa", "PTR").rcode() == dns.rcode.NXDOMAIN


def test_names_beyond_the_capacity_do_not_exist_and_the_others_stay() -> None:
    zone = SyntheticZone(capacity=2)
    for name in ("a.example", "b.example"):
        assert ask(zone, name, "A").rcode() == dns.rcode.NOERROR
    refused = ask(zone, "c.example", "A")
    assert refused.rcode() == dns.rcode.NXDOMAIN
    assert refused.authority[0][0].minimum == 0
    assert ask(zone, "a.example", "A").answer[0][0].address == "198.18.0.1"
    assert len(zone) == 2


def test_a_cache_does_not_take_a_missing_type_for_a_missing_name() -> None:
    """NXDOMAIN speaks for all types of a name (RFC 2308 §5): a TXT look-up must not hide the address from a cache."""
    zone, name = SyntheticZone(), dns.name.from_text("api.example.com")
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers = ["192.0.2.1"]
    resolver.cache = cache = dns.resolver.Cache()

    def resolution(qtype: str) -> dns.resolver._Resolution:
        return dns.resolver._Resolution(resolver, name, qtype, "IN", False, False, False)

    first = resolution("TXT")
    request, _ = first.next_request()
    assert request is not None
    first.next_nameserver()
    first.query_result(ask(zone, "api.example.com", "TXT"), None)
    assert cache.get((name, dns.rdatatype.ANY, dns.rdataclass.IN)) is None
    request, cached = resolution("A").next_request()
    assert (request is not None, cached) == (True, None)


def test_all_addresses_are_distinct_usable_and_off_the_link() -> None:
    zone = SyntheticZone(capacity=ADDRESSES, start=ADDRESSES - 3)
    seen = {}
    for number in range(ADDRESSES):
        name = HostName(f"n{number}.example")
        address = zone.assign(name)
        assert address is not None
        seen[address] = name
    assert len(seen) == ADDRESSES
    assert all(zone.name_of(address) == name for address, name in seen.items())
    assert all(address in RANGE and address not in LINK and int(address) & 0xFF not in (0, 255) for address in seen)
    assert zone.assign(HostName("one-more.example")) is None


@given(st.integers(0, ADDRESSES - 1), st.ip_addresses(v=4) | st.ip_addresses(network="198.18.0.0/15"))
def test_an_address_that_was_not_given_out_has_no_name(start: int, address: IPv4Address) -> None:
    zone = SyntheticZone(start=start)
    given_out = {zone.assign(HostName(f"n{number}.example")): f"n{number}.example" for number in range(300)}
    assert zone.name_of(address) == given_out.get(address)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": ADDRESSES + 1}, {"start": -1}, {"start": ADDRESSES}])
def test_impossible_zones_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SyntheticZone(**options)
