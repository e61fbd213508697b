"""The names of one session: which synthetic address stands for which name, and what the name server answers.

A legal name gets an address whether a rule allows it or not, so a lookup tells the payload nothing about the policy and
carries nothing out; the refusal comes later, where it can be read. It must not look anything up or judge a rule.
"""

from collections.abc import Callable
from ipaddress import IPv4Address

from broker.policy.names import HostName, parse_host_name
from broker.policy.reasons import Refusal
from broker.wire.dns import Malformed, Query, Rcode, answer_address, answer_empty, answer_error, parse_query

CAPACITY = 16384
"""Names that one session can hold, so that lookups cannot eat the broker's memory."""

TTL = 60
"""Seconds that clients may keep an answer; the address itself is good for the life of the session."""

_FIRST = int(IPv4Address("198.18.0.0"))  # RFC 2544: 198.18.0.0/15, never routed on the internet
_SUBNETS = 511  # of /24 size; the 512th, 198.19.255.0/24, belongs to the link between sandbox and bridge
_PER_SUBNET = 254  # .0 and .255 look like network and broadcast addresses to some clients
ADDRESSES = _SUBNETS * _PER_SUBNET

_CLASS_IN = 1
_A = 1
_EMPTY_TYPES = frozenset({28, 64, 65})  # AAAA, SVCB, HTTPS: no second family, no ECH keys, no hint at HTTP/3
_META_TYPES = frozenset({0, 41, *range(128, 256)})  # RFC 6895 §3.1: OPT, TSIG, AXFR, ANY and what else is no data


class SyntheticZone:
    """Names and their addresses, in the order of the first lookups. None is ever forgotten or moved."""

    __slots__ = ("_addresses", "_capacity", "_names", "_start")

    def __init__(self, *, capacity: int = CAPACITY, start: int = 0) -> None:
        """`start`: index of the first address given out, 0 to ADDRESSES - 1; the last one is followed by the first."""
        if not 0 < capacity <= ADDRESSES or not 0 <= start < ADDRESSES:
            raise ValueError("capacity or start is out of range")
        self._capacity = capacity
        self._start = start
        self._addresses: dict[HostName, IPv4Address] = {}
        self._names: list[HostName] = []

    def __len__(self) -> int:
        return len(self._names)

    def assign(self, name: HostName) -> IPv4Address | None:
        """The address of `name`, always the same one; None when the session has used up its names."""
        address = self._addresses.get(name)
        if address is None and len(self._names) < self._capacity:
            subnet, host = divmod((self._start + len(self._names)) % ADDRESSES, _PER_SUBNET)
            address = IPv4Address(_FIRST + (subnet << 8) + host + 1)
            self._addresses[name] = address
            self._names.append(name)
        return address

    def name_of(self, address: IPv4Address) -> HostName | None:
        """The name that `address` was given to, None when it was never given out."""
        subnet, last = divmod(int(address) - _FIRST, 256)
        if not 0 <= subnet < _SUBNETS or not 1 <= last <= _PER_SUBNET:
            return None
        index = (subnet * _PER_SUBNET + last - 1 - self._start) % ADDRESSES
        return self._names[index] if index < len(self._names) else None


def respond(
    packet: bytes, zone: SyntheticZone, *, reserved: Callable[[HostName], bool], ttl: int = TTL
) -> bytes | None:
    """The answer to one query; None: send nothing. Never raises.

    `reserved` tells the names of special meaning (localhost, .internal, wpad …) that do not exist for the sandbox.
    """
    query = parse_query(packet)
    if query is None:
        return None
    if isinstance(query, Malformed):
        return answer_error(query, query.rcode)
    if query.edns_version:
        return answer_error(query, Rcode.BADVERS)
    if query.qclass != _CLASS_IN or query.qtype in _META_TYPES:
        return answer_error(query, Rcode.NOTIMP)
    if query.name == "":
        return answer_empty(query, ttl)  # the root exists, whatever one asks about it
    name = _legal_name(query)
    if name is None or reserved(name):
        return answer_error(query, Rcode.NXDOMAIN, ttl)
    return _answer(query, name, zone, ttl)


def _answer(query: Query, name: HostName, zone: SyntheticZone, ttl: int) -> bytes:
    if query.qtype in _EMPTY_TYPES:
        return answer_empty(query, ttl)
    address = zone.assign(name) if query.qtype == _A else None
    if address is None:
        # a cache that kept this would take the name's A record for missing too (RFC 2308 §5): zero seconds
        return answer_error(query, Rcode.NXDOMAIN, 0)
    return answer_address(query, address, ttl)


def _legal_name(query: Query) -> HostName | None:
    if query.name is None:
        return None
    try:
        return parse_host_name(query.name)
    except Refusal:
        return None
