"""Verdicts: the tables of `tests/cases/policy_decisions.toml`, each neighbouring pair of the precedence, totality."""

import tomllib
from collections.abc import Callable
from ipaddress import IPv4Network
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from broker.policy import paths, queries
from broker.policy.addresses import parse_network
from broker.policy.decide import OBSERVER, PRECEDENCE, Allowed, Denied, Facts, Scheme, Stage, decide
from broker.policy.grants import CallId, Grant, GrantId
from broker.policy.load import parse_policy
from broker.policy.reasons import Family, Reason
from broker.policy.rules import Policy, Rule, TlsMode
from tests.broker.policy.asking import ask, policy_of

CASES: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "cases" / "policy_decisions.toml").read_text("utf-8")
)
POLICIES = {group["name"]: parse_policy(group["policy"], source="test") for group in CASES["group"]}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(group["name"], case, id=f"{group['name']}: {case['ask']!a}")
        for group in CASES["group"]
        for case in group["cases"]
    ],
)
def test_the_table(name: str, case: dict[str, str]) -> None:
    verdict = decide(ask(case["ask"]), POLICIES[name], None, 0.0)
    assert verdict.reason == case["reason"]
    assert (verdict.rule.name if verdict.rule else "") == case["rule"]
    match verdict:
        case Allowed():
            assert verdict.reason.family is Family.ALLOW
            assert (verdict.would.reason if verdict.would else None) == case.get("would")
        case Denied():
            assert verdict.reason.family is Family.DENY
            assert verdict.detail.isprintable()


def test_the_plane_is_that_of_the_rule() -> None:
    policy = POLICIES["planes"]
    planes = {
        "CONNECT https://api.example.com:443": TlsMode.INSPECT,
        "CONNECT https://pinned.example.com:443": TlsMode.SPLICE,
        "CONNECT https://a.example.net:443": TlsMode.SPLICE,
        "CONNECT https://seen.example.net:443": TlsMode.INSPECT,
    }
    for text, plane in planes.items():
        verdict = decide(ask(text), policy, None, 0.0)
        assert isinstance(verdict, Allowed)
        assert verdict.rule.tls is plane


def grant_of(rules: str, expires_at: float = 100.0) -> Grant:
    return Grant(
        id=GrantId("g1"), call=CallId("c1"), rules=policy_of(rules).rules, issued_at=0.0, expires_at=expires_at
    )


def rule(name: str, hosts: str, more: str = "", action: str = "allow") -> str:
    return f'[[rule]]\nname = "{name}"\naction = "{action}"\nhosts = [{hosts}]\n{more}\n'


API = '"api.example.com"'
ALLOW = rule("p", API)
DENY = rule("pd", API, action="deny")
CONNECT = "CONNECT https://api.example.com:443"

# Each row holds for both of two neighbours of PRECEDENCE; the first of them has to give the reason.
PAIRS: list[tuple[str, str, str, Policy, Grant | None, float, Reason]] = [
    ("flag off", "grant missing", CONNECT, policy_of(ALLOW, "require_grant = true"), None, 0, Reason.EGRESS_OFF),
    # A grant that is missing cannot have expired: the pair is that the requirement is asked before any grant's time.
    (
        "grant missing",
        "grant expired",
        CONNECT,
        policy_of(ALLOW, "enabled = true\nrequire_grant = true"),
        None,
        1000,
        Reason.GRANT_MISSING,
    ),
    (
        "grant expired",
        "special name",
        "CONNECT https://localhost:443",
        policy_of(ALLOW),
        grant_of(ALLOW),
        100,
        Reason.GRANT_EXPIRED,
    ),
    (
        "special name",
        "policy deny",
        "CONNECT https://db.internal:443",
        policy_of(rule("pd", '"db.internal"', action="deny")),
        None,
        0,
        Reason.SPECIAL_NAME,
    ),
    ("policy deny", "policy miss", "CONNECT https://api.example.com:9", policy_of(DENY), None, 0, Reason.RULE_DENY),
    (
        "policy miss",
        "grant deny",
        "GET https://api.example.com/x",
        policy_of(rule("p", API, 'methods = ["POST"]')),
        grant_of(ALLOW + rule("gd", API, action="deny")),
        0,
        Reason.METHOD_NOT_ALLOWED,
    ),
    (
        "grant deny",
        "grant miss",
        CONNECT,
        policy_of(ALLOW),
        grant_of(rule("g", '"other.example.com"') + rule("gd", API, action="deny")),
        0,
        Reason.RULE_DENY,
    ),
    (
        "grant miss",
        "allow",
        CONNECT,
        policy_of(ALLOW),
        grant_of(rule("g", '"other.example.com"')),
        0,
        Reason.HOST_NOT_ALLOWED,
    ),
]


