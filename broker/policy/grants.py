"""Grants: what one tool call or session may reach, for how long and how much.

A grant is a subset of the policy. Decides whether a grant's rules are covered (soundly: a doubt is "not covered"), and
whether a budget is used up. Counts nothing itself and reads no clock: `Usage` is counted by whoever owns the session.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NewType

import msgspec

from broker.policy.hosts import HostPattern
from broker.policy.paths import PathPattern
from broker.policy.queries import QueryPattern
from broker.policy.reasons import Reason
from broker.policy.rules import Action, Network, Policy, Rule, RuleIndex, index_rules

GrantId = NewType("GrantId", str)
CallId = NewType("CallId", str)

MAX_COMBINATIONS: Final = 20_000
"""Of host, port, method, path and address: so many are compared one by one before a grant counts as not covered."""


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds over the whole life of a grant; `None` is "not bounded".

    uses: sandboxes that may attach with it. rate: requests per second, with a burst of one second's worth (at least 1).
    """

    uses: int | None = None
    requests: int | None = None
    connections: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("uses", "requests", "connections", "bytes_up", "bytes_down"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError("rate must be a positive number of requests per second")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An issued right. Times are seconds on one clock, the one that `decide` is asked with."""

    id: GrantId
    call: CallId
    rules: tuple[Rule, ...]
    issued_at: float
    expires_at: float
    budgets: Budgets = field(default_factory=Budgets)
    allow: RuleIndex = field(init=False, compare=False, repr=False)
    deny: RuleIndex = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.issued_at < self.expires_at < float("inf"):
            raise ValueError("a grant expires, and after it was issued")
        object.__setattr__(self, "allow", index_rules(self.rules, Action.ALLOW))
        object.__setattr__(self, "deny", index_rules(self.rules, Action.DENY))


@dataclass(slots=True, kw_only=True)
class Usage:
    """What was used of a grant so far. Mutable, owned by one counter; `tokens` and `tokens_at` belong to the rate."""

    uses: int = 0
    requests: int = 0
    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    tokens: float | None = None
    tokens_at: float = 0.0
    revoked: bool = False


class Spend(Enum):
    """What is about to be used up; NOTHING asks whether what is open may stay open."""

    NOTHING = "nothing"
    USE = "use"
    CONNECTION = "connection"
    REQUEST = "request"


def check_budget(grant: Grant, usage: Usage, now: float, spend: Spend = Spend.NOTHING) -> Reason | None:
    """Return why `spend` is not possible any more, `None` if it is. The caller counts it only after a `None`.

    Precedence: revoked, expired, exhausted, rate. A budget of N allows exactly N; bytes are exhausted when N have moved
    and the next is asked for.
    """
    if usage.revoked:
        return Reason.GRANT_REVOKED
    if now >= grant.expires_at:
        return Reason.GRANT_EXPIRED
    budgets = grant.budgets
    for budget, used, wanted in (
        (budgets.uses, usage.uses, spend is Spend.USE),
        (budgets.connections, usage.connections, spend is Spend.CONNECTION),
        (budgets.requests, usage.requests, spend is Spend.REQUEST),
        (budgets.bytes_up, usage.bytes_up, spend is not Spend.NOTHING),
        (budgets.bytes_down, usage.bytes_down, spend is not Spend.NOTHING),
    ):
        if budget is not None and used + wanted > budget:
            return Reason.GRANT_EXHAUSTED
    if spend is Spend.REQUEST and budgets.rate is not None and tokens_left(grant, usage, now) < 1:
        return Reason.RATE_LIMITED
    return None


def tokens_left(grant: Grant, usage: Usage, now: float) -> float:
    """Return how many requests the rate allows at `now`; infinite without a rate. Each request takes 1."""
    rate = grant.budgets.rate
    if rate is None:
        return float("inf")
    burst = max(rate, 1.0)
    if usage.tokens is None:
        return burst
    # A clock that steps back gives nothing, and takes nothing away.
    return min(burst, usage.tokens + max(0.0, now - usage.tokens_at) * rate)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest piece of a grant rule that one policy rule has to cover alone."""

    host: HostPattern
    port: int | None
    method: str | None
    path: PathPattern | None
    address: Network | None
    rule: Rule

    def __str__(self) -> str:
        words = [self.host.text, f"port {self.port}" if self.port else "any port"]
        if self.rule.judges_requests or self.method or self.path:
            words += [self.method or "any method", self.path.text if self.path else "any path"]
        words += [f"tls {self.rule.tls.value}"]
        if self.rule.query is not None:
            words += ["query " + (", ".join(pattern.text for pattern in self.rule.query) or "none")]
        words += [f"address {self.address}"] if self.address else []
        words += ["websocket"] if self.rule.websocket else []
        return f"rule {self.rule.name}: {' '.join(words)}"


def uncovered(rules: Sequence[Rule], policy: Policy, most: int = 20) -> list[str]:
    """Return what of a grant's rules the policy does not allow, a line a part, at most `most`; `[]`: all covered.

    Each combination of host, port, method, path and address has to be allowed by one allow rule of the policy, and not
    be denied as a whole by one of its deny rules. Deny rules of a grant only narrow it and need no cover. Combinations
    are only gone through where no single rule of the policy covers all of a host, and only so many of them.
    """
    missing: list[str] = []
    left = MAX_COMBINATIONS
    for rule in rules:
        for part in _doubtful_parts(rule, policy) if rule.action is Action.ALLOW else ():
            left -= 1
            why = _why_uncovered(part, policy)
            if left < 0:
                why = f"one of more than {MAX_COMBINATIONS} combinations that no single rule of the policy covers"
            if why is not None:
                missing.append(f"{part}: {why}")
            if len(missing) >= most or left < 0:
                return missing
    return missing


def covered_by(policy_rule: Rule, grant_rule: Rule) -> bool:
    """Tell whether one allow rule of a policy provably allows everything that a grant's rule allows."""
    return all(
        any(pattern.covers(host) for pattern in policy_rule.hosts) for host in grant_rule.hosts
    ) and _covers_requests(policy_rule, grant_rule)


def _doubtful_parts(rule: Rule, policy: Policy) -> Iterator[_Part]:
    """Return the parts at the hosts that no single rule of the policy covers, or that a deny rule may touch."""
    asked: dict[int, bool] = {}  # the rules of a policy are few beside the hosts of a long list
    for host in rule.hosts:
        whole = False
        for one in policy.allow.covering(host):
            if id(one) not in asked:
                asked[id(one)] = _covers_requests(one, rule)
            if asked[id(one)]:
                whole = True
                break
        if not whole or any(_denies_whole(deny, rule.ports) for deny in policy.deny.covering(host)):
            yield from _parts(rule, host)


def _denies_whole(deny: Rule, ports: frozenset[int] | None) -> bool:
    """Whether a deny rule of the policy takes all of a host on one of these ports."""
    if not deny.enforce or deny.judges_requests:
        return False
    return deny.ports is None or ports is None or not deny.ports.isdisjoint(ports)


def _covers_requests(rule: Rule, wanted: Rule) -> bool:
    """Whether a rule of the policy, at hosts of its own, covers all ports, methods, paths, … of a grant's rule."""
    # Each dimension by itself: the first part that has it stands for all of its combinations.
    first = next(_parts(wanted, wanted.hosts[0]))
    return (
        (rule.ports is None or (wanted.ports is not None and wanted.ports <= rule.ports))
        and (rule.methods is None or (wanted.methods is not None and wanted.methods <= rule.methods))
        and all(_misses(rule, msgspec.structs.replace(first, port=port)) is None for port in wanted.ports or (None,))
        and all(_path_covered(rule.paths, path) for path in wanted.paths or ())
        and all(any(_contains(wide, narrow) for wide in rule.addresses) for narrow in wanted.addresses)
    )


def _parts(rule: Rule, host: HostPattern) -> Iterator[_Part]:
    methods = sorted(rule.methods) if rule.methods is not None else [None]
    for port in sorted(rule.ports) if rule.ports is not None else [None]:
        for method in methods:
            for path in rule.paths if rule.paths is not None else (None,):
                for address in rule.addresses or (None,):
                    yield _Part(host=host, port=port, method=method, path=path, address=address, rule=rule)


def _why_uncovered(part: _Part, policy: Policy) -> str | None:
    for deny in policy.deny.covering(part.host):
        if _denies_whole(deny, None if part.port is None else frozenset({part.port})):
            return f"denied by the policy's rule {deny.name}"
    closest = (-1, "no rule of the policy allows this host")
    for rule in policy.allow.covering(part.host):
        miss = _misses(rule, part)
        if miss is None:
            return None
        closest = max(
            closest, (miss[0], f"the policy's rule {rule.name} does not cover its {miss[1]}"), key=lambda m: m[0]
        )
    return closest[1]


def _misses(rule: Rule, part: _Part) -> tuple[int, str] | None:
    """Return the first dimension in which a policy rule is narrower than the part, with its rank."""
    wanted = part.rule
    checks = (
        ("port", rule.ports is None or part.port in rule.ports),
        ("tls plane", rule.tls is wanted.tls),
        ("plain HTTP", part.port is None or _plain(rule, part.port) or not _plain(wanted, part.port)),
        ("method", rule.methods is None or part.method in rule.methods),
        ("path", _path_covered(rule.paths, part.path)),
        ("query", _query_covered(rule.query, wanted.query)),
        ("websocket", rule.websocket or not wanted.websocket),
        ("address", part.address is None or any(_contains(network, part.address) for network in rule.addresses)),
    )
    for rank, (dimension, held) in enumerate(checks):
        if not held:
            return rank, dimension
    return None


def _plain(rule: Rule, port: int) -> bool:
    return port != 443 if rule.plain_http is None else rule.plain_http


def _path_covered(wide: tuple[PathPattern, ...] | None, narrow: PathPattern | None) -> bool:
    # Without paths a rule takes ambiguous paths too, so not even "/**" covers it.
    return wide is None or (narrow is not None and any(pattern.covers(narrow) for pattern in wide))


def _query_covered(wide: tuple[QueryPattern, ...] | None, narrow: tuple[QueryPattern, ...] | None) -> bool:
    if wide is None:
        return True
    return narrow is not None and all(any(one.covers(other) for one in wide) for other in narrow)


def _contains(wide: Network, narrow: Network) -> bool:
    return wide.version == narrow.version and wide.prefixlen <= narrow.prefixlen and narrow.network_address in wide
