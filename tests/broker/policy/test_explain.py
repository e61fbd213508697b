"""Explanations: the sentence says the verdict, and the change that is named really turns it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from broker.policy.decide import Allowed, decide
from broker.policy.explain import explain
from broker.policy.grants import CallId, Grant, GrantId
from broker.policy.load import parse_policy
from broker.policy.reasons import Reason
from tests.broker.policy.asking import ask, policy_of

CASES: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "cases" / "policy_decisions.toml").read_text("utf-8")
)
RULE = '[[rule]]\nname = "api"\naction = "allow"\nhosts = ["api.example.com"]\n'


@pytest.mark.parametrize(
    ("group", "case"),
    [
        pytest.param(group, case, id=f"{group['name']}: {case['ask']!a}")
        for group in CASES["group"]
        for case in group["cases"]
    ],
)
def test_every_verdict_is_explained(group: dict[str, Any], case: dict[str, str]) -> None:
    policy = parse_policy(group["policy"], source="test")
    explanation = explain(ask(case["ask"]), policy, None, 0.0)
    assert explanation.sentence.endswith(".")
    assert explanation.turn.endswith(".")
    assert explanation.sentence.isprintable()
    assert explanation.verdict.reason.value in explanation.sentence
    word = "is allowed" if isinstance(explanation.verdict, Allowed) else "is denied"
    assert word in explanation.sentence
    if explanation.verdict.rule is not None and explanation.verdict.rule.name != "(observe)":
        assert explanation.verdict.rule.name in explanation.sentence + explanation.turn


@pytest.mark.parametrize(
    ("keys", "text", "turn", "changed"),
    [
        ("", "GET https://api.example.com:8443/", "Add 8443 to ports in rule api", "ports = [443, 8443]"),
        (
            'methods = ["GET"]',
            "PUT https://api.example.com/",
            'Add "PUT" to methods in rule api',
            'methods = ["GET", "PUT"]',
        ),
        ('paths = ["/v1/**"]', "GET https://api.example.com/v2", 'Add "/v2" to paths in rule api', 'paths = ["/v2"]'),
        ('paths = ["/v1/**"]', "GET https://api.example.com/v1/../x", "remove paths in rule api", ""),
        ('query = ["a=*"]', "GET https://api.example.com/?b=1&a=2&b=3", 'Add "b=*" to query', 'query = ["a=*", "b=*"]'),
        ('query = "none"', "GET https://api.example.com/?b;c", "remove query in rule api", ""),
        ("", "GET wss://api.example.com/", "Set websocket = true in rule api", "websocket = true"),
        ("", "GET http://api.example.com:443/", "plain_http = true in rule api", "plain_http = true"),
    ],
)
def test_the_change_turns_the_verdict(keys: str, text: str, turn: str, changed: str) -> None:
    explanation = explain(ask(text), policy_of(RULE + keys), None, 0.0)
    assert not isinstance(explanation.verdict, Allowed)
    assert turn in explanation.turn
    assert isinstance(decide(ask(text), policy_of(RULE + changed), None, 0.0), Allowed)


def test_a_host_without_a_rule() -> None:
    explanation = explain(ask("GET https://other.example.com/"), policy_of(RULE), None, 0.0)
    assert explanation.turn == (
        'Add a rule with action = "allow", hosts = ["other.example.com"], ports = [443] in the policy.'
    )


def test_the_flag_and_what_would_come_then() -> None:
    explanation = explain(ask("PUT https://api.example.com/"), policy_of(RULE + 'methods = ["GET"]', ""), None, 0.0)
    assert explanation.verdict.reason is Reason.EGRESS_OFF
    assert explanation.turn.startswith("Set enabled = true in [egress]. Then: PUT")
    assert "method_not_allowed" in explanation.turn


def test_a_request_that_is_spliced_is_explained_as_its_connection() -> None:
    explanation = explain(ask("GET https://api.example.com/x"), policy_of(RULE + 'tls = "splice"'), None, 0.0)
    assert isinstance(explanation.verdict, Allowed)
    assert "it is spliced, so no request in it is judged" in explanation.sentence


def test_a_name_that_is_never_reached() -> None:
    explanation = explain(ask("GET https://localhost/"), policy_of(RULE), None, 0.0)
    assert explanation.turn == "No rule can turn it."


def test_a_grant_is_named_where_it_is_what_denies() -> None:
    grant = Grant(
        id=GrantId("g7"),
        call=CallId("c"),
        rules=policy_of(RULE.replace('"api"', '"only-read"') + 'methods = ["GET"]').rules,
        issued_at=0.0,
        expires_at=10.0,
    )
    denied = explain(ask("PUT https://api.example.com/"), policy_of(RULE), grant, 0.0)
    assert denied.turn == 'Add "PUT" to methods in rule only-read of grant g7.'
    other = explain(ask("GET https://b.example.com/"), policy_of(RULE.replace("api.example", "*.example")), grant, 0.0)
    assert other.turn.endswith("in grant g7.")
    allowed = explain(ask("GET https://api.example.com/"), policy_of(RULE), grant, 0.0)
    assert "by rule api and by rule only-read of grant g7" in allowed.sentence
    assert explain(ask("GET https://api.example.com/"), policy_of(RULE), grant, 10.0).turn == "Issue a new grant."


def test_what_is_only_observed_says_so() -> None:
    shadowed = explain(
        ask("PUT https://api.example.com/"), policy_of(RULE + 'methods = ["GET"]\nenforce = false'), None, 0.0
    )
    assert "is allowed (observed): it would be denied (method_not_allowed)" in shadowed.sentence
    assert shadowed.turn == "With enforce = true in rule api it would be denied."
    policy = policy_of(RULE, 'enabled = true\nmode = "observe"')
    observed = explain(ask("GET https://b.example.com/"), policy, None, 0.0)
    assert observed.turn.startswith('With mode = "enforce" it would be denied; then: Add a rule')
    denial = policy_of(RULE + RULE.replace('"api"', '"no"').replace("allow", "deny") + "enforce = false")
    assert explain(ask("GET https://api.example.com/"), denial, None, 0.0).turn == (
        "With enforce = true in rule no it would be denied."
    )


def test_what_the_sandbox_wrote_is_escaped() -> None:
    odd = structs.replace(ask("GET https://api.example.com/"), path="/\r\n\x1b[31m", method="G\nT")
    explanation = explain(odd, policy_of(RULE + 'paths = ["/v1"]'), None, 0.0)
    assert explanation.sentence.isprintable()
    assert explanation.turn.isprintable()


@pytest.mark.parametrize(
    ("method", "path", "query", "reason"),
    [
        ("TRACE", "/", None, Reason.METHOD_REFUSED),
        ("track", "/", None, Reason.METHOD_REFUSED),
        ("G T", "/", None, Reason.BAD_REQUEST),
        ("", "/", None, Reason.BAD_REQUEST),
        ("M" * 33, "/", None, Reason.BAD_REQUEST),
        ("GET", "/a b", None, Reason.BAD_REQUEST),
        ("GET", "/a\\b", None, Reason.BAD_REQUEST),
        ("GET", "/\u00e9", None, Reason.BAD_REQUEST),
        ("GET", "/", "a=\x00", Reason.BAD_REQUEST),
    ],
)
@pytest.mark.parametrize("egress", ["enabled = true", 'enabled = true\nmode = "observe"', "enabled = false"])
def test_what_is_never_sent_is_not_called_allowed(
    method: str, path: str, query: str | None, reason: Reason, egress: str
) -> None:
    asked = structs.replace(ask("GET https://api.example.com/"), method=method, path=path, query=query)
    explanation = explain(asked, policy_of(RULE, egress), None, 0.0)
    assert explanation.verdict.reason is reason
    assert explanation.turn.startswith("No rule can turn it")
    assert explanation.sentence.isprintable()