def test_the_pairs_are_those_of_the_list() -> None:
    assert [(first, second) for first, second, *_ in PAIRS] == list(pairwise(PRECEDENCE))


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{first} before {second}" for first, second, *_ in PAIRS])
def test_precedence(pair: tuple[str, str, str, Policy, Grant | None, float, Reason]) -> None:
    *_, text, policy, grant, now, reason = pair
    assert decide(ask(text), policy, grant, now).reason is reason


def test_deny_wins_over_allow_for_the_same_host_whatever_the_order() -> None:
    for rules in (ALLOW + DENY, DENY + ALLOW):
        verdict = decide(ask(CONNECT), policy_of(rules), None, 0.0)
        assert verdict.reason is Reason.RULE_DENY


def test_the_effective_right_is_the_intersection() -> None:
    policy = policy_of(rule("p", '"*.example.com"', 'methods = ["GET", "POST"]\nwebsocket = true'))
    grant = grant_of(rule("g", API, 'paths = ["/v1/**"]\nmethods = ["GET", "DELETE"]'))
    expected = {
        "GET https://api.example.com/v1/x": Reason.RULE_ALLOW,
        "DELETE https://api.example.com/v1/x": Reason.METHOD_NOT_ALLOWED,
        "POST https://api.example.com/v1/x": Reason.METHOD_NOT_ALLOWED,
        "GET https://api.example.com/v2": Reason.PATH_NOT_ALLOWED,
        "GET https://b.example.com/v1/x": Reason.HOST_NOT_ALLOWED,
        "GET wss://api.example.com/v1/x": Reason.WEBSOCKET_NOT_ALLOWED,
        "GET https://api.example.com:8443/v1/x": Reason.PORT_NOT_ALLOWED,
    }
    assert {text: decide(ask(text), policy, grant, 0.0).reason for text in expected} == expected


def test_a_grant_is_over_at_its_expiry_and_not_before() -> None:
    policy, grant = policy_of(ALLOW), grant_of(ALLOW, expires_at=100.0)
    assert decide(ask(CONNECT), policy, grant, 99.999).reason is Reason.RULE_ALLOW
    assert decide(ask(CONNECT), policy, grant, 100.0).reason is Reason.GRANT_EXPIRED


def test_expiry_and_revoked_rights_hold_while_observing() -> None:
    policy = policy_of(ALLOW, 'enabled = true\nmode = "observe"')
    assert decide(ask(CONNECT), policy, grant_of(ALLOW), 100.0).reason is Reason.GRANT_EXPIRED


def test_observing_records_what_the_grant_would_deny_and_opens_no_private_address() -> None:
    policy = policy_of(rule("p", API, 'addresses = ["10.0.0.0/8"]'), 'enabled = true\nmode = "observe"')
    verdict = decide(ask(CONNECT), policy, grant_of(rule("g", '"other.example.com"')), 0.0)
    assert isinstance(verdict, Allowed)
    assert verdict.would is not None
    assert (verdict.would.reason, verdict.would.by_grant) == (Reason.HOST_NOT_ALLOWED, True)
    assert verdict.addresses == ()


@pytest.mark.parametrize(
    ("policy_plane", "grant_plane", "reason"),
    [
        ("inspect", "inspect", Reason.RULE_ALLOW),
        ("splice", "splice", Reason.RULE_ALLOW),
        ("inspect", "splice", Reason.HOST_NOT_ALLOWED),
        ("splice", "inspect", Reason.HOST_NOT_ALLOWED),
    ],
)
def test_a_grant_for_one_plane_gives_nothing_on_the_other(policy_plane: str, grant_plane: str, reason: Reason) -> None:
    policy = policy_of(rule("p", API, f'tls = "{policy_plane}"'))
    grant = grant_of(rule("g", API, f'tls = "{grant_plane}"'))
    assert decide(ask(CONNECT), policy, grant, 0.0).reason is reason


