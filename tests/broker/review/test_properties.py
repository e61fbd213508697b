"""Random requests under random policies: what a suggestion claims, it does, and no more; a replay never guesses."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from broker.audit.records import Entry
from broker.policy.authority import Authority
from broker.policy.decide import Allowed
from broker.policy.document import parse_policy
from broker.policy.facts import Facts
from broker.policy.names import HostName
from broker.policy.paths import canonical_path
from broker.policy.queries import canonical_parameters
from broker.policy.rules import Mode, Policy
from broker.review.fate import Fates, Told
from broker.review.judging import judge
from broker.review.replay import replay
from broker.review.suggest import Suggestion, format_rules, suggest
from tests.broker.review.logged import logged
from tests.broker.review.requests import names_of, policies, requests


def enforced(policy: Policy, suggestion: Suggestion) -> Policy:
    return replace(policy, mode=Mode.ENFORCE, rules=(*policy.rules, *[one.rule for one in suggestion.rules]))


def claimed(suggestion: Suggestion) -> set[str]:
    """Ids of the records that a rule is claimed to cover (examples hold all of them: there are few)."""
    return {identity for one in suggestion.rules for identity in one.examples}


@settings(max_examples=120, deadline=None)
@given(facts=st.lists(requests(), min_size=1, max_size=3), policy=policies())
def test_what_is_claimed_is_allowed_and_the_rules_load(facts: list[Facts], policy: Policy) -> None:
    entries = [logged(one, policy) for one in facts]
    suggestion = suggest(entries, policy)
    whole = parse_policy(f"version = 1\n{format_rules(suggestion)}", source="suggestion")
    assert whole.rules == tuple(one.rule for one in suggestion.rules)
    assert not names_of(whole.rules) & names_of(policy.rules)
    after = enforced(policy, suggestion)
    for entry, one in zip(entries, facts, strict=True):
        if entry.id in claimed(suggestion):
            # Whether a WebSocket was asked for is on record only where that was the reason.
            seen = structs.replace(one, websocket="websocket_not_allowed" in f"{entry.reason} {entry.detail}")
            verdict = judge(seen, after)
            assert isinstance(verdict, Allowed) or is_unclear(one), (verdict, format_rules(suggestion))
    told = sum(one.refusals for one in suggestion.rules) + sum(one.count for one in suggestion.apart)
    assert told == suggestion.refusals


def is_unclear(facts: Facts) -> bool:
    """A part that the log hides may be what no rule takes."""
    return canonical_path(facts.path or "") is None or canonical_parameters(facts.query) is None


CHANGES: list[dict[str, Any]] = [
    {"authority": Authority(HostName("elsewhere.example.org"), 443)},
    {"authority": Authority(HostName("c.example.com"), 443)},
    {"method": "PATCH"},
    {"path": "/elsewhere"},
    {"path": "/a/elsewhere/b"},
    {"path": "/admin/elsewhere"},
]


@settings(max_examples=120, deadline=None)
@given(facts=st.lists(requests(), min_size=1, max_size=4), change=st.sampled_from([*CHANGES, None]))
def test_what_differs_from_all_that_was_seen_is_not_allowed(facts: list[Facts], change: dict[str, Any] | None) -> None:
    policy = Policy(version="0", enabled=True)
    suggestion = suggest([logged(one, policy) for one in facts], policy)
    exact = Policy(version="1", enabled=True, rules=tuple(one.rule for one in suggestion.rules if not one.widened))
    other = structs.replace(facts[0], **(change or {"authority": Authority(facts[0].authority.host, 4443)}))
    assert not isinstance(judge(other, exact), Allowed), format_rules(suggestion)


@settings(max_examples=120, deadline=None)
@given(facts=st.lists(requests(), min_size=2, max_size=5))
def test_a_rule_is_no_product_of_what_was_seen(facts: list[Facts]) -> None:
    """Parts of two requests together are a third, which nobody asked for."""
    policy = Policy(version="0", enabled=True)
    suggestion = suggest([logged(one, policy) for one in facts], policy)
    exact = Policy(version="1", enabled=True, rules=tuple(one.rule for one in suggestion.rules if not one.widened))
    seen = {key(one) for one in facts} | {
        key(structs.replace(one, method="HEAD")) for one in facts if one.method == "GET"
    }
    for first in facts:
        for second in facts:
            for part in ("authority", "method", "path"):
                mixed = structs.replace(first, **{part: getattr(second, part)})
                assert key(mixed) in seen or not isinstance(judge(mixed, exact), Allowed)


def key(facts: Facts) -> tuple[object, ...]:
    return facts.authority, facts.method, canonical_path(facts.path or "")


@settings(max_examples=250, deadline=None)
@given(facts=requests(), old=policies(), new=policies())
def test_a_replay_tells_what_would_be_decided_or_nothing(facts: Facts, old: Policy, new: Policy) -> None:
    entry = logged(facts, old)
    fate = Fates(new).of(entry)
    if not isinstance(fate, Told):
        return
    seen = structs.replace(facts, websocket="websocket_not_allowed" in f"{entry.reason} {entry.detail}")
    verdict = judge(seen, new)
    if fate.assumed and is_unclear(seen):
        return
    assert (fate.verdict == "allow") is isinstance(verdict, Allowed), (entry, verdict)
    assert fate.reason in {"", verdict.reason}
    assert fate.rule in {"", verdict.rule.name if verdict.rule else ""}


@settings(max_examples=40, deadline=None)
@given(facts=st.lists(requests(), max_size=5), old=policies(), new=policies())
def test_a_replay_counts_each_decision_once(facts: list[Facts], old: Policy, new: Policy) -> None:
    entries: list[Entry] = [logged(one, old) for one in facts]
    assert sum(group.count for group in replay(entries, new).groups) == len(entries)
