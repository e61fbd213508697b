"""Grants: what the policy covers (soundly), and when a budget is used up (exactly)."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.policy.decide import Allowed, decide
from broker.policy.grant_rules import GRANT_RULE_KEYS, MAX_ENTRIES, MAX_RULES, parse_grant_rules
from broker.policy.grants import (
    Budgets,
    CallId,
    Grant,
    GrantId,
    Spend,
    Usage,
    check_budget,
    covered_by,
    tokens_left,
    uncovered,
)
from broker.policy.problems import PolicyError
from broker.policy.reasons import Reason
from tests.broker.policy.asking import ask, policy_of

POLICY = policy_of("""
[[rule]]
name = "api"
action = "allow"
hosts = ["api.example.com", "*.pkg.example"]
ports = [443, 8443]
methods = ["GET", "POST"]
paths = ["/v1/**", "/health"]
query = ["page=*"]
addresses = ["10.1.0.0/16"]
[[rule]]
name = "put"
action = "allow"
hosts = ["api.example.com"]
methods = ["PUT"]
[[rule]]
name = "pinned"
action = "allow"
hosts = ["pinned.example.com"]
tls = "splice"
[[rule]]
name = "open"
action = "allow"
hosts = ["?.open.example"]
ports = [443, 80]
websocket = true
[[rule]]
name = "named"
action = "allow"
hosts = ["db.internal"]
[[rule]]
name = "resolvers"
action = "allow"
hosts = ["*.nextdns.io", "dns.quad9.net"]
[[rule]]
name = "no-secret"
action = "deny"
hosts = ["secret.pkg.example"]
[[rule]]
name = "no-admin"
action = "deny"
hosts = ["a.open.example"]
paths = ["/admin"]
""")
BASE = {"name": "g", "action": "allow", "hosts": ["api.example.com"]}
NARROW = {"methods": ["GET"], "paths": ["/v1/x"], "query": ["page=1"]}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({**NARROW}, []),
        ({**NARROW, "methods": ["GET", "POST"]}, []),
        ({**NARROW, "methods": ["HEAD"]}, []),
        ({**NARROW, "paths": ["/v1/*", "/health"]}, []),
        ({**NARROW, "query": "none"}, []),
        ({**NARROW, "ports": [8443, 443]}, []),
        ({**NARROW, "addresses": ["10.1.2.0/24"]}, []),
        ({**NARROW, "hosts": ["api.example.com", "x.pkg.example", "*.y.pkg.example", "?.pkg.example"]}, []),
        # Each part may be covered by another rule.
        ({"methods": ["PUT"]}, []),
        ({**NARROW, "methods": ["GET", "PUT"]}, []),
        ({"hosts": ["pinned.example.com"], "tls": "splice"}, []),
        ({"hosts": ["x.open.example"], "websocket": True, "ports": [80]}, []),
        ({"hosts": ["db.internal"]}, []),
        ({"hosts": ["dns.quad9.net", "www.nextdns.io"]}, []),
        ({"action": "deny", "hosts": ["anything.example.net"]}, []),
        # Not covered: the part and the dimension are named.
        ({**NARROW, "hosts": ["evil.example"]}, ["evil.example", "no rule of the policy allows this host"]),
        ({**NARROW, "hosts": ["pkg.example"]}, ["no rule"]),
        ({**NARROW, "hosts": ["*.example.com"]}, ["*.example.com", "no rule"]),
        ({**NARROW, "hosts": ["secret.pkg.example"]}, ["denied by the policy's rule no-secret"]),
        ({**NARROW, "ports": [443, 22]}, ["port 22", "rule api does not cover its port"]),
        ({**NARROW, "methods": ["DELETE"]}, ["DELETE", "its method"]),
        ({**NARROW, "methods": ["get"]}, ["get", "its method"]),
        ({"paths": ["/v1/x"], "query": ["page=1"]}, ["any method", "its method"]),
        ({**NARROW, "paths": ["/v2/x"]}, ["/v2/x", "its path"]),
        ({**NARROW, "paths": ["/**"]}, ["/**", "its path"]),
        ({"methods": ["GET"], "query": ["page=1"]}, ["any path", "its path"]),
        ({"methods": ["GET"], "paths": ["/v1/x"]}, ["its query"]),
        ({**NARROW, "query": ["page=1", "admin=1"]}, ["its query"]),
        ({**NARROW, "websocket": True}, ["websocket", "its websocket"]),
        ({**NARROW, "addresses": ["10.0.0.0/8"]}, ["10.0.0.0/8", "its address"]),
        ({**NARROW, "addresses": ["10.1.2.0/24", "fd00::/8"]}, ["fd00::/8", "its address"]),
        ({"methods": ["PUT"], "addresses": ["10.1.2.3"]}, ["10.1.2.3", "its"]),
        ({"hosts": ["pinned.example.com"]}, ["tls inspect", "its tls plane"]),
        ({**NARROW, "tls": "inspect", "plain_http": True}, ["its plain HTTP"]),
        ({"hosts": ["*.open.example"]}, ["no rule"]),
        ({"hosts": ["x.db.internal"]}, ["no rule"]),
        # Only a rule that names a resolver opens it, so the wildcard above does not hand it on.
        ({"hosts": ["dns.nextdns.io"]}, ["dns.nextdns.io", "no rule"]),
        ({"hosts": ["198.51.100.7"], "ports": [443]}, ["198.51.100.7", "no rule"]),
    ],
)
def test_a_grant_is_covered_by_the_policy_or_the_uncovered_part_is_named(more: Any, words: list[str]) -> None:
    missing = uncovered(parse_grant_rules([{**BASE, **more}]), POLICY)
    assert bool(missing) is bool(words), missing
    for word in words:
        assert any(word in line for line in missing), missing


def test_every_uncovered_part_is_listed_up_to_a_bound() -> None:
    rules = parse_grant_rules([{**BASE, "hosts": [f"h{number}.example.net" for number in range(50)]}])
    assert len(uncovered(rules, POLICY, most=200)) == 50
    assert len(uncovered(rules, POLICY)) == 20


def test_an_empty_policy_covers_nothing() -> None:
    assert uncovered(parse_grant_rules([BASE]), policy_of(""))


def test_a_grant_of_very_many_combinations_is_judged_without_going_through_them() -> None:
    many = range(2000)
    everything = {
        "hosts": [f"h{n}.pkg.example" for n in many],
        "methods": [f"M{n}" for n in many],
        "paths": [f"/p{n}" for n in many],
        "addresses": [f"10.0.{n // 256}.{n % 256}" for n in many],
    }
    text = '[[rule]]\nname = "wide"\naction = "allow"\nhosts = ["*.pkg.example"]\naddresses = ["10.0.0.0/8"]'
    grant = parse_grant_rules([{**BASE, **everything}])
    assert uncovered(grant, policy_of(text)) == []
    # No one rule covers it: what cannot be compared in time is not covered.
    half = f'{text}\nmethods = ["M1"]\n{text.replace("wide", "rest")}\nmethods = {[f"M{n}" for n in many if n != 1]}'
    missing = uncovered(grant, policy_of(half))
    assert len(missing) == 1
    assert "combinations" in missing[0]
    # A denial of one host is still seen.
    denied = f'{text}\n[[rule]]\nname = "bad"\naction = "deny"\nhosts = ["h1999.pkg.example"]'
    assert "denied by the policy's rule bad" in uncovered(grant, policy_of(denied))[0]


def test_covered_by_asks_one_rule_alone() -> None:
    both = parse_grant_rules([{**BASE, **NARROW, "methods": ["GET", "PUT"]}])[0]
    assert not any(covered_by(rule, both) for rule in POLICY.rules)
    assert covered_by(POLICY.rules[0], parse_grant_rules([{**BASE, **NARROW}])[0])


HOSTS = ["api.example.com", "b.example.com", "a.b.example.com", "example.com"]
RULE = st.fixed_dictionaries(
    {
        "hosts": st.lists(
            st.sampled_from([*HOSTS, "*.example.com", "?.example.com", "*.b.example.com"]), min_size=1, max_size=2
        ),
        "ports": st.lists(st.sampled_from([80, 443]), min_size=1, max_size=2),
    },
    optional={
        "methods": st.lists(st.sampled_from(["GET", "HEAD", "POST"]), min_size=1, max_size=2),
        "paths": st.lists(st.sampled_from(["/**", "/v1/**", "/v1/*", "/v1/x", "/**/x"]), min_size=1, max_size=2),
        "query": st.one_of(st.just("none"), st.lists(st.sampled_from(["a=*", "a=1", "b"]), min_size=1, max_size=2)),
        "websocket": st.booleans(),
        "plain_http": st.booleans(),
    },
)
RULES = st.lists(RULE, min_size=1, max_size=3).map(
    lambda rules: parse_grant_rules([{"name": f"r{n}", "action": "allow", **rule} for n, rule in enumerate(rules)])
)
QUESTIONS = st.builds(
    lambda method, scheme, host, port, rest: ask(f"{method} {scheme}://{host}:{port}{rest}"),
    st.sampled_from(["GET", "HEAD", "POST", "CONNECT"]),
    st.sampled_from(["https", "http", "wss", "ws"]),
    st.sampled_from([*HOSTS, "x.y.example.com"]),
    st.sampled_from([80, 443]),
    st.sampled_from(["/v1/x", "/v1/y?a=1", "/v1/x?a=2&b", "/x", "/", "/v1/%2e%2e/x", "/v1/x?b"]),
).filter(lambda facts: facts.authority is not None)


@settings(max_examples=400)
@given(RULES, RULES, QUESTIONS)
def test_what_a_covered_grant_allows_the_policy_allows(wide: Any, narrow: Any, facts: Any) -> None:
    policy = policy_with(wide)
    if not uncovered(narrow, policy) and isinstance(decide(facts, policy_with(narrow), None, 0.0), Allowed):
        assert isinstance(decide(facts, policy, None, 0.0), Allowed)


@given(RULES)
def test_a_policy_covers_its_own_rules(rules: Any) -> None:
    assert uncovered(rules, policy_with(rules)) == []


def policy_with(rules: Any) -> Any:
    return replace(policy_of(""), rules=rules)


def grant(**budgets: Any) -> Grant:
    rules = parse_grant_rules([BASE])
    return Grant(
        id=GrantId("g"), call=CallId("c"), rules=rules, issued_at=0.0, expires_at=100.0, budgets=Budgets(**budgets)
    )


@pytest.mark.parametrize(
    ("budget", "counter", "spend"),
    [
        ("uses", "uses", Spend.USE),
        ("connections", "connections", Spend.CONNECTION),
        ("requests", "requests", Spend.REQUEST),
    ],
)
def test_a_budget_of_n_allows_exactly_n(budget: str, counter: str, spend: Spend) -> None:
    issued, usage = grant(**{budget: 3}), Usage()
    for _ in range(3):
        assert check_budget(issued, usage, 0.0, spend) is None
        setattr(usage, counter, getattr(usage, counter) + 1)
    # What is open stays open; the next is refused.
    assert check_budget(issued, usage, 0.0) is None
    assert check_budget(issued, usage, 0.0, spend) is Reason.GRANT_EXHAUSTED
    assert {check_budget(issued, usage, 0.0, other) for other in Spend if other not in {spend, Spend.NOTHING}} == {None}


@pytest.mark.parametrize("counter", ["bytes_up", "bytes_down"])
def test_bytes_are_exact_and_cut_what_is_open(counter: str) -> None:
    def used(number: int) -> Usage:
        return replace(Usage(), **{counter: number})  # type: ignore[arg-type]

    issued = grant(**{counter: 1000})
    assert check_budget(issued, used(999), 0.0, Spend.REQUEST) is None
    assert check_budget(issued, used(1000), 0.0) is None
    assert check_budget(issued, used(1000), 0.0, Spend.CONNECTION) is Reason.GRANT_EXHAUSTED
    assert check_budget(issued, used(1001), 0.0) is Reason.GRANT_EXHAUSTED


def test_a_budget_of_zero_allows_none() -> None:
    assert check_budget(grant(requests=0), Usage(), 0.0, Spend.REQUEST) is Reason.GRANT_EXHAUSTED
    assert check_budget(grant(), Usage(requests=10**9, bytes_up=10**15), 0.0, Spend.REQUEST) is None


def test_revoked_before_expired_before_exhausted_before_the_rate() -> None:
    issued = grant(requests=0, rate=1)
    spent = Usage(tokens=0.0)
    order = [
        check_budget(issued, Usage(revoked=True), 100.0, Spend.REQUEST),
        check_budget(issued, Usage(), 100.0, Spend.REQUEST),
        check_budget(issued, spent, 0.0, Spend.REQUEST),
        check_budget(grant(rate=1), spent, 0.0, Spend.REQUEST),
    ]
    assert order == [Reason.GRANT_REVOKED, Reason.GRANT_EXPIRED, Reason.GRANT_EXHAUSTED, Reason.RATE_LIMITED]
    assert Reason.RATE_LIMITED.status == 429


def test_the_rate_refills_and_never_above_its_burst() -> None:
    issued, usage = grant(rate=2.0), Usage()
    assert tokens_left(issued, usage, 0.0) == 2.0
    usage.tokens, usage.tokens_at = 0.0, 10.0
    assert check_budget(issued, usage, 10.0, Spend.REQUEST) is Reason.RATE_LIMITED
    assert check_budget(issued, usage, 10.5, Spend.REQUEST) is None
    assert check_budget(issued, usage, 10.5, Spend.CONNECTION) is None
    levels = [tokens_left(issued, usage, now) for now in (5.0, 10.0, 10.25, 11.0, 90.0)]
    assert levels == [0.0, 0.0, 0.5, 2.0, 2.0]
    assert all(low <= high for low, high in pairwise(levels))
    assert tokens_left(grant(rate=0.1), Usage(), 0.0) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"requests": -1}, {"bytes_up": -1}, {"rate": 0}, {"rate": -1}, {"rate": float("inf")}, {"rate": float("nan")}],
)
def test_a_budget_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Budgets(**wrong)


@pytest.mark.parametrize("expiry", [0.0, -1.0, float("inf"), float("nan")])
def test_a_grant_always_expires(expiry: float) -> None:
    with pytest.raises(ValueError, match="expires"):
        Grant(id=GrantId("g"), call=CallId("c"), rules=(), issued_at=0.0, expires_at=expiry)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "a list"),
        ([], "at least one"),
        ({}, "a list"),
        ("api.example.com", "a list"),
        (["api.example.com"], "an object"),
        ([{**BASE, "enforce": False}], "unknown key"),
        ([{**BASE, "preset": "pip"}], "unknown key"),
        ([{**BASE, "allow_public_suffix": True}], "unknown key"),
        ([{**BASE, "hosts": ["*.github.io"]}], "public suffix"),
        ([{**BASE, "hosts": ["*"]}], "every host"),
        ([{**BASE, "hosts": []}], "empty"),
        ([{"name": "g", "hosts": ["api.example.com"]}], "action is missing"),
        ([BASE, BASE], "used twice"),
        ([BASE] * (MAX_RULES + 1), "at most"),
        ([{**BASE, "paths": [f"/{n}" for n in range(MAX_ENTRIES)]}], "at most"),
        ([{**BASE, "tls": "splice", "paths": ["/x"]}], "splice"),
    ],
)
def test_the_rules_of_a_grant_are_read_strictly(document: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        parse_grant_rules(document)


def test_a_grant_has_no_key_that_widens() -> None:
    assert not {"enforce", "preset", "allow_public_suffix"} & set(GRANT_RULE_KEYS)
