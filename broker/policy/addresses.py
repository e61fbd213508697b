"""The address guard: which addresses may be dialled.

Decides on addresses that the caller already has; it resolves nothing and dials nothing. The whole answer to a name is
judged at once and one bad address refuses all of it, so that an answer cannot smuggle a private address in beside a
public one. IPv4 addresses that hide inside IPv6 ones are judged again. What is returned is what has to be dialled.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from broker.policy.address_registry import REGISTRY, AddressClass, Opening
from broker.policy.reasons import Reason, Refusal

__all__ = [
    "Address",
    "AddressClass",
    "Network",
    "Opening",
    "canonical_address",
    "classify_address",
    "embedded_addresses",
    "judge_answers",
    "parse_address",
    "parse_network",
    "unwrap_address",
]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_V4_TEXT: Final = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_V6_TEXT: Final = re.compile(r"[0-9A-Fa-f:.]{2,45}")  # no zone (RFC 4007 §11), no IPvFuture
_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_LOW_32: Final = 0xFFFF_FFFF


def parse_address(text: str) -> Address | None:
    """Parse a literal: a dotted quad in decimal without leading zeros, or IPv6 without brackets or zone; else `None`.

    IPv4 as in RFC 6943 §3.1.1 "strict", IPv6 as in RFC 4291 §2.2. The form that was written is kept; see
    `canonical_address`.
    """
    if _V4_TEXT.fullmatch(text):
        return IPv4Address(text)
    if ":" not in text or _V6_TEXT.fullmatch(text) is None:
        return None
    try:
        return IPv6Address(text)
    except ValueError:
        return None


def parse_network(text: str) -> Network | None:
    """Parse `ADDRESS` or `ADDRESS/LENGTH` with no bits set behind the prefix; `None` for anything else.

    A prefix of IPv4-mapped addresses becomes the IPv4 prefix that it stands for.
    """
    head, slash, tail = text.partition("/")
    address = parse_address(head)
    if address is None or (slash and _LENGTH.fullmatch(tail) is None):
        return None
    length = int(tail) if slash else address.max_prefixlen
    canonical = canonical_address(address)
    if canonical.version != address.version and length >= 96:
        length -= 96
    elif canonical.version != address.version:
        canonical = address
    try:
        return IPv4Network((canonical, length)) if canonical.version == 4 else IPv6Network((canonical, length))
    except ValueError:
        return None


def canonical_address(address: Address) -> Address:
    """Return the address that a socket really connects to: IPv4 for IPv4-mapped (RFC 4291 §2.5.5.2), no zone."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address if address.scope_id is None else IPv6Address(int(address))


def embedded_addresses(address: Address, nat64_prefixes: Iterable[IPv6Network] = ()) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address carries, the one that packets end up at first.

    `nat64_prefixes` are the network's own translation prefixes (RFC 6052 §2.2: 32, 40, 48, 56, 64 or 96 bits).
    """
    if isinstance(address, IPv4Address):
        return ()
    for prefix in nat64_prefixes:
        if address in prefix:
            return (_translated(address, prefix),)
    value = int(address)
    extract = _CARRIERS.get(_block_class(address))
    if extract is not None:
        return extract(value)
    # ISATAP (RFC 5214 §6.1): the interface identifier is 0000:5efe or 0200:5efe and an IPv4 address, in any prefix.
    if (value >> 32) & 0xFDFF_FFFF == 0x5EFE:
        return _low_32(value)
    return ()


def unwrap_address(address: Address, nat64_prefixes: Iterable[IPv6Network] = ()) -> Address:
    """Return the IPv4 address inside an IPv6 one, or the address itself where it carries none."""
    return next(iter(embedded_addresses(address, nat64_prefixes)), address)


def classify_address(address: Address, nat64_prefixes: Iterable[IPv6Network] = ()) -> AddressClass:
    """Return the class of an address, looking through every embedding. Total.

    `PUBLIC` only where the address and all that it carries are public. An address that carries a special one gets the
    class of that one; a translated one gets its own class unless its prefix is declared.
    """
    address = canonical_address(address)
    prefixes = tuple(nat64_prefixes)
    outer = _outer_class(address, prefixes)
    if outer is not AddressClass.PUBLIC and outer not in _CARRIERS:
        return outer
    inner = (_block_class(carried) for carried in embedded_addresses(address, prefixes))
    return next((found for found in inner if found is not AddressClass.PUBLIC), outer)


def judge_answers(
    answers: Sequence[Address],
    *,
    opened: tuple[Network, ...] = (),
    own: frozenset[Address] = frozenset(),
    on_link: tuple[Network, ...] = (),
    nat64_prefixes: tuple[IPv6Network, ...] = (),
) -> tuple[Address, ...]:
    """Return the answers as canonical addresses in their order, or raise `Refusal` for all of them.

    `opened` are the rule's `addresses`, `own` the (canonical) addresses that the broker itself has or listens on,
    `on_link` the prefixes of its own links. What `opened` can open:

    - never: the classes whose `opening` is `NEVER` (unspecified, multicast, broadcast, discard, IPv4-compatible,
      undeclared NAT64);
    - only listed as exactly this address: metadata and platform addresses, link-local addresses, the broker's own;
    - by any network that contains it: everything else that is not public, and public addresses that are on-link.

    An address that carries others (6to4, Teredo, SIIT, ISATAP) needs each of them to be admitted by the same rule.
    Reasons: `NAME_NOT_FOUND` for no answer, `SELF`, `ADDRESS_REFUSED`; the detail names the address and its class.
    """
    if not answers:
        raise Refusal(Reason.NAME_NOT_FOUND, "the name has no address")
    return tuple(
        [
            answer if _is_plain(answer, own, on_link) else _judge(answer, opened, own, on_link, nat64_prefixes)
            for answer in answers
        ]
    )


def _is_plain(address: Address, own: frozenset[Address], on_link: tuple[Network, ...]) -> bool:
    """Whether an address is a public IPv4 one that is neither ours nor a neighbour's: most answers are."""
    return (
        isinstance(address, IPv4Address)
        and _block_class(address) is AddressClass.PUBLIC
        and address not in own
        and not any(address in link for link in on_link)
    )