@pytest.mark.parametrize(
    ("policy_networks", "grant_networks", "expected"),
    [
        ('"10.0.0.0/8"', '"10.1.0.0/16"', ["10.1.0.0/16"]),
        ('"10.1.0.0/16"', '"10.0.0.0/8"', ["10.1.0.0/16"]),
        ('"10.1.0.0/16", "fd00::/8"', '"10.0.0.0/8", "fd00:1::/32"', ["10.1.0.0/16", "fd00:1::/32"]),
        ('"10.0.0.0/8"', '"192.168.0.0/16"', []),
        ('"10.0.0.0/8"', "", []),
        ("", '"10.0.0.0/8"', []),
    ],
)
def test_the_opened_networks_are_those_of_both(policy_networks: str, grant_networks: str, expected: list[str]) -> None:
    policy = policy_of(rule("p", API, f"addresses = [{policy_networks}]"))
    grant = grant_of(rule("g", API, f"addresses = [{grant_networks}]"))
    verdict = decide(ask(CONNECT), policy, grant, 0.0)
    assert isinstance(verdict, Allowed)
    assert list(verdict.addresses) == [parse_network(text) for text in expected]


def test_without_a_grant_the_networks_are_those_of_the_rule() -> None:
    verdict = decide(ask(CONNECT), policy_of(rule("p", API, 'addresses = ["10.0.0.0/8"]')), None, 0.0)
    assert isinstance(verdict, Allowed)
    assert verdict.addresses == (IPv4Network("10.0.0.0/8"),)


def test_the_observer_opens_no_address() -> None:
    assert OBSERVER.addresses == ()
    assert OBSERVER.tls is TlsMode.INSPECT


def test_a_detail_holds_nothing_that_the_sandbox_wrote_unescaped() -> None:
    policy = policy_of(rule("p", API, 'methods = ["GET"]\npaths = ["/v1"]\nquery = "none"'))
    odd = ask("GET https://api.example.com/v1")
    for facts in (
        structs.replace(odd, method="G\r\nX: y\x1b[0m"),
        structs.replace(odd, path="/\r\n\x1b[31m"),
        structs.replace(odd, query="token=secret\r\n"),
        structs.replace(odd, method="A" * 10_000),
    ):
        verdict = decide(facts, policy, None, 0.0)
        assert isinstance(verdict, Denied)
        assert verdict.detail.isprintable()
        assert "secret" not in verdict.detail
        assert len(verdict.detail) < 300


TEXTS = st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["GET", "/v1/x", "/admin", "a=1"]))
HOSTS = st.sampled_from(
    ["api.example.com", "a.example.com", "pinned.example.com", "localhost", "x.pkg.example", "10.1.2.3"]
)


@given(
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(list(Stage)),
    st.sampled_from(get_args(Scheme.__value__)),
    HOSTS,
    st.sampled_from([80, 443, 8443, 22]),
    st.tuples(TEXTS, TEXTS, TEXTS),
    st.booleans(),
    st.booleans(),
)
def test_every_question_has_an_answer_with_its_cause(
    name: str,
    stage: Stage,
    scheme: Scheme,
    host: str,
    port: int,
    texts: tuple[Any, Any, Any],
    socket: bool,
    granted: bool,
) -> None:
    authority = ask(f"CONNECT https://{host}:{port}").authority
    method, path, query = texts
    facts = Facts(
        stage=stage, scheme=scheme, authority=authority, method=method, path=path, query=query, websocket=socket
    )
    policy = POLICIES[name]
    grant = grant_of(ALLOW) if granted else None
    verdict = decide(facts, policy, grant, 0.0)
    if isinstance(verdict, Allowed):
        assert isinstance(verdict.rule, Rule)
        assert verdict.rule in policy.rules or (verdict.rule is OBSERVER and policy.mode.value == "observe")
        assert (verdict.reason is Reason.OBSERVED) is (verdict.would is not None)
        assert scheme != "tcp"
        # A grant only narrows.
        assert isinstance(decide(facts, policy, None, 0.0), Allowed)
    else:
        assert verdict.reason.family is Family.DENY
    assert verdict == decide(facts, policy, grant, 0.0)


def test_a_request_is_examined_once_for_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long path or query takes milliseconds: once more for each rule would hold everybody up for half a second."""
    policy = policy_of(
        "".join(
            rule(f"{action}-{key}-{number}", '"*.example.com"', f'{key} = ["{entry}"]', action)
            for number in range(20)
            for action in ("allow", "deny")
            for key, entry in (("paths", f"/x{number}/**"), ("query", f"q{number}=*"))
        )
    )
    examined: list[str] = []

    def counted(plain: Callable[[str], str | None]) -> Callable[[str], str | None]:
        def examine(text: str) -> str | None:
            examined.append(text)
            return plain(text)

        return examine

    for module, name in ((paths, "path_fault"), (paths, "fold"), (queries, "query_fault"), (queries, "fold")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    facts = ask("GET https://api.example.com/%3Da?b=%3Dc")
    assert isinstance(decide(facts, policy, None, 0.0), Denied)
    # The path twice, for allow and deny rules, and each part of the query; both once more for the reason.
    assert len(examined) <= 8
