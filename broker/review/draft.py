"""Rules in the making: one a request, joined where nothing is added by it.

Two drafts that differ in one set only (paths, methods, ports, hosts) are one rule with the union of it, which allows
exactly what the two do. So a suggestion is small, and never the product of what was seen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Literal

from broker.policy.addresses import Address, AddressClass, Network, classify_address
from broker.policy.hosts import HostKind, HostPattern
from broker.policy.names import HostName, classify_name, display_name, is_public_resolver
from broker.policy.paths import parse_path_pattern
from broker.policy.queries import parse_query_pattern
from broker.policy.rule import ORDINARY, Rule, TlsMode, UpstreamTls
from broker.review.gather import MAX_PATHS, Call, OfHost, Paths, Seen
from broker.review.tally import Tally
from broker.review.targets import Names

type Host = HostName | Address
type _Joined = Literal["paths", "methods", "ports", "hosts"]

_JOINED: Final[tuple[_Joined, ...]] = ("paths", "methods", "ports", "hosts")
_GET: Final = frozenset({"GET"})
_HEAD: Final = frozenset({"HEAD"})
UNSEEN: Final = "no request was seen, so any method, path and query"
SPLICED: Final = "spliced: no request in it is judged, so any method, path and query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The keys of a rule as sets; `None` is "not restricted", as in `Rule`. plain: requests without TLS are served."""

    hosts: frozenset[Host]
    ports: frozenset[int]
    methods: frozenset[str] | None = None
    paths: frozenset[str] | None = None
    names: Names = None
    tls: TlsMode = TlsMode.INSPECT
    plain: bool = False
    websocket: bool = False
    addresses: frozenset[Network] = frozenset()
    upstream: UpstreamTls = ORDINARY
    tally: Tally = field(default_factory=Tally, compare=False)
    widened: tuple[str, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)


def drafts_of(host: Host, seen: OfHost) -> Iterator[Draft]:
    """The drafts of one host, a path each."""
    literal = () if isinstance(host, str) or _is_public(host) else (host,)
    addresses = frozenset(_alone(address) for address in (*seen.addresses, *literal))
    for call, paths in seen.calls.items():
        for patterns, one, folded in _each(paths):
            yield Draft(
                hosts=frozenset({host}),
                ports=frozenset({call.port}),
                methods=frozenset({call.method}),
                paths=frozenset(patterns),
                names=one.names,
                plain=call.plain,
                websocket=one.websocket,
                addresses=addresses,
                tally=one.tally,
                widened=tuple(_widened(call, patterns, one, folded=folded)),
                notes=tuple(_notes(host)),
            )
    bare = Draft(hosts=frozenset({host}), ports=frozenset(), addresses=addresses, notes=tuple(_notes(host)))
    for (port, plain), tally in seen.opened.items():
        yield replace(bare, ports=frozenset({port}), plain=plain, tally=tally, widened=(UNSEEN,))
    for port, tally in seen.spliced.items():
        yield replace(bare, ports=frozenset({port}), tls=TlsMode.SPLICE, tally=tally, widened=(SPLICED,))


def _each(paths: Paths) -> Iterator[tuple[tuple[str, ...], Seen, bool]]:
    for pattern, one in paths.exact.items():
        yield (pattern,), one, False
    if paths.stem is not None and paths.all is not None:
        yield paths.stem.patterns, paths.all, True


def _widened(call: Call, patterns: tuple[str, ...], seen: Seen, *, folded: bool) -> Iterator[str]:
    if folded:
        yield f"more than {MAX_PATHS} paths with {call.method}: all below what they share, {patterns[-1]}"
    elif patterns[0].endswith("/**"):
        yield f"the log has only the begin of a path: all below it, {patterns[0]}"
    elif "*" in patterns[0]:
        yield f"the log hides a part of a path: anything in its place, {patterns[0]}"
    if seen.names is None:
        yield f"the log hides what the query is made of: any query of {patterns[-1]}"


def _notes(host: Host) -> Iterator[str]:
    if is_public_resolver(host):
        yield f"{host} is a public name resolver: what is asked of it can carry data out"
    if not isinstance(host, str):
        return
    special = classify_name(host)
    if special is not None:
        yield f"{host} is a {special.value}: it mostly needs addresses, too"
    if display_name(host) != host:
        yield f"reads {display_name(host)}"


def _is_public(address: Address) -> bool:
    return classify_address(address) is AddressClass.PUBLIC


def _alone(address: Address) -> Network:
    return IPv4Network(address) if address.version == 4 else IPv6Network(address)


def join(drafts: Iterable[Draft]) -> list[Draft]:
    """As few drafts as allow the same. (One that restricts nothing else, for a connection, differs in two keys.)"""
    joined = _without_heads(list(drafts))
    for key in _JOINED:
        joined = _join(joined, key)
    return joined


def _without_heads(drafts: list[Draft]) -> list[Draft]:
    """GET brings HEAD, so a HEAD of what is asked with GET needs no rule."""
    gets = {draft: draft for draft in drafts if draft.methods == _GET}
    kept: list[Draft] = []
    for draft in drafts:
        twin = gets.get(replace(draft, methods=_GET)) if draft.methods == _HEAD else None
        if twin is None:
            kept.append(draft)
        else:
            twin.tally.take(draft.tally)
    return kept


def _join(drafts: Iterable[Draft], key: _Joined) -> list[Draft]:
    groups: dict[Draft, list[Draft]] = {}
    for draft in drafts:
        groups.setdefault(replace(draft, **{key: frozenset()}), []).append(draft)  # type: ignore[arg-type]
    return [_union(group, key) for group in groups.values()]


def _union(group: list[Draft], key: _Joined) -> Draft:
    if len(group) == 1:
        return group[0]
    sets: list[frozenset[object] | None] = [getattr(draft, key) for draft in group]
    whole = frozenset[object]().union(*[one for one in sets if one is not None])
    tally = Tally()
    for draft in group:
        tally.take(draft.tally)
    return replace(
        group[0],
        tally=tally,
        widened=tuple(dict.fromkeys(text for draft in group for text in draft.widened)),
        notes=tuple(dict.fromkeys(text for draft in group for text in draft.notes)),
        **{key: whole},  # type: ignore[arg-type]
    )


def build_rule(draft: Draft, name: str) -> Rule:
    """The rule of a draft. Raises `Mistake` for what no policy can say."""
    default = draft.ports.isdisjoint({443}) if draft.plain else draft.ports == {443}
    names = draft.names
    return Rule(
        name=name,
        hosts=tuple(_pattern(host) for host in sorted(draft.hosts, key=str)),
        ports=draft.ports,
        methods=draft.methods,
        paths=None if draft.paths is None else tuple(map(parse_path_pattern, sorted(draft.paths))),
        query=None if names is None else tuple(map(parse_query_pattern, sorted(names))),
        tls=draft.tls,
        addresses=tuple(sorted(draft.addresses, key=lambda network: (network.version, network))),
        websocket=draft.websocket,
        plain_http=None if default else draft.plain,
        upstream=draft.upstream,
    )


def _pattern(host: Host) -> HostPattern:
    return HostPattern(kind=HostKind.EXACT if isinstance(host, str) else HostKind.ADDRESS, host=host)