def _judge(
    address: Address,
    opened: tuple[Network, ...],
    own: frozenset[Address],
    on_link: tuple[Network, ...],
    nat64: tuple[IPv6Network, ...],
) -> Address:
    address = canonical_address(address)
    carried = embedded_addresses(address, nat64)
    for part in (*carried, address):  # the carried one first: it says more about where the packets would go
        found = _outer_class(part, nat64)
        needed, what = found.opening, found.value
        if part in own:
            needed, what = (needed if needed is Opening.NEVER else Opening.EXACT), "the broker's own"
        elif needed is Opening.NONE_NEEDED and on_link and any(part in link for link in on_link):
            needed, what = Opening.NETWORK, "on a link of the broker"
        if needed is not Opening.NONE_NEEDED and not _opens(opened, part, needed):
            where = f"{part}" if part is address else f"{address} carries {part}, which"
            raise Refusal(Reason.SELF if part in own else Reason.ADDRESS_REFUSED, f"{where} is {what}")
    return address


def _opens(opened: tuple[Network, ...], address: Address, needed: Opening) -> bool:
    if needed is Opening.NEVER:
        return False
    return any(
        address in network and (needed is Opening.NETWORK or network.prefixlen == network.max_prefixlen)
        for network in opened
    )


def _outer_class(address: Address, nat64: tuple[IPv6Network, ...]) -> AddressClass:
    """The class of the address as written; one in a declared NAT64 prefix is as good as what it carries."""
    if isinstance(address, IPv6Address):
        if any(address in prefix for prefix in nat64):
            return AddressClass.PUBLIC
        # Platforms put their IPv4 metadata address into a local IPv6 prefix: fe80::a9fe:a9fe, fd00:c1::a9fe:a9fe, …
        if int(address) & _LOW_32 == _METADATA_V4 and _block_class(address) in _LOCAL:
            return AddressClass.METADATA
    return _block_class(address)


def _block_class(address: Address) -> AddressClass:
    starts, classes = _BLOCKS_V4 if isinstance(address, IPv4Address) else _BLOCKS_V6
    return classes[bisect_right(starts, int(address)) - 1]


def _flatten(version: int) -> tuple[list[int], list[AddressClass]]:
    """Turn the nested blocks of one IP version into the starts of disjoint ranges and their classes."""
    rows = sorted((row for row in REGISTRY if row[0].version == version), key=lambda row: -row[0].prefixlen)
    spans = [(int(network.network_address), int(network.broadcast_address), found) for network, found in rows]
    starts = sorted({first for first, _, _ in spans} | {last + 1 for _, last, _ in spans})[:-1]
    return starts, [next(found for first, last, found in spans if first <= start <= last) for start in starts]


def _translated(address: IPv6Address, prefix: IPv6Network) -> IPv4Address:
    """Take the IPv4 address out of a translated one (RFC 6052 §2.2): octet 8 is skipped."""
    if prefix.prefixlen not in {32, 40, 48, 56, 64, 96}:
        raise ValueError(f"{prefix} is no NAT64 prefix: 32, 40, 48, 56, 64 or 96 bits")
    octets = address.packed
    if prefix.prefixlen == 96:
        return IPv4Address(octets[12:])
    start = prefix.prefixlen // 8
    return IPv4Address((octets[:8] + octets[9:])[start : start + 4])


def _low_32(value: int) -> tuple[IPv4Address, ...]:
    return (IPv4Address(value & _LOW_32),)


def _six_to_four(value: int) -> tuple[IPv4Address, ...]:
    return (IPv4Address((value >> 80) & _LOW_32),)


def _teredo(value: int) -> tuple[IPv4Address, ...]:
    """The client, whose bits are inverted, and the server (RFC 4380 §4)."""
    return IPv4Address((value & _LOW_32) ^ _LOW_32), IPv4Address((value >> 64) & _LOW_32)


_CARRIERS: Final[dict[AddressClass, Callable[[int], tuple[IPv4Address, ...]]]] = {
    AddressClass.V4_MAPPED: _low_32,
    AddressClass.V4_COMPATIBLE: _low_32,
    AddressClass.V4_TRANSLATED: _low_32,
    AddressClass.NAT64: _low_32,
    AddressClass.SIX_TO_FOUR: _six_to_four,
    AddressClass.TEREDO: _teredo,
}
_LOCAL: Final = frozenset({AddressClass.UNIQUE_LOCAL, AddressClass.LINK_LOCAL, AddressClass.SITE_LOCAL})
_METADATA_V4: Final = int(IPv4Address("169.254.169.254"))
_BLOCKS_V4: Final = _flatten(4)
_BLOCKS_V6: Final = _flatten(6)
