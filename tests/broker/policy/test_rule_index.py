"""Many rules on one host: the narrowed list decides like asking every rule in turn."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.policy import rule_index
from broker.policy.decide import Allowed, decide
from broker.policy.rules import Action, Policy
from tests.broker.policy.asking import ask, policy_of

RULE = '[[rule]]\nname = "{name}"\naction = "{action}"\nhosts = ["{host}"]\n{more}\n'


def many(count: int, action: str = "allow", host: str = "api.example.com") -> str:
    return "".join(
        RULE.format(name=f"r{n}", action=action, host=host, more=f'paths = ["/org/repo-{n}/**"]') for n in range(count)
    )


@pytest.mark.parametrize("host", ["api.example.com", "*.example.com", "?.example.com"])
def test_only_the_rules_that_can_match_are_asked(host: str) -> None:
    policy = policy_of(many(500, host=host))
    facts = ask("GET https://api.example.com/org/repo-321/x")
    asked = policy.allow.candidates(facts)
    assert asked[0].name == "r321"
    assert len(asked) <= 2 * rule_index.CROWD
    verdict = decide(facts, policy, None, 0.0)
    assert isinstance(verdict, Allowed)
    assert verdict.rule.name == "r321"


@pytest.mark.parametrize("path", ["/org/repo-1/../repo-2", "/org/repo-1%2fx", "/org//repo-1/x", "/org/none/x"])
def test_a_path_that_no_rule_takes_costs_little_too(path: str) -> None:
    policy = policy_of(many(500))
    facts = ask(f"GET https://api.example.com{path}")
    assert len(policy.allow.candidates(facts)) <= rule_index.CROWD
    assert decide(facts, policy, None, 0.0).reason == "path_not_allowed"


def test_an_ambiguous_path_still_hits_each_of_many_deny_rules() -> None:
    policy = policy_of(RULE.format(name="all", action="allow", host="api.example.com", more="") + many(100, "deny"))
    assert decide(ask("GET https://api.example.com/org/%72epo-99/x"), policy, None, 0.0).reason == "rule_deny"
    assert decide(ask("GET https://api.example.com/org/repo-99/x"), policy, None, 0.0).reason == "rule_deny"
    assert decide(ask("GET https://api.example.com/org/repo-100/x"), policy, None, 0.0).reason == "rule_allow"


# Some servers take these for a denied path; an allowed one they are not. Few rules and many answer alike.
SPELLINGS = [
    ("/Top/Repo-9/Secret", "/top/repo-9/secret"),
    ("/top/REPO-9/secret", "/top/repo-9/secret"),
    ("/top/repo-9/secret.", "/top/repo-9/secret"),
    ("/top./repo-9%20/SECRET%20.", "/top/repo-9/secret"),
    ("/top/repo-9/secret", "/top/Repo-9/SECRET"),
    ("/top/repo-9/secret", "/top./repo-9/secret"),
    ("/top/repo-9/caf%C3%A9", "/top/repo-9/Caf%c3%a9"),
    ("/top/repo-9/CAF%C3%89", "/top/repo-9/caf%C3%A9"),
    ("/top/repo-9/cafe%CC%81", "/top/repo-9/caf%C3%A9"),
    ("/top/repo-9/stra%C3%9Fe", "/top/repo-9/STRASSE"),
    ("/top/repo-9/a%20b", "/top/repo-9/A%20B"),
]


@pytest.mark.parametrize("number", [1, 100])
@pytest.mark.parametrize(("path", "pattern"), SPELLINGS)
def test_another_spelling_is_a_hit_for_a_deny_rule_only(path: str, pattern: str, number: int) -> None:
    host = "api.example.com"
    allowed = RULE.format(name="all", action="allow", host=host, more='paths = ["/**"]')
    denied = RULE.format(name="no", action="deny", host=host, more=f'paths = ["{pattern}"]')
    verdict = decide(ask(f"GET https://{host}{path}"), policy_of(allowed + many(number, "deny") + denied), None, 0.0)
    dropped = pattern == "/top./repo-9/secret"  # a pattern is meant as it stands: less is another name
    assert verdict.reason == ("rule_allow" if dropped else "rule_deny")
    only = RULE.format(name="only", action="allow", host=host, more=f'paths = ["{pattern}"]')
    verdict = decide(ask(f"GET https://{host}{path}"), policy_of(many(number) + only), None, 0.0)
    assert verdict.reason == ("rule_allow" if path == pattern else "path_not_allowed")


def test_a_shadowed_rule_among_many_still_observes() -> None:
    shadow = RULE.format(
        name="trial", action="allow", host="api.example.com", more='paths = ["/trial"]\nenforce = false'
    )
    verdict = decide(ask("GET https://api.example.com/other"), policy_of(many(100) + shadow), None, 0.0)
    assert isinstance(verdict, Allowed)
    assert (verdict.rule.name, verdict.reason) == ("trial", "observed")


PATHS = ["/**", "/a", "/a/**", "/a/b/**", "/a/b/c/d/**", "/*/b", "/a*/b", "/**/c", "/", "/a/b/c", "/b/*/c"]
KEYS = st.fixed_dictionaries(
    {
        "host": st.sampled_from(["api.example.com", "*.example.com", "?.example.com"]),
        "action": st.sampled_from(["allow", "allow", "deny"]),
    },
    optional={
        "paths": st.lists(st.sampled_from(PATHS), min_size=1, max_size=2),
        "methods": st.lists(st.sampled_from(["GET", "POST"]), min_size=1, max_size=1),
        "enforce": st.booleans(),
    },
)
ASKED = st.builds(
    lambda method, path: ask(f"{method} https://api.example.com{path}"),
    st.sampled_from(["GET", "POST"]),
    st.sampled_from(
        ["/", "/a", "/a/", "/a/b", "/a/b/c", "/a/b/c/d/e", "/b/x/c", "/ab/b", "/x/../a", "/%61", "/c", "/z/z/c"]
    ),
)


def build(rules: list[dict[str, Any]]) -> Policy:
    texts = []
    for number, keys in enumerate(rules):
        more = "\n".join(
            f"{key} = {str(value).lower() if key == 'enforce' else value}"
            for key, value in keys.items()
            if key not in {"host", "action"}
        )
        texts.append(RULE.format(name=f"r{number}", action=keys["action"], host=keys["host"], more=more))
    return policy_of("".join(texts))


@settings(max_examples=150)
@given(st.lists(KEYS, min_size=1, max_size=7), ASKED)
def test_a_crowd_decides_like_each_rule_in_turn(rules: list[dict[str, Any]], facts: Any) -> None:
    plain = build(rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule_index, "CROWD", 0)
        crowded = replace(plain)
        crowded_verdict = decide(facts, crowded, None, 0.0)
    verdict = decide(facts, plain, None, 0.0)
    assert type(crowded_verdict) is type(verdict)
    assert crowded_verdict.reason.family is verdict.reason.family
    if isinstance(verdict, Allowed) and verdict.would is None:
        assert crowded_verdict.rule == verdict.rule
    assert {rule.action for rule in crowded.allow.candidates(facts)} <= {Action.ALLOW}
