"""Replays: what changes, what cannot be told, what close records add, grants, floods, bounds, hostile records."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from broker.audit.records import Entry, Kind, Plane, Verdict
from broker.policy.grants import CallId, Grant, GrantId
from broker.policy.reasons import Reason
from broker.policy.rules import Mode, Policy, with_flag
from broker.review import fate
from broker.review.replay import MAX_OPEN, MOST, Change, Group, replay
from tests.broker.policy.asking import ask, policy_of
from tests.broker.review.logged import asked, logged

API = "GET https://api.example.com/v1"


def rule(name: str = "p", more: str = "", host: str = "api.example.com", action: str = "allow") -> str:
    return f'[[rule]]\nname = "{name}"\naction = "{action}"\nhosts = ["{host}"]\n{more}\n'


NOTHING = policy_of("")
ALL = policy_of(rule())
SPLICED = policy_of(rule("s", 'tls = "splice"'))
DENIED = policy_of(rule("q") + rule("d", 'paths = ["/v1/x"]', action="deny"))
BELOW = policy_of(rule() + rule("d", 'paths = ["/v1/x/*"]', action="deny"))
LONG = f"{API}/{'long' * 400}"
TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ"


def group(entries: list[Entry], policy: Policy) -> Group:
    (one,) = replay(entries, policy).groups
    return one


def brief(one: Group) -> str:
    after = one.why if one.after is None else f"{one.after.verdict} {one.after.reason} {one.after.rule}".rstrip()
    return f"{one.change.name}: {after}"


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (API, NOTHING, NOTHING, "UNCHANGED: deny host_not_allowed"),
        (API, ALL, ALL, "UNCHANGED: allow rule_allow p"),
        (API, NOTHING, ALL, "NOW_ALLOWED: allow rule_allow p"),
        (API, ALL, NOTHING, "NOW_DENIED: deny host_not_allowed"),
        (API, ALL, policy_of(rule("q")), "OTHERWISE: allow rule_allow q"),
        (API, NOTHING, policy_of(rule("q", 'methods = ["POST"]')), "OTHERWISE: deny method_not_allowed q"),
        (API, ALL, policy_of(rule() + rule("d", 'paths = ["/v1"]', action="deny")), "NOW_DENIED: deny rule_deny d"),
        (API, ALL, with_flag(ALL, enabled=False), "NOW_DENIED: deny egress_off"),
        (API, ALL, replace(ALL, require_grant=True), "NOW_DENIED: deny grant_missing"),
        (API, replace(ALL, require_grant=True), ALL, "NOW_ALLOWED: allow rule_allow p"),
        (API, NOTHING, replace(NOTHING, mode=Mode.OBSERVE), "NOW_ALLOWED: allow observed (observe)"),
        (API, replace(NOTHING, mode=Mode.OBSERVE), NOTHING, "NOW_DENIED: deny host_not_allowed"),
        (API, replace(NOTHING, mode=Mode.OBSERVE), ALL, "OTHERWISE: allow rule_allow p"),
        (API, ALL, SPLICED, "OTHERWISE: allow rule_allow s"),
        ("CONNECT tcp://api.example.com:22", NOTHING, ALL, "OTHERWISE: deny port_not_allowed p"),
        ("CONNECT https://api.example.com", SPLICED, ALL, f"UNTOLD: {fate.UNSEEN}"),
        ("CONNECT https://api.example.com", SPLICED, NOTHING, "NOW_DENIED: deny host_not_allowed"),
        # what the log hides
        (f"{API}/{TOKEN}", ALL, policy_of(rule("q", 'paths = ["/v1/*"]')), "OTHERWISE: allow rule_allow q"),
        (f"{API}/{TOKEN}", ALL, policy_of(rule("q", 'paths = ["/v2/*"]')), "NOW_DENIED: deny path_not_allowed q"),
        (f"{API}/{TOKEN}", ALL, policy_of(rule("q", 'paths = ["/v1/x"]')), f"UNTOLD: {fate.HIDDEN}"),
        (f"{API}/{TOKEN}", ALL, DENIED, f"UNTOLD: {fate.HIDDEN}"),
        (f"{API}?q=1", ALL, policy_of(rule("q", 'query = ["q=*"]')), "OTHERWISE: allow rule_allow q"),
        (f"{API}?q=1", ALL, policy_of(rule("q", 'query = ["page=*"]')), "NOW_DENIED: deny query_not_allowed q"),
        (f"{API}?q=1", ALL, policy_of(rule("q", 'query = "none"')), "NOW_DENIED: deny query_not_allowed q"),
        (f"{API}?q=1", ALL, policy_of(rule("q", 'query = ["q=1"]')), f"UNTOLD: {fate.HIDDEN}"),
        (f"{API}?flag", ALL, policy_of(rule("q", 'query = ["flag"]')), f"UNTOLD: {fate.HIDDEN}"),
        (f"{API}/x*", ALL, DENIED, f"UNTOLD: {fate.HIDDEN}"),  # `x...`, say, which some servers take for `x`
        (f"{API}/x./{TOKEN}", ALL, BELOW, f"UNTOLD: {fate.HIDDEN}"),
        (f"{API}/y./{TOKEN}", ALL, BELOW, "UNCHANGED: allow rule_allow p"),
        (f"{API}/X/{TOKEN}", ALL, BELOW, "NOW_DENIED: deny rule_deny d"),
        (LONG, ALL, policy_of(rule("q", 'paths = ["/v1/x"]')), f"UNTOLD: {fate.HIDDEN}"),
        (LONG, ALL, policy_of(rule("q", 'paths = ["/v2/**"]')), "NOW_DENIED: deny path_not_allowed q"),
        (LONG, ALL, policy_of(rule("q", 'paths = ["/v1/**"]')), "OTHERWISE: allow rule_allow q"),
        (LONG, ALL, policy_of(rule("q")), "OTHERWISE: allow rule_allow q"),
    ],
)  # fmt: skip
def test_what_would_be_decided(text: str, old: Policy, new: Policy, expected: str) -> None:
    assert brief(group([logged(ask(text), old)], new)) == expected


def test_what_the_log_hides_is_assumed_to_be_unambiguous_and_that_is_said() -> None:
    entry = logged(ask(f"{API}?q=1"), ALL)
    assert group([entry], policy_of(rule("p", 'query = ["q=*"]'))).assumed
    assert not group([entry], policy_of(rule("p", 'paths = ["/v1"]'))).assumed


# ---- what no policy judges again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reason": "grant_expired"}, fate.BY_BUDGET),
        ({"reason": "grant_exhausted"}, fate.BY_BUDGET),
        ({"reason": "rate_limited"}, fate.BY_BUDGET),
        ({"reason": "address_refused"}, fate.BY_GUARD),
        ({"reason": "bad_request"}, fate.BEFORE_RULES),
        ({"reason": "name_mismatch"}, fate.BEFORE_RULES),
        ({"reason": "client_rejected_ca", "verdict": "failure"}, fate.BEFORE_RULES),
        ({"reason": "not_tls", "detail": "HTTP without TLS on port 443, and Host names x:1"}, fate.NOWHERE),
        ({"reason": "of_tomorrow"}, fate.UNKNOWN),
        ({"verdict": "perhaps"}, fate.UNKNOWN),
        ({"authority": "api.example.com"}, fate.NOWHERE),
        ({"authority": "*@api.example.com:443"}, fate.NOWHERE),
        ({"authority": "api.example.com:443\n"}, fate.NOWHERE),
        ({"scheme": "gopher"}, fate.NOWHERE),
        ({"plane": "dns"}, fate.BY_NAME),
        ({"path": "", "count": 7}, fate.ONLY_COUNTED),
        ({"grant": "g-1"}, fate.GRANT_UNASKED),
    ],
)
def test_what_cannot_be_judged_again(change: dict[str, Any], why: str) -> None:
    entry = msgspec.structs.replace(asked(ask(API)), **change)
    one = group([entry], ALL)
    assert (one.change, one.why, one.count) == (Change.UNTOLD, why, entry.count or 1)


def test_what_was_counted_is_told_where_the_destination_decides() -> None:
    entry = msgspec.structs.replace(asked(ask(API)), path="", count=7)
    assert (brief(group([entry], NOTHING)), group([entry], NOTHING).count) == ("UNCHANGED: deny host_not_allowed", 7)


@pytest.mark.parametrize("reason", Reason)
def test_total_over_reasons(reason: Reason) -> None:
    assert replay([asked(ask(API), reason=reason)], ALL).groups


# ---- grants ----------------------------------------------------------------------------------------------------------


def grant(rules: str) -> Grant:
    return Grant(id=GrantId("g-1"), call=CallId("c"), rules=policy_of(rules).rules, issued_at=0, expires_at=9)


def test_what_the_grant_denied_stays_denied() -> None:
    entry = logged(ask(API), ALL, grant(rule("g", 'methods = ["POST"]')))
    assert brief(group([entry], ALL)) == "UNCHANGED: deny method_not_allowed g"
    assert brief(group([entry], policy_of(rule("q")))) == "UNCHANGED: deny method_not_allowed g"
    assert brief(group([entry], NOTHING)) == "OTHERWISE: deny host_not_allowed"
    assert group([entry], replace(ALL, mode=Mode.OBSERVE)).change is Change.NOW_ALLOWED


def test_what_was_observed_of_a_grant_is_denied_when_enforced() -> None:
    entry = logged(ask(API), replace(ALL, mode=Mode.OBSERVE), grant(rule("g", 'methods = ["POST"]')))
    assert brief(group([entry], ALL)) == "NOW_DENIED: deny method_not_allowed"


def test_what_the_grant_allowed_it_allows_on_the_same_plane() -> None:
    entry = logged(ask(API), ALL, grant(rule("g")))
    assert brief(group([entry], policy_of(rule("q")))) == "OTHERWISE: allow rule_allow q"
    assert brief(group([entry], policy_of(rule("q", 'tls = "splice"')))) == f"UNTOLD: {fate.OTHER_PLANE}"
    assert brief(group([entry], replace(ALL, require_grant=True))) == "UNCHANGED: allow rule_allow p"


# ---- close records ---------------------------------------------------------------------------------------------------


def closed(decision: Entry, text: str = API, **more: Any) -> Entry:
    fields = {"verdict": None, "reason": Reason.FINISHED, "rule": decision.rule, "grant": decision.grant} | more
    return asked(ask(text), kind=Kind.CLOSE, ref=decision.id, **fields)


def test_a_decision_is_counted_once() -> None:
    entry = logged(ask(API), ALL)
    one = group([entry, closed(entry, status=200, dialled="192.0.43.8:443")], NOTHING)
    assert (one.count, one.examples) == (1, (entry.id,))


def test_what_the_guard_refused_after_all_was_denied() -> None:
    entry = logged(ask(API), ALL)
    refused = closed(entry, verdict=Verdict.DENY, reason=Reason.ADDRESS_REFUSED, detail="10.0.0.1 is private")
    assert (brief(group([entry, refused], ALL)), group([entry, refused], ALL).count) == (f"UNTOLD: {fate.BY_GUARD}", 1)
    assert brief(group([entry, refused], NOTHING)) == "OTHERWISE: deny host_not_allowed"
    assert group([refused], ALL).why == fate.BY_GUARD


def test_an_address_that_was_dialled_must_still_be_opened() -> None:
    opened = policy_of(rule("p", 'addresses = ["10.0.0.0/8"]'))
    entry = logged(ask(API), opened)
    close = closed(entry, dialled="10.1.2.3:443", status=200)
    assert brief(group([entry, close], opened)) == "UNCHANGED: allow rule_allow p"
    assert brief(group([entry, close], ALL)) == "NOW_DENIED: deny address_refused p"
    six = closed(entry, dialled="[fd00::1]:443")
    assert group([entry, six], opened).change is Change.NOW_DENIED


def test_a_websocket_is_known_by_its_answer() -> None:
    live = "GET wss://api.example.com/v1"
    both = policy_of(rule("p", "websocket = true"))
    entry = logged(ask(live), both)
    close = closed(entry, status=101)
    assert brief(group([entry, close], both)) == "UNCHANGED: allow rule_allow p"
    assert brief(group([entry, close], ALL)) == "NOW_DENIED: deny websocket_not_allowed p"
    denied = logged(ask(live), ALL)
    assert brief(group([denied], ALL)) == "UNCHANGED: deny websocket_not_allowed p"
    assert brief(group([denied], both)) == "NOW_ALLOWED: allow rule_allow p"


def test_what_was_observed_stays_so_after_its_close() -> None:
    seen = replace(ALL, mode=Mode.OBSERVE)
    entry = logged(ask(API), seen, grant(rule("g", 'methods = ["POST"]')))
    one = group([entry, closed(entry, dialled="10.0.0.1:443")], ALL)
    assert brief(one) == "NOW_DENIED: deny method_not_allowed"
    assert one.before.reason == "observed"


def test_failures_after_an_allow_change_nothing() -> None:
    entry = logged(ask(API), ALL)
    for reason in (Reason.UPSTREAM_TLS, Reason.GRANT_EXHAUSTED, Reason.BAD_FRAMING):
        verdict = Verdict.FAILURE if reason is Reason.UPSTREAM_TLS else Verdict.DENY
        one = group([entry, closed(entry, verdict=verdict, reason=reason)], ALL)
        assert (brief(one), one.count) == ("UNCHANGED: allow rule_allow p", 1)


# ---- bounds and hostile records --------------------------------------------------------------------------------------


def test_groups_and_memory_are_bounded() -> None:
    entries = [
        msgspec.structs.replace(asked(ask(f"GET https://h{n}.example.com/")), rule=f"r{n}", verdict=verdict)
        for n in range(MOST + 400)
        for verdict in ("allow", "deny")
    ]
    found = replay(entries, policy_of(rule("all", host="*.example.com")))
    assert len(found.groups) < MOST + 50
    assert sum(one.count for one in found.groups) == len(entries)
    assert MAX_OPEN > 0


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202e", "a\nb", "\\", "…" * 400])
def test_texts_of_a_forged_record_are_shown_and_not_obeyed(text: str) -> None:
    for name in ("authority", "reason", "rule", "id", "path", "method", "wanted", "detail", "verdict", "ref"):
        entry = msgspec.structs.replace(asked(ask(API)), **{name: text})
        for one in replay([entry], ALL).groups:
            shown = [one.where, one.before.verdict, one.before.reason, one.before.rule, one.why, *one.examples]
            assert all(part.isprintable() and len(part) < 200 for part in shown)


def test_the_groups_come_in_the_order_of_change_the_largest_first() -> None:
    entries = [logged(ask(API), ALL), logged(ask("GET https://b.example.com/"), NOTHING)]
    more = [logged(ask("GET https://c.example.com/"), ALL), logged(ask("POST https://api.example.com/"), ALL)]
    changed = policy_of(rule("p", 'methods = ["POST"]') + rule("b", host="b.example.com"))
    found = replay([*entries, *more], changed)
    assert [one.change for one in found.groups] == sorted((one.change for one in found.groups), key=list(Change).index)
    assert found.count(Change.NOW_DENIED) == found.count(Change.NOW_ALLOWED) == 1
    assert found.policy == changed.version


def test_the_plane_of_the_proxy_is_only_opened() -> None:
    entry = asked(
        ask("CONNECT https://api.example.com"),
        plane=Plane.CONNECT,
        scheme="http",
        method="CONNECT",
        path="api.example.com:443",
    )
    assert brief(group([entry], ALL)) == "NOW_ALLOWED: allow rule_allow p"
