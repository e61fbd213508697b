"""From a question to the few rules that can answer it, however many rules there are.

By host first (`HostIndex`). Where very many rules stand at one host pattern (one rule a repository, say) the paths
narrow them down: each path pattern is filed under its leading literal segments, and a request looks up its own leading
segments. Order is kept, so that the outcome is the one of asking every rule in turn.
"""

from collections.abc import Iterable
from typing import Final

from broker.policy.facts import Facts, Stage
from broker.policy.hosts import HostPattern
from broker.policy.index import HostIndex
from broker.policy.paths import PathPattern, canonical_path, deny_forms
from broker.policy.rule import Action, Rule

# Up to this many rules asking each in turn is as fast.
CROWD: Final = 24
# How many of the rules that cannot match are asked all the same, so that the reason tells what the closest one lacks.
_NEAREST: Final = 24
_DEPTH: Final = 3


class RuleIndex:
    """The rules of one action. Immutable; `candidates` is total."""

    __slots__ = ("_action", "_crowds", "_hosts", "covering", "names")

    def __init__(self, entries: Iterable[tuple[HostPattern, Rule]], action: Action) -> None:
        self._action = action
        self._hosts = HostIndex(entries)
        self.names = self._hosts.names
        self.covering = self._hosts.covering
        self._crowds = {place: _Crowd(rules) for place, rules in self._hosts.buckets() if len(rules) > CROWD}

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def candidates(self, facts: Facts) -> tuple[Rule, ...]:
        """Return, in order, the rules of this host that can match, and enough others to tell the closest miss."""
        host = facts.authority.host
        if not self._crowds or facts.stage is Stage.CONNECTION:
            return self._hosts.find(host)
        found: tuple[Rule, ...] = ()
        rest: tuple[Rule, ...] = ()
        for place, rules in self._hosts.find_buckets(host):
            crowd = self._crowds.get(place)
            if crowd is None:
                found += rules
            else:
                found += crowd.find(facts.path, self._action)
                rest += crowd.others
        return found + rest


class _Crowd:
    """The rules of one pattern by the leading literal segments of their paths."""

    __slots__ = ("_all", "_by_prefix", "_pathless", "others")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._all = rules
        # A shadowed rule observes whatever its paths do not allow, so it answers every request of its host.
        self.others = rules[:_NEAREST] + tuple([rule for rule in rules[_NEAREST:] if not rule.enforce])
        self._pathless = tuple([rule for rule in rules if rule.paths is None])
        by_prefix: dict[tuple[str, ...], list[int]] = {}
        for number, rule in enumerate(rules):
            for prefix in {_prefix(path) for path in rule.paths} if rule.paths is not None else {()}:
                by_prefix.setdefault(prefix, []).append(number)
        self._by_prefix = {prefix: tuple(numbers) for prefix, numbers in by_prefix.items()}

    def find(self, path: str | None, action: Action) -> tuple[Rule, ...]:
        forms = _forms(path, action)
        if not forms:
            # An ambiguous path hits every deny rule with paths, and only allow rules without paths take it.
            return self._all if action is Action.DENY else self._pathless
        numbers: set[int] = set()
        for form in forms:
            segments = tuple(form.split("/", _DEPTH + 1)[1 : _DEPTH + 1])
            for depth in range(len(segments) + 1):
                numbers.update(self._by_prefix.get(segments[:depth], ()))
        return tuple([self._all[number] for number in sorted(numbers)])


def _forms(path: str | None, action: Action) -> tuple[str, ...]:
    """What the patterns of this action are compared with; none for an ambiguous path."""
    if path is None:
        return ()
    if action is Action.DENY:
        return deny_forms(path)
    canonical = canonical_path(path)
    return () if canonical is None else (canonical,)


def _prefix(pattern: PathPattern) -> tuple[str, ...]:
    literal: list[str] = []
    for segment in pattern.head[:_DEPTH]:
        if segment.wild:
            break
        literal.append(segment.prefix)
    return tuple(literal)
