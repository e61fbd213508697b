"""Verdicts on what the log hides a part of: told only where they are the same whatever is hidden.

A pattern surely takes a path with a `*` in it, surely does not, or may. The rules of the host are put to `decide`
twice, once with every doubt resolved for the request and once against it. What differs cannot be told. What agrees
holds for hidden text that no server reads in two ways or takes for another; where it may not, it is `assumed`.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from msgspec import structs

from broker.policy.decide import Denied, Verdict, decide
from broker.policy.paths import PathPattern, Segment, canonical_path, deny_forms
from broker.policy.queries import QueryPattern, accepts, canonical_parameters, hits
from broker.policy.rule import Action, Rule, TlsMode
from broker.policy.rules import Policy
from broker.review.asked import HIDDEN, Asked, opening_of
from broker.review.judging import judge
from broker.review.targets import path_pattern

# Ambiguous for every rule that restricts it: no allow rule takes it, each deny rule is hit by it.
_NO_PATH: Final = "//"
_NO_QUERY: Final = "="
_ANY_PATH: Final = "/**"


class Takes(Enum):
    """Whether a rule's key takes what is hidden in part."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class Judged(NamedTuple):
    """`against` has every doubt resolved against the request; the other one for it."""

    favoured: Verdict
    against: Verdict
    assumed: bool = False

    @property
    def is_told(self) -> bool:
        """Whether both are the same verdict."""
        return isinstance(self.favoured, Denied) is isinstance(self.against, Denied)


type _Doubts = tuple[tuple[Rule, Takes | None, Takes | None], ...]
type _Sure = tuple[frozenset[Takes], frozenset[Takes]]

_FOR: Final[_Sure] = (frozenset({Takes.YES, Takes.MAYBE}), frozenset({Takes.YES}))
_AGAINST: Final[_Sure] = (frozenset({Takes.YES}), frozenset({Takes.YES, Takes.MAYBE}))
_AMBIGUOUS: Final[_Sure] = (frozenset(), frozenset(Takes))
_KEPT: Final = 256


class HiddenJudge:
    """Judges questions of which a part may be hidden, under one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # The policy as it is with the doubts resolved, by the rules and doubts: millions of requests have the same few.
        self._sides: dict[tuple[object, ...], tuple[Policy, Policy, Policy]] = {}

    def judge(self, asked: Asked) -> Judged:
        """A path or query that is ambiguous as far as it shows stays so."""
        facts = asked.facts
        known = path_pattern(asked) or (_ANY_PATH if asked.cut and facts.path and facts.path.count("/") == 1 else None)
        opening = opening_of(facts)
        first = judge(opening, self._policy)
        if facts.scheme == "https" and (isinstance(first, Denied) or first.rule.tls is TlsMode.SPLICE):
            return Judged(first, first)  # of the connection alone
        if not asked.hidden or known is None:
            return Judged(verdict := judge(facts, self._policy), verdict)
        hides_path = asked.cut or HIDDEN in (facts.path or "")
        hides_query = asked.cut or HIDDEN in (facts.query or "")
        if canonical_parameters(facts.query) is None:
            hides_query = False
        # The index narrows the rules by a path that is known, where very many stand at one host.
        found_by = opening if hides_path else facts
        rules = (*self._policy.allow.candidates(found_by), *self._policy.deny.candidates(found_by))
        doubts = tuple((one, _path(one, asked, known, hides_path), _query(one, asked, hides_query)) for one in rules)
        if all(path is None and query is None for _, path, query in doubts):
            return Judged(verdict := judge(facts, self._policy), verdict)
        blank = structs.replace(
            facts, path=_NO_PATH if hides_path else facts.path, query=_NO_QUERY if hides_query else facts.query
        )
        favoured, against, worst = [decide(blank, side, None, 0.0) for side in self._resolve(doubts)]
        return Judged(favoured, against, isinstance(worst, Denied) is not isinstance(against, Denied))

    def _resolve(self, doubts: _Doubts) -> tuple[Policy, Policy, Policy]:
        key = tuple((id(rule), path, query) for rule, path, query in doubts)  # the rules live as long as the policy
        sides = self._sides.get(key)
        if sides is None:
            if len(self._sides) >= _KEPT:
                self._sides.clear()
            sides = self._side(doubts, _FOR), self._side(doubts, _AGAINST), self._side(doubts, _AMBIGUOUS)
            self._sides[key] = sides
        return sides

    def _side(self, doubts: _Doubts, sure: _Sure) -> Policy:
        return replace(self._policy, rules=tuple(_resolved(doubts, sure)))


def _resolved(doubts: _Doubts, sure: _Sure) -> Iterator[Rule]:
    """The rules with what takes the hidden text unrestricted; a deny rule that is not hit is left out.

    sure: what counts as taken by an allow rule, and what as a hit of a deny rule.
    """
    allows, denies = sure
    for rule, path, query in doubts:
        if rule.action is Action.ALLOW:
            opened = replace(rule, paths=None) if path in allows else rule
            yield replace(opened, query=None) if query in allows else opened
        elif (path is None or path in denies) and (query is None or query in denies):
            yield rule


def _path(rule: Rule, asked: Asked, known: str, hides: bool) -> Takes | None:
    """`None` where the rule does not ask, or nothing is hidden from it."""
    if rule.paths is None or not hides:
        return None
    deep = known.endswith("/**")
    text = known.removesuffix("/**") if deep else known
    forms = (canonical_path(text) or text,) if rule.action is Action.ALLOW else deny_forms(text) or (text,)
    shapes = [_shape(form, deep=deep) for form in forms]
    if any(pattern.covers(shape) for shape in shapes[:1] for pattern in rule.paths):
        return Takes.YES
    if all(_disjoint(pattern, shape) for shape in shapes for pattern in rule.paths):
        return Takes.NO
    return Takes.MAYBE


def _shape(form: str, *, deep: bool) -> PathPattern:
    segments = [part.partition(HIDDEN) for part in form.split("/")[1:]]
    head = tuple(Segment(prefix=first, suffix=last, wild=bool(star)) for first, star, last in segments)
    return PathPattern(text=form, head=head, deep=deep)


def _disjoint(rule: PathPattern, shape: PathPattern) -> bool:
    """Whether no path of `shape` can be one of the rule's. Sound, not complete: a doubt is a no."""
    size, least = len(shape.head), len(rule.head) + ((len(rule.tail) or 1) if rule.deep else 0)
    if shape.deep:
        if not rule.deep and size + 1 > least:
            return True
    elif size < least or (not rule.deep and size != least):
        return True
    if any(not _meet(one, other) for one, other in zip(rule.head, shape.head, strict=False)):
        return True
    if shape.deep or not rule.tail:
        return False
    ends = shape.head[size - len(rule.tail) :]
    return any(not _meet(one, other) for one, other in zip(rule.tail, ends, strict=True))


