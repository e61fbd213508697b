"""The verdict on a connection or a request: pure, total, without a default allow.

Precedence, first match wins (each neighbouring pair has a test; `PRECEDENCE` names the same list):

1. The flag is off                                  → denied, `egress_off`.
2. No grant where the policy requires one           → denied, `grant_missing`.
3. The grant has expired                            → denied, `grant_expired`.
4. A special name or public resolver that no allow rule names exactly → denied, `special_name` (`address_literal`).
5. A deny rule of the policy applies                → denied, `rule_deny`.
6. No allow rule of the policy matches as a whole   → denied for the thing that the closest rule is missing.
7. A deny rule of the grant applies                 → denied, `rule_deny`.
8. No allow rule of the grant matches as a whole    → denied as in 6.
9. The policy's allow rule                          → allowed, `rule_allow`.

Denials 5 to 8 become `observed` allows where the policy observes or the rule is shadowed (`enforce = false`), except
for what cannot be carried; 1 to 4 never do. Among allow rules the most specific host pattern is asked first
(`RuleIndex`), so it gives the plane; a rule of another plane never allows a TLS connection or a request inside it.

Nothing here reads a clock, logs or waits. Budgets are judged apart (`grants.check_budget`), addresses by the guard.
"""

from ipaddress import IPv4Network, IPv6Network
from typing import Final

import msgspec

from broker.policy.facts import Facts, Scheme, Stage
from broker.policy.grants import Grant
from broker.policy.match import Step, deny_hits, step_of
from broker.policy.names import classify_name, is_public_resolver
from broker.policy.reasons import Reason
from broker.policy.rules import Mode, Network, Policy, Rule, RuleIndex, TlsMode
from broker.policy.wording import describe_deny, describe_miss

__all__ = ["OBSERVER", "PRECEDENCE", "Allowed", "Denied", "Facts", "Scheme", "Stage", "Verdict", "decide"]

PRECEDENCE: Final = (
    "flag off",
    "grant missing",
    "grant expired",
    "special name",
    "policy deny",
    "policy miss",
    "grant deny",
    "grant miss",
    "allow",
)


class Denied(msgspec.Struct, frozen=True, gc=False):
    """No, and why. `rule` is the deny rule, or the rule that came closest; `detail` one phrase for people.

    `by_grant`: the policy allows it, the grant does not.
    """

    reason: Reason
    rule: Rule | None
    detail: str
    by_grant: bool = False


class Allowed(msgspec.Struct, frozen=True, gc=False):
    """Yes, by `rule` (whose `tls` is the plane). `would` is the denial that was only observed.

    `grant_rule` is the grant's rule that agreed, `None` where there is no grant.
    """

    rule: Rule
    reason: Reason
    would: Denied | None = None
    grant_rule: Rule | None = None

    @property
    def addresses(self) -> tuple[Network, ...]:
        """The networks outside the public internet that may be dialled: those in both the policy's and the grant's."""
        if self.grant_rule is None or not self.rule.addresses:
            return self.rule.addresses
        return tuple(
            narrow
            for one in self.rule.addresses
            for other in self.grant_rule.addresses
            if (narrow := _overlap(one, other)) is not None
        )


type Verdict = Allowed | Denied

# The rule that an observed allow carries where the policy has none for the host: inspected, public addresses only.
OBSERVER: Final = Rule(name="(observe)", hosts=(), ports=None, websocket=True, enforce=False, plain_http=True)

_ONLY_NAMED: Final = "only a rule that names it opens it"
_OFF: Final = Denied(Reason.EGRESS_OFF, None, "egress is switched off by the server's policy")
_NO_GRANT: Final = Denied(Reason.GRANT_MISSING, None, "the policy asks for a grant and this session has none")

_REASONS: Final[dict[Step, Reason]] = {
    Step.HOST: Reason.HOST_NOT_ALLOWED,
    Step.PORT: Reason.PORT_NOT_ALLOWED,
    Step.PROTOCOL: Reason.UNKNOWN_PROTOCOL,
    Step.PLAIN_HTTP: Reason.PLAIN_HTTP_NOT_ALLOWED,
    Step.PLANE: Reason.HOST_NOT_ALLOWED,
    Step.METHOD: Reason.METHOD_NOT_ALLOWED,
    Step.PATH: Reason.PATH_NOT_ALLOWED,
    Step.QUERY: Reason.QUERY_NOT_ALLOWED,
    Step.WEBSOCKET: Reason.WEBSOCKET_NOT_ALLOWED,
}


def decide(facts: Facts, policy: Policy, grant: Grant | None, now: float) -> Verdict:
    """Judge one connection or request. `now` is seconds on the clock of the grant's times. Total: never raises."""
    if not policy.enabled:
        return _OFF
    if grant is None:
        if policy.require_grant:
            return _NO_GRANT
    elif now >= grant.expires_at:
        return Denied(Reason.GRANT_EXPIRED, None, f"grant {grant.id} has expired")
    host = facts.authority.host
    if not policy.allow.names(host):
        special = _special(facts)
        if special is not None:
            return special
    verdict = _judge(facts, policy.allow, policy.deny, _plane(facts))
    if policy.mode is Mode.OBSERVE:
        verdict = _observed(verdict, facts, policy)
    if grant is None or isinstance(verdict, Denied):
        return verdict
    return _narrowed(verdict, facts, policy, grant)


