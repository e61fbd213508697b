"""Suggestions: the table, grants, addresses, floods, bounds, and what hostile records can do."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.audit.records import Entry, Kind, Plane, Verdict
from broker.policy.grants import CallId, Grant, GrantId
from broker.policy.load import parse_policy
from broker.policy.reasons import Family, Reason
from broker.policy.rules import Policy
from broker.review.closed import CLOSED, OPENED
from broker.review.gather import MAX_CALLS, MAX_COUNTED, MAX_HOSTS, MAX_PATHS
from broker.review.suggest import Apart, Aside, Suggestion, format_rules, suggest
from tests.broker.policy.asking import ask, policy_of
from tests.broker.review.logged import asked, logged

CASES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parents[2] / "cases" / "suggestions.toml").read_text())[
    "case"
]
NOTHING = Policy(version="0", enabled=True)
API = "GET https://api.example.com/v1"


def tables(suggestion: Suggestion) -> list[dict[str, Any]]:
    """The rules as a reader of the file gets them, without names."""
    rules: list[dict[str, Any]] = tomllib.loads(format_rules(suggestion)).get("rule", [])
    return [{key: value for key, value in rule.items() if key not in {"name", "action"}} for rule in rules]


def loads(suggestion: Suggestion, policy: Policy = NOTHING) -> None:
    """The text loads as the very rules, and every name is new."""
    read = parse_policy(f"version = 1\n{format_rules(suggestion)}", source="suggestion").rules
    assert read == tuple(one.rule for one in suggestion.rules)
    names = [rule.name for rule in (*policy.rules, *read)]
    assert len(set(names)) == len(names)


def adds_up(suggestion: Suggestion) -> bool:
    counted = [one.refusals for one in suggestion.rules] + [one.count for one in suggestion.apart]
    return sum(counted) == suggestion.refusals


def only(suggestion: Suggestion) -> Apart:
    assert not suggestion.rules
    (one,) = suggestion.apart
    return one


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_table(case: dict[str, Any]) -> None:
    policy = policy_of(case.get("policy", ""), f'enabled = true\nmode = "{case.get("mode", "enforce")}"')
    suggestion = suggest([logged(ask(text), policy) for text in case["ask"]], policy)
    wanted = [tomllib.loads(text) for text in case["rules"].split("---") if text.strip()]
    assert tables(suggestion) == wanted
    found = sorted(f"{one.aside.name} {one.reason} {one.where}" for one in suggestion.apart for _ in range(one.count))
    assert found == sorted(case.get("apart", []))
    assert sum(len(one.widened) for one in suggestion.rules) == case.get("wider", 0)
    loads(suggestion, policy)
    assert adds_up(suggestion)


def test_every_reason_is_opened_by_some_rule_or_has_a_row() -> None:
    denials = {reason for reason in Reason if reason.family is Family.DENY}
    assert denials == set(CLOSED) | (OPENED - {Reason.CLIENT_REJECTED_CA})
    assert not set(CLOSED) & OPENED


@pytest.mark.parametrize("reason", CLOSED)
def test_what_no_rule_opens_is_told_with_a_cure(reason: Reason) -> None:
    one = only(suggest([asked(ask(API), reason=reason, count=3)]))
    assert (one.reason, one.count, one.where) == (reason.value, 3, "api.example.com:443")
    assert one.why
    assert one.cure


# ---- grants ----------------------------------------------------------------------------------------------------------


def test_what_the_grant_denies_needs_no_other_policy() -> None:
    policy = policy_of('[[rule]]\nname = "p"\naction = "allow"\nhosts = ["api.example.com"]')
    rules = policy_of(
        '[[rule]]\nname = "g"\naction = "allow"\nhosts = ["api.example.com"]\nmethods = ["POST"]\n'
        '[[rule]]\nname = "d"\naction = "deny"\nhosts = ["api.example.com"]\npaths = ["/no"]'
    ).rules
    grant = Grant(id=GrantId("g-1"), call=CallId("c"), rules=rules, issued_at=0, expires_at=9)
    entries = [logged(ask(text), policy, grant) for text in (API, "POST https://api.example.com/no")]
    for given in (None, policy):
        suggestion = suggest(entries, given)
        assert {one.aside for one in suggestion.apart} == {Aside.GRANT}
        assert not suggestion.rules


def test_a_request_cannot_pass_for_one_that_the_grant_denied() -> None:
    """The phrase of a denial holds a method, which a payload chooses."""
    policy = policy_of('[[rule]]\nname = "p"\naction = "allow"\nhosts = ["api.example.com"]\nmethods = ["POST"]')
    entry = asked(
        ask(API),
        reason=Reason.METHOD_NOT_ALLOWED,
        grant="g-1",
        detail='rule p of the policy allows POST, not "no rule of grant "',
    )
    assert suggest([entry], policy).rules


# ---- addresses -------------------------------------------------------------------------------------------------------


def refused_address(detail: str, rule: str = "", text: str = API) -> Entry:
    return asked(ask(text), kind=Kind.CLOSE, ref="log-0", reason=Reason.ADDRESS_REFUSED, detail=detail, rule=rule)


def test_an_address_is_opened_alone_where_a_new_rule_reaches_the_host() -> None:
    policy = policy_of("", 'enabled = true\nmode = "observe"')
    entries = [logged(ask(API), policy), refused_address("10.1.2.3 is private", "(observe)")]
    (rule,) = tables(suggest(entries, policy))
    assert rule["addresses"] == ["10.1.2.3/32"]


def test_a_rule_that_names_the_host_has_to_be_changed() -> None:
    policy = policy_of('[[rule]]\nname = "p"\naction = "allow"\nhosts = ["api.example.com"]')
    for given in (None, policy):
        one = only(suggest([refused_address("10.1.2.3 is private", "p")], given))
        assert one.aside is Aside.CHANGE
        assert one.cure == 'Add addresses = ["10.1.2.3/32"] to rule p.'


@pytest.mark.parametrize(
    ("detail", "aside"),
    [
        ("169.254.169.254 is cloud metadata or platform", Aside.CLOSED),
        ("fd00:ec2::254 is cloud metadata or platform", Aside.CLOSED),
        ("224.0.0.1 is multicast", Aside.CLOSED),
        ("0.0.0.0 is unspecified or this-network", Aside.CLOSED),
        ("2002:a00:1:: carries 10.0.0.1, which is private", Aside.UNSEEN),
        ("the addresses of its rule were changed", Aside.UNSEEN),
        ("10.0.0.1/8 is private", Aside.UNSEEN),
        ("", Aside.UNSEEN),
    ],
)
def test_what_is_no_single_address_that_a_rule_opens(detail: str, aside: Aside) -> None:
    assert only(suggest([refused_address(detail)])).aside is aside


# ---- planes ----------------------------------------------------------------------------------------------------------


def rejected(text: str = "CONNECT https://pin.example.com") -> Entry:
    return asked(
        ask(text), plane=Plane.INSPECT, verdict=Verdict.FAILURE, reason=Reason.CLIENT_REJECTED_CA, detail="alert"
    )


def test_a_client_that_refuses_the_authority_is_spliced() -> None:
    suggestion = suggest([rejected(), rejected()])
    assert tables(suggestion) == [{"hosts": ["pin.example.com"], "ports": [443], "tls": "splice"}]
    assert suggestion.rules[0].widened


def test_a_client_that_refuses_the_authority_where_others_do_not() -> None:
    suggestion = suggest([rejected(), logged(ask("GET https://pin.example.com/x"), NOTHING)])
    assert [rule["methods"] for rule in tables(suggestion)] == [["GET"]]
    assert [one.aside for one in suggestion.apart] == [Aside.CHANGE]
    assert adds_up(suggestion)


def test_a_client_that_refuses_the_authority_of_a_rule_that_inspects() -> None:
    exact = policy_of('[[rule]]\nname = "p"\naction = "allow"\nhosts = ["pin.example.com"]')
    assert only(suggest([rejected()], exact)).aside is Aside.CHANGE
    above = policy_of('[[rule]]\nname = "p"\naction = "allow"\nhosts = ["*.example.com"]')
    suggestion = suggest([rejected()], above)
    assert tables(suggestion) == [{"hosts": ["pin.example.com"], "ports": [443], "tls": "splice"}]


def test_a_refused_connection_of_which_no_request_came() -> None:
    entry = asked(ask("CONNECT https://a.example.com"), plane=Plane.INSPECT)
    suggestion = suggest([entry])
    assert tables(suggestion) == [{"hosts": ["a.example.com"], "ports": [443]}]
    assert suggestion.rules[0].widened
    both = suggest([entry, logged(ask("GET https://a.example.com/x"), NOTHING)])
    assert [(rule["paths"], one.refusals, one.widened) for rule, one in zip(tables(both), both.rules, strict=True)] == [
        (["/x"], 2, ())
    ]


def test_the_explicit_proxy_is_asked_in_absolute_form() -> None:
    entry = asked(ask("GET http://a.example.com/x"), path="http://a.example.com/x?q=*")
    assert tables(suggest([entry]))[0]["paths"] == ["/x"]
    tunnel = asked(ask("CONNECT https://a.example.com"), plane=Plane.CONNECT, method="CONNECT", scheme="http")
    assert tables(suggest([tunnel])) == [{"hosts": ["a.example.com"], "ports": [443]}]


def test_a_websocket_is_known_by_what_became_of_it() -> None:
    policy = policy_of("", 'enabled = true\nmode = "observe"')
    decision = logged(ask("GET https://a.example.com/live"), policy)
    close = asked(
        ask("GET https://a.example.com/live"), kind=Kind.CLOSE, ref=decision.id, verdict=None, reason=None, status=101
    )
    assert tables(suggest([decision, close], policy))[0]["websocket"] is True
    assert "websocket" not in tables(suggest([decision], policy))[0]


# ---- floods and bounds -----------------------------------------------------------------------------------------------


def test_what_was_only_counted_has_no_path() -> None:
    first = logged(ask(API), NOTHING)
    more = msgspec.structs.replace(first, id="log-9", ref=first.id, path="", count=500, detail="500 more like it")
    suggestion = suggest([first, more])
    assert [one.refusals for one in suggestion.rules] == [1]
    assert [(one.aside, one.count) for one in suggestion.apart] == [(Aside.UNSEEN, 500)]
    assert suggestion.refusals == 501
    spliced = asked(ask("CONNECT https://a.example.com"), count=500)
    assert [one.refusals for one in suggest([spliced]).rules] == [500]


def test_many_paths_become_what_they_share() -> None:
    entries = [logged(ask(f"GET https://a.example.com/v1/items/{n}?page=1"), NOTHING) for n in range(MAX_PATHS + 1)]
    (rule,) = tables(suggest(entries[:-1]))
    assert len(rule["paths"]) == MAX_PATHS
    suggestion = suggest(entries)
    assert [(rule["paths"], rule["query"]) for rule in tables(suggestion)] == [(["/v1/items/**"], ["page=*"])]
    assert suggestion.rules[0].widened
    own = logged(ask("GET https://a.example.com/v1/items"), NOTHING)
    assert tables(suggest([*entries, own]))[0]["paths"] == ["/v1/items", "/v1/items/**"]
    far = logged(ask("GET https://a.example.com/x"), NOTHING)
    assert tables(suggest([*entries, far]))[0]["paths"] == ["/**"]


def test_more_hosts_methods_and_reasons_than_anybody_reads() -> None:
    hosts = [asked(ask(f"GET https://h{n}.example.com/x")) for n in range(MAX_HOSTS + 300)]
    methods = [asked(ask(f"M{n} https://h1.example.com/{n}")) for n in range(MAX_CALLS + 300)]
    reasons = [msgspec.structs.replace(hosts[0], id=f"l-{n}", reason=f"new_{n}") for n in range(1000)]
    places = [asked(ask(f"GET https://p{n}.example.com/x"), reason=Reason.RULE_DENY) for n in range(1000)]
    suggestion = suggest([*hosts, *methods, *reasons, *places])
    assert suggestion.hosts_left_out == 300
    assert "300 other hosts are left out" in format_rules(suggestion)
    assert len(suggestion.rules) <= MAX_HOSTS * MAX_CALLS
    assert len(suggestion.apart) < 300
    assert adds_up(suggestion)
    loads(suggestion)
    assert MAX_COUNTED > 300


def test_a_path_that_the_log_has_cut() -> None:
    entry = logged(ask(f"GET https://a.example.com/v1/{'long-' * 300}"), NOTHING)
    suggestion = suggest([entry])
    assert tables(suggestion)[0]["paths"] == ["/v1/**"]
    assert suggestion.rules[0].widened
    assert only(suggest([logged(ask(f"GET https://a.example.com/{'long-' * 300}"), NOTHING)])).aside is Aside.UNSEEN


# ---- hostile records -------------------------------------------------------------------------------------------------

HOSTILE = ['"]\n[egress]\nenabled = true\n#', "\x1b[2J\x9b31m", "\u202e\u2028\u2029", "\\", "'''", "é", "…", "\r\n# x"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["authority", "path", "method", "reason", "rule", "detail", "id", "scheme", "plane"])
def test_a_forged_record_ends_no_string_and_no_comment(field: str, text: str) -> None:
    """As if somebody had written the log: nothing redacted, nothing escaped."""
    good = msgspec.structs.replace(asked(ask(API)), reason="host_not_allowed")
    value = {"path": f"/{text}", "authority": f"{text}.example.com:443"}.get(field, text)
    for base in (good, msgspec.structs.replace(good, reason="address_refused", detail="10.0.0.1 is private", rule="p")):
        suggestion = suggest([msgspec.structs.replace(base, **{field: value}), good])
        shown = format_rules(suggestion)
        assert all(character.isprintable() or character == "\n" for character in shown)
        assert set(tomllib.loads(shown)) <= {"rule"}
        assert "enabled" not in [line.split(" ")[0] for line in shown.splitlines()]
        loads(suggestion)
        assert adds_up(suggestion)


def test_the_oracle_the_same_text_unescaped_is_another_file() -> None:
    assert tomllib.loads(f'[[rule]]\nhosts = ["{HOSTILE[0]}"]')["egress"] == {"enabled": True}
    assert tomllib.loads(f"# refused: {HOSTILE[0]}")["egress"] == {"enabled": True}


@pytest.mark.parametrize("change", [{"verdict": "maybe"}, {"kind": "notice"}, {"verdict": ""}, {"kind": "progress"}])
def test_records_that_are_no_refusals(change: dict[str, str]) -> None:
    assert suggest([msgspec.structs.replace(asked(ask(API)), **change)]) == Suggestion()


def test_a_reason_of_another_version() -> None:
    one = only(suggest([msgspec.structs.replace(asked(ask(API)), reason="quota_of_tomorrow")]))
    assert (one.aside, one.reason) == (Aside.CLOSED, "quota_of_tomorrow")


def test_names_are_new_and_do_not_depend_on_the_order() -> None:
    policy = policy_of('[[rule]]\nname = "suggested-a.example.com"\naction = "allow"\nhosts = ["b.example.com"]')
    texts = ["GET https://a.example.com/x", "POST https://a.example.com/y", "GET https://[2606:4700::1]/z"]
    entries = [logged(ask(text), policy) for text in texts]
    names = [one.rule.name for one in suggest(entries, policy).rules]
    assert names == ["suggested-2606-4700-1", "suggested-a.example.com-2", "suggested-a.example.com-3"]
    assert [one.rule.name for one in suggest(entries[::-1], policy).rules] == names
    long = f"{'a' * 60}.{'b' * 60}.example.com"
    loads(suggest([logged(ask(f"GET https://{long}/x"), policy), logged(ask(f"POST https://{long}/y"), policy)]))