def _meet(one: Segment, other: Segment) -> bool:
    """Whether some segment may be both. What a deny rule compares may have lost its end, so a star may be empty."""
    if not one.wild and not other.wild:
        return one.prefix == other.prefix
    if one.wild and other.wild:
        first, second = one.prefix, other.prefix
        return first.startswith(second) or second.startswith(first)
    wild, plain = (one, other) if one.wild else (other, one)
    return plain.prefix.startswith(wild.prefix)


def _query(rule: Rule, asked: Asked, hides: bool) -> Takes | None:
    if rule.query is None or not hides:
        return None
    if asked.cut:
        return Takes.MAYBE
    allows = rule.action is Action.ALLOW
    judge_one = _accepted if allows else _hit
    found = [judge_one(rule.query, one) for one in canonical_parameters(asked.facts.query) or ()]
    decisive, other = (Takes.NO, Takes.YES) if allows else (Takes.YES, Takes.NO)
    return decisive if decisive in found else Takes.MAYBE if Takes.MAYBE in found else other


def _accepted(patterns: tuple[QueryPattern, ...], parameter: str) -> Takes:
    """Whether an allow rule takes one parameter, of which the value or all may be hidden."""
    name, _, value = parameter.partition("=")
    if HIDDEN in name:
        return Takes.MAYBE if patterns else Takes.NO
    sure = [pattern for pattern in patterns if pattern.any_value] if value else patterns
    if accepts(sure, (parameter,)):
        return Takes.YES
    return Takes.MAYBE if value and any(pattern.name == name for pattern in patterns) else Takes.NO


def _hit(patterns: tuple[QueryPattern, ...], parameter: str) -> Takes:
    """Whether a deny rule is hit by one parameter. What it takes for the same is known to `hits` alone."""
    name, _, value = parameter.partition("=")
    if HIDDEN in name:
        return Takes.MAYBE if patterns else Takes.NO
    sure = [pattern for pattern in patterns if pattern.any_value] if value else patterns
    if hits(sure, (parameter,)):
        return Takes.YES
    by_name = [structs.replace(pattern, any_value=True) for pattern in patterns]
    return Takes.MAYBE if value and hits(by_name, (parameter,)) else Takes.NO
