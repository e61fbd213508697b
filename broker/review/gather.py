"""What was asked of which host, collected from refusals in bounded memory.

A payload chooses hosts, methods and paths, and may ask for a million of each. So each level holds so many and no more:
what comes after them is told as left out, or, for paths, by the narrowest prefix that stands for all.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from broker.policy.addresses import Address
from broker.policy.names import HostName
from broker.review.asked import Asked
from broker.review.tally import Tally
from broker.review.targets import Names, Stem, join_names, path_pattern, query_names

MAX_HOSTS: Final = 50
MAX_CALLS: Final = 16
"""Of one host: ports and methods told apart, and ports of connections."""
MAX_PATHS: Final = 20
"""Of one host, port and method; beyond them their common prefix stands for all."""
MAX_ADDRESSES: Final = 8
MAX_COUNTED: Final = 10_000
"""Hosts that are left out and told apart; at so many the count stops."""


class Call(NamedTuple):
    """What paths are listed for. plain: without TLS."""

    port: int
    plain: bool
    method: str


class Seen(msgspec.Struct):
    """One path: the entries of `query` that take its queries, and whether a WebSocket was asked for."""

    tally: Tally
    names: Names
    websocket: bool = False

    def take(self, other: "Seen") -> None:
        """Become what stands for both."""
        self.tally.take(other.tally)
        self.names = join_names(self.names, other.names)
        self.websocket |= other.websocket


class Paths:
    """The paths of one call, or, when they were too many, what they begin with."""

    def __init__(self) -> None:
        self.exact: dict[str, Seen] = {}
        self.stem: Stem | None = None
        self.all: Seen | None = None

    def add(self, pattern: str, seen: Seen) -> None:
        """Take one more request into account."""
        if self.stem is not None and self.all is not None:
            self.stem.add(pattern)
            self.all.take(seen)
            return
        known = self.exact.get(pattern)
        if known is not None:
            known.take(seen)
            return
        self.exact[pattern] = seen
        if len(self.exact) > MAX_PATHS:
            self._fold()

    def find(self, pattern: str) -> Seen | None:
        """What was seen of a path, or of all where they were too many and it is one of them."""
        if self.stem is None:
            return self.exact.get(pattern)
        return self.all if self.stem.holds(pattern) else None

    def _fold(self) -> None:
        first, *rest = self.exact.items()
        self.stem, self.all = Stem(first[0]), first[1]
        for pattern, seen in rest:
            self.stem.add(pattern)
            self.all.take(seen)
        self.exact = {}


@dataclass(slots=True)
class OfHost:
    """All that was asked of one host. `spliced`: ports at which only splicing helps; `opened`: no request was seen."""

    calls: dict[Call, Paths] = field(default_factory=dict)
    opened: dict[tuple[int, bool], Tally] = field(default_factory=dict)
    spliced: dict[int, Tally] = field(default_factory=dict)
    addresses: set[Address] = field(default_factory=set)


class Gathered:
    """All hosts. What is not taken is for the caller to set aside."""

    def __init__(self) -> None:
        self.hosts: dict[HostName | Address, OfHost] = {}
        self.left_out: set[HostName | Address] = set()

    def request(self, asked: Asked, pattern: str, tally: Tally, *, any_query: bool = False) -> bool:
        """Take a request; `pattern` stands for its path. False: there is no room."""
        of_host = self._host(asked)
        if of_host is None:
            return False
        call = _call(asked)
        if call not in of_host.calls and len(of_host.calls) >= MAX_CALLS:
            return False
        names = None if any_query else query_names(asked)
        paths = of_host.calls.setdefault(call, Paths())
        paths.add(pattern, Seen(tally, names, asked.facts.websocket))
        return True

    def connection(self, asked: Asked, tally: Tally, *, splice: bool) -> bool:
        """Take a connection of which no request is on record; false: there is no room."""
        of_host = self._host(asked)
        if of_host is None:
            return False
        port = asked.facts.authority.port
        if splice:
            return _count(of_host.spliced, port, tally)
        return _count(of_host.opened, (port, asked.facts.scheme == "http"), tally)

    def address(self, asked: Asked, address: Address) -> bool:
        """Take an address that the host had and that the guard refused."""
        of_host = self._host(asked)
        if of_host is None or (address not in of_host.addresses and len(of_host.addresses) >= MAX_ADDRESSES):
            return False
        of_host.addresses.add(address)
        return True

    def became_websocket(self, asked: Asked) -> None:
        """A request that was taken turns out to have asked for a WebSocket."""
        of_host = self.hosts.get(asked.facts.authority.host)
        paths = of_host.calls.get(_call(asked)) if of_host is not None else None
        if paths is None:
            return
        seen = paths.find(path_pattern(asked) or "")
        if seen is not None:
            seen.websocket = True

    def _host(self, asked: Asked) -> OfHost | None:
        host = asked.facts.authority.host
        known = self.hosts.get(host)
        if known is None and len(self.hosts) < MAX_HOSTS:
            known = self.hosts[host] = OfHost()
        if known is None and len(self.left_out) < MAX_COUNTED:
            self.left_out.add(host)
        return known


def _call(asked: Asked) -> Call:
    facts = asked.facts
    return Call(facts.authority.port, facts.scheme == "http", facts.method or "")


def _count[Key](tallies: dict[Key, Tally], key: Key, tally: Tally) -> bool:
    if key not in tallies and len(tallies) >= MAX_CALLS:
        return False
    tallies.setdefault(key, Tally()).take(tally)
    return True
