"""What is asked again gets the verdict that it would get alone, whatever changed meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from broker.gateway.asking import Asking
from broker.policy.authority import parse_authority
from broker.policy.decide import Allowed, Denied, Facts, Verdict, decide
from broker.policy.grants import CallId, Grant, GrantId
from broker.policy.reasons import Reason, Refusal
from broker.policy.rules import Policy
from broker.wire.http1.heads import RequestHead, parse_request_head
from broker.wire.http1.limits import DEFAULT_LIMITS
from tests.broker.policy.asking import policy_of

API = parse_authority(b"api.example.com:443", default_port=None)
POLICY = policy_of('[[rule]]\nname = "api"\naction = "allow"\nhosts = ["api.example.com"]\npaths = ["/v1/**"]\n')
OTHER = policy_of('[[rule]]\nname = "other"\naction = "allow"\nhosts = ["other.example.com"]\n')
GRANT = Grant(id=GrantId("g-1"), call=CallId("c-1"), rules=POLICY.rules, issued_at=0.0, expires_at=100.0)


@dataclass
class Rights:
    """A session as far as verdicts go, which counts how often it was asked."""

    policy: Policy = POLICY
    grant: Grant | None = None
    now: float = 1.0
    asked: int = 0
    clock: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        self.clock = lambda: self.now

    def decide(self, facts: Facts) -> Verdict:
        self.asked += 1
        return decide(facts, self.policy, self.grant, self.now)


def head_of(target: str, like: RequestHead | None = None, host: str = "api.example.com") -> RequestHead:
    head = parse_request_head(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), DEFAULT_LIMITS, like=like)
    assert head is not None
    return head


def test_the_same_request_is_judged_once() -> None:
    rights = Rights()
    asking = Asking(rights, "https", API)
    head = head_of("/v1/a")
    verdicts = [asking.verdict(asking.question(one).facts) for one in (head, head_of("/v1/a", head), head)]
    assert isinstance(verdicts[0], Allowed)
    assert verdicts == [verdicts[0]] * 3
    assert rights.asked == 1


def change_policy(rights: Rights) -> None:
    rights.policy = OTHER


def switch_off(rights: Rights) -> None:
    rights.policy = replace(POLICY, enabled=False)


def expire(rights: Rights) -> None:
    rights.now = 100.0


def give_another_grant(rights: Rights) -> None:
    rights.grant = replace(GRANT, rules=OTHER.rules)


CHANGES = [
    (change_policy, Reason.HOST_NOT_ALLOWED),
    (switch_off, Reason.EGRESS_OFF),
    (expire, Reason.GRANT_EXPIRED),
    (give_another_grant, Reason.HOST_NOT_ALLOWED),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_it_is_judged_again_when_something_has_changed(change: Callable[[Rights], None], reason: Reason) -> None:
    rights = Rights(grant=GRANT)
    asking = Asking(rights, "https", API)
    head = head_of("/v1/a")
    assert isinstance(asking.verdict(asking.question(head).facts), Allowed)
    change(rights)
    denied = asking.verdict(asking.question(head).facts)
    assert isinstance(denied, Denied)
    assert denied.reason is reason


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_a_connection_is_judged_once_and_again_when_something_has_changed(
    change: Callable[[Rights], None], reason: Reason
) -> None:
    rights = Rights(grant=GRANT)
    asking = Asking(rights, "https", API)
    first = asking.connection()
    assert isinstance(first, Allowed)
    # Requests in between are another question, with an answer of their own.
    assert isinstance(asking.verdict(asking.question(head_of("/v2/a")).facts), Denied)
    assert asking.connection() is first
    assert rights.asked == 2
    change(rights)
    denied = asking.connection()
    assert isinstance(denied, Denied)
    assert denied.reason is reason


def test_another_path_is_judged_by_itself() -> None:
    asking = Asking(Rights(), "https", API)
    head = head_of("/v1/a")
    verdicts = [asking.verdict(asking.question(one).facts) for one in (head, head_of("/v2/a", head), head)]
    assert [isinstance(verdict, Allowed) for verdict in verdicts] == [True, False, True]


def test_a_refused_head_is_refused_each_time() -> None:
    asking = Asking(Rights(), "https", API)
    good, bad = head_of("/v1/a"), head_of("/v1/a", host="other.example.com")
    asking.question(good)
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            asking.question(bad)
        assert refused.value.reason is Reason.NAME_MISMATCH
    assert asking.question(good).facts.authority == API


def test_a_denial_is_never_remembered() -> None:
    rights = Rights(grant=GRANT, now=100.0)
    asking = Asking(rights, "https", API)
    head = head_of("/v1/a")
    assert isinstance(asking.verdict(asking.question(head).facts), Denied)
    rights.now = 99.0  # the wall clock was set back
    assert isinstance(asking.verdict(asking.question(head).facts), Allowed)


def test_fields_are_looked_through_where_they_are_not_those_of_the_last() -> None:
    asking = Asking(Rights(), "https", API)
    head = head_of("/v1/a")
    asking.question(head)
    again = head_of("/v1/a?dns=AAABAAABAAAAAAAAAAAAAQAB", head)
    assert again.fields is head.fields
    other = head_of("/v1/a", head, host="api.example.com\r\nAccept: application/dns-message")
    for refused_head in (again, other, other):
        with pytest.raises(Refusal) as refused:
            asking.question(refused_head)
        assert refused.value.reason is Reason.DNS_OVER_HTTPS