def _special(facts: Facts) -> Denied | None:
    host = facts.authority.host
    special = classify_name(host) if isinstance(host, str) else None
    if special is not None:
        cure = _ONLY_NAMED if special.grantable else "it is never reached"
        return Denied(Reason.SPECIAL_NAME, None, f"{host} is a {special.value}: {cure}")
    if is_public_resolver(host):
        # A resolver carries data out in the names it is asked for; a wildcard or observing must not open one by chance.
        reason = Reason.SPECIAL_NAME if isinstance(host, str) else Reason.ADDRESS_LITERAL
        return Denied(reason, None, f"{host} is a public name resolver: {_ONLY_NAMED}")
    return None


def _plane(facts: Facts) -> TlsMode | None:
    # A request inside TLS exists only where the broker terminated it.
    return TlsMode.INSPECT if facts.stage is Stage.REQUEST and facts.scheme == "https" else None


def _judge(
    facts: Facts, allow: RuleIndex, deny: RuleIndex, plane: TlsMode | None, grant: Grant | None = None
) -> Allowed | Denied:
    """Ask one set of rules: deny rules beat allow rules, then the closest allow rule decides."""
    chosen = nearest = shadow = None
    furthest = Step.HOST
    for rule in allow.candidates(facts):
        step = step_of(rule, facts, plane)
        if step is Step.MATCH:
            chosen = rule
            break
        if step > furthest:
            furthest, nearest = step, rule
        if shadow is None and not rule.enforce and step >= Step.METHOD:
            shadow = rule
    would = None
    if deny:
        hit = _deny_hit(facts, deny, plane if chosen is None else chosen.tls)
        if hit is not None:
            would = Denied(Reason.RULE_DENY, hit, describe_deny(hit, facts, _whose(grant)), grant is not None)
            if hit.enforce:
                return would
    if chosen is not None:
        return Allowed(chosen, Reason.RULE_ALLOW) if would is None else Allowed(chosen, Reason.OBSERVED, would)
    missed = _missed(facts, furthest, nearest, grant)
    return missed if shadow is None else Allowed(shadow, Reason.OBSERVED, missed)


def _deny_hit(facts: Facts, deny: RuleIndex, plane: TlsMode | None) -> Rule | None:
    """Return the deny rule that applies, an enforced one before a shadowed one."""
    recorded = None
    for rule in deny.candidates(facts):
        if deny_hits(rule, facts, plane):
            if rule.enforce:
                return rule
            recorded = recorded or rule
    return recorded


def _missed(facts: Facts, step: Step, nearest: Rule | None, grant: Grant | None) -> Denied:
    reason = _REASONS[step]
    if step is Step.HOST and not isinstance(facts.authority.host, str):
        reason = Reason.ADDRESS_LITERAL
    if step is Step.PLAIN_HTTP and facts.authority.port == 443:
        reason = Reason.NOT_TLS
    return Denied(reason, nearest, describe_miss(step, facts, nearest, _whose(grant)), grant is not None)


def _whose(grant: Grant | None) -> str:
    return "the policy" if grant is None else f"grant {grant.id}"


def _observed(verdict: Verdict, facts: Facts, policy: Policy) -> Verdict:
    """Turn a denial of the policy into an allow that records it, where the connection can be carried at all."""
    if isinstance(verdict, Allowed) or verdict.reason is Reason.UNKNOWN_PROTOCOL or facts.scheme == "tcp":
        return verdict
    return Allowed(_carrier(facts, policy), Reason.OBSERVED, verdict)


def _carrier(facts: Facts, policy: Policy) -> Rule:
    """Return the rule that gives an observed connection its plane: the policy's own for this host and port, if any."""
    plane = _plane(facts)
    for rule in policy.allow.candidates(facts):
        if step_of(rule, facts, plane) > Step.PLANE:
            return rule
    return OBSERVER


def _narrowed(verdict: Allowed, facts: Facts, policy: Policy, grant: Grant) -> Verdict:
    """Ask the grant too, on the plane that the policy chose: the effective right is the intersection."""
    plane = verdict.rule.tls if facts.scheme == "https" else None
    inner = _judge(facts, grant.allow, grant.deny, plane, grant)
    if isinstance(inner, Denied):
        if policy.mode is Mode.ENFORCE:
            return inner
        return Allowed(verdict.rule, Reason.OBSERVED, verdict.would or inner, OBSERVER)
    would = verdict.would or inner.would
    return Allowed(verdict.rule, Reason.RULE_ALLOW if would is None else Reason.OBSERVED, would, inner.rule)


def _overlap(one: Network, other: Network) -> Network | None:
    if isinstance(one, IPv4Network) and isinstance(other, IPv4Network):
        return other if other.subnet_of(one) else one if one.subnet_of(other) else None
    if isinstance(one, IPv6Network) and isinstance(other, IPv6Network):
        return other if other.subnet_of(one) else one if one.subnet_of(other) else None
    return None
