"""From a host to the entries whose pattern stands for it, in time that does not depend on how many entries there are.

Order is part of the meaning: an exact host or address first, then `?.x`, then `*.x` from the longest x to the shortest;
entries of the same pattern stay in the order given. This is the one place where "more specific" is defined.
"""

from collections.abc import Iterable, Iterator

from broker.policy.addresses import Address
from broker.policy.hosts import HostKind, HostPattern
from broker.policy.names import HostName

type Place = tuple[HostKind, HostName | Address]


class HostIndex[T]:
    """An immutable multimap from host patterns to entries."""

    __slots__ = ("_any_depth", "_exact", "_one_label", "_wild")

    def __init__(self, entries: Iterable[tuple[HostPattern, T]]) -> None:
        exact: dict[HostName | Address, list[T]] = {}
        one_label: dict[HostName | Address, list[T]] = {}
        any_depth: dict[HostName | Address, list[T]] = {}
        table = {
            HostKind.EXACT: exact,
            HostKind.ADDRESS: exact,
            HostKind.ONE_LABEL: one_label,
            HostKind.ANY_DEPTH: any_depth,
        }
        for pattern, entry in entries:
            table[pattern.kind].setdefault(pattern.host, []).append(entry)
        self._exact = _frozen(exact)
        self._one_label = _frozen(one_label)
        self._any_depth = _frozen(any_depth)
        self._wild = bool(one_label or any_depth)

    def __bool__(self) -> bool:
        return bool(self._exact) or self._wild

    def names(self, host: HostName | Address) -> bool:
        """Tell whether a pattern names exactly this host, not through a wildcard."""
        return host in self._exact

    def find(self, host: HostName | Address) -> tuple[T, ...]:
        """Return the entries for a normalised host, the most specific pattern first."""
        found = self._exact.get(host, ())
        if not self._wild or not isinstance(host, str):
            return found
        parent = host.partition(".")[2]
        if not parent:
            return found
        if self._one_label:
            found += self._one_label.get(HostName(parent), ())
        any_depth = self._any_depth
        while parent:
            if parent in any_depth:
                found += any_depth[HostName(parent)]
            parent = parent.partition(".")[2]
        return found

    def buckets(self) -> Iterator[tuple[Place, tuple[T, ...]]]:
        """Return the entries of each pattern with the place of the pattern."""
        for kind, level in (
            (HostKind.EXACT, self._exact),
            (HostKind.ONE_LABEL, self._one_label),
            (HostKind.ANY_DEPTH, self._any_depth),
        ):
            for host, entries in level.items():
                yield (kind, host), entries

    def find_buckets(self, host: HostName | Address) -> list[tuple[Place, tuple[T, ...]]]:
        """Return what `find` returns, apart for each pattern, with the places that `buckets` gives."""
        found: list[tuple[Place, tuple[T, ...]]] = []
        if host in self._exact:
            found.append(((HostKind.EXACT, host), self._exact[host]))
        if not self._wild or not isinstance(host, str):
            return found
        parent = HostName(host.partition(".")[2])
        if parent in self._one_label:
            found.append(((HostKind.ONE_LABEL, parent), self._one_label[parent]))
        while parent:
            if parent in self._any_depth:
                found.append(((HostKind.ANY_DEPTH, parent), self._any_depth[parent]))
            parent = HostName(parent.partition(".")[2])
        return found

    def covering(self, pattern: HostPattern) -> tuple[T, ...]:
        """Return the entries whose pattern covers `pattern` as a whole, the most specific first."""
        if pattern.kind in {HostKind.EXACT, HostKind.ADDRESS}:
            return self.find(pattern.host) if _whole(pattern) else self._exact.get(pattern.host, ())
        found: tuple[T, ...] = ()
        if pattern.kind is HostKind.ONE_LABEL:
            found += self._one_label.get(pattern.host, ())
        suffix = str(pattern.host)
        while suffix:
            found += self._any_depth.get(HostName(suffix), ())
            suffix = suffix.partition(".")[2]
        return found


def _frozen[T](level: dict[HostName | Address, list[T]]) -> dict[HostName | Address, tuple[T, ...]]:
    return {host: tuple(entries) for host, entries in level.items()}


def _whole(pattern: HostPattern) -> bool:
    # A wildcard never hands on a special name: `HostPattern.covers` is where that is decided.
    above = HostPattern(kind=HostKind.ANY_DEPTH, host=HostName(str(pattern.host).partition(".")[2]))
    return above.covers(pattern)
