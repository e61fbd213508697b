"""A verdict in words: one sentence with the rule and the reason, and which change would turn it.

Pure: it asks `decide` and phrases the answer. Meant for the operator, so it may name the policy's rules and values.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from broker.policy.decide import OBSERVER, Allowed, Denied, Facts, Stage, Verdict, decide
from broker.policy.grants import Grant
from broker.policy.names import classify_name
from broker.policy.paths import path_fault
from broker.policy.problems import quote
from broker.policy.queries import query_fault
from broker.policy.reasons import Reason
from broker.policy.rules import Mode, Policy, Rule, TlsMode
from broker.policy.wording import describe_addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`sentence` says what happens and why; `turn` what would make it the other way round."""

    verdict: Verdict
    sentence: str
    turn: str


_ONLY_CARRIED: Final = "No rule can turn it: only TLS and HTTP/1 are carried."
_TURN_ON: Final = "Set enabled = true in [egress]."


def explain(facts: Facts, policy: Policy, grant: Grant | None, now: float) -> Explanation:
    """Explain what `decide` says to the same arguments.

    A request inside TLS that would be spliced is explained as the connection it is, because no request is judged then.
    """
    facts, spliced = _as_judged(facts, policy)
    verdict = _unsendable(facts) or decide(facts, policy, grant, now)
    if verdict.reason is Reason.EGRESS_OFF:
        after = explain(facts, replace(policy, enabled=True), grant, now)
        sentence = f"{_subject(facts)} is denied ({verdict.reason}): egress is switched off."
        return Explanation(verdict=verdict, sentence=sentence, turn=f"{_TURN_ON} Then: {after.sentence}")
    subject = _subject(facts)
    match verdict:
        case Allowed(would=Denied() as would):
            sentence = f"{subject} is allowed ({verdict.reason}): it would be denied ({would.reason}), {would.detail}."
            return Explanation(verdict=verdict, sentence=sentence, turn=_turn_observed(verdict, would, facts, policy))
        case Allowed():
            by = f"rule {verdict.rule.name}"
            if grant is not None and verdict.grant_rule is not None:
                by += f" and by rule {verdict.grant_rule.name} of grant {grant.id}"
            unseen = "; it is spliced, so no request in it is judged" if spliced else ""
            sentence = (
                f"{subject} is allowed by {by} ({verdict.reason}){unseen}; {describe_addresses(verdict.addresses)}."
            )
            return Explanation(verdict=verdict, sentence=sentence, turn=_turn_allowed(verdict))
        case Denied():
            sentence = f"{subject} is denied ({verdict.reason}): {verdict.detail}."
            return Explanation(verdict=verdict, sentence=sentence, turn=_turn_denied(verdict, facts, policy, grant))


# What no request line holds and no server is sent, whatever a policy says (`broker.wire` refuses it before).
_REFUSED_METHODS: Final = frozenset({"TRACE", "TRACK", "DEBUG", "CONNECT"})
_METHOD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_TARGET: Final = re.compile(r"[!\"$-\[\]-~]*")


def _unsendable(facts: Facts) -> Denied | None:
    """Why a request would be refused before any rule is asked; `None` if it would not."""
    if facts.stage is Stage.CONNECTION:
        return None
    if _METHOD.fullmatch(facts.method or "") is None:
        return Denied(Reason.BAD_REQUEST, None, f"{quote(facts.method or '', 40)} is no method")
    if (facts.method or "").upper() in _REFUSED_METHODS:
        return Denied(Reason.METHOD_REFUSED, None, f"{facts.method} is never forwarded")
    if _TARGET.fullmatch(f"{facts.path or ''}{facts.query or ''}") is None:
        return Denied(Reason.BAD_REQUEST, None, "the path or query holds a character that must be escaped")
    return None


def _as_judged(facts: Facts, policy: Policy) -> tuple[Facts, bool]:
    if facts.stage is Stage.CONNECTION or facts.scheme != "https":
        return facts, False
    opening = structs.replace(facts, stage=Stage.CONNECTION, method=None, path=None, query=None, websocket=False)
    verdict = decide(opening, replace(policy, require_grant=False), None, 0.0)
    spliced = isinstance(verdict, Allowed) and verdict.rule.tls is TlsMode.SPLICE
    return (opening, True) if spliced else (facts, False)


def _subject(facts: Facts) -> str:
    if facts.stage is Stage.CONNECTION:
        kind = {"https": "TLS", "http": "plain HTTP", "tcp": "raw TCP"}[facts.scheme]
        return f"a {kind} connection to {facts.authority}"
    path = quote(facts.path or "", 120)[1:-1]
    upgrade = " (WebSocket)" if facts.websocket else ""
    return f"{quote(facts.method or '', 40)[1:-1]} {facts.scheme}://{facts.authority}{path}{upgrade}"


def _turn_allowed(verdict: Allowed) -> str:
    owner = "the policy" if verdict.grant_rule is None else "the policy or the grant"
    return (
        f"Removing rule {verdict.rule.name} from {owner}, or a deny rule for this, would deny it: deny wins over allow."
    )


def _turn_observed(verdict: Allowed, would: Denied, facts: Facts, policy: Policy) -> str:
    if verdict.rule is OBSERVER or policy.mode is Mode.OBSERVE:
        return f'With mode = "enforce" it would be denied; then: {_turn_denied(would, facts, policy, None)}'
    shadow = would.rule if would.reason is Reason.RULE_DENY and would.rule is not None else verdict.rule
    return f"With enforce = true in rule {shadow.name} it would be denied."


def _turn_denied(denied: Denied, facts: Facts, policy: Policy, grant: Grant | None) -> str:
    whose = f"grant {grant.id}" if denied.by_grant and grant is not None else "the policy"
    named = f"in rule {denied.rule.name} of {whose}" if denied.rule is not None else f"in {whose}"
    turn = _TURNS.get(denied.reason)
    return _ONLY_CARRIED if turn is None else turn(denied, facts, named)


def _turn_host(denied: Denied, facts: Facts, named: str) -> str:
    host, port = facts.authority.host, facts.authority.port
    if denied.rule is not None:
        return f'Choose one plane for {host}: tls = "{denied.rule.tls.value}" stands {named}.'
    return f'Add a rule with action = "allow", hosts = ["{host}"], ports = [{port}] {named}.'


def _turn_path(_: Denied, facts: Facts, named: str) -> str:
    if facts.path is None or path_fault(facts.path):
        return f"Only a rule without paths takes such a path: send an unambiguous one, or remove paths {named}."
    return f"Add {quote(facts.path, 200)} to paths {named}."


def _turn_query(denied: Denied, facts: Facts, named: str) -> str:
    if query_fault(facts.query or ""):
        return f"Only a rule without query takes such a query: remove query {named}."
    names = ", ".join(quote(f"{name}=*") for name in _unlisted(facts.query or "", denied.rule))
    return f"Add {names} to query {named}."


def _unlisted(query: str, rule: Rule | None) -> list[str]:
    listed = rule.query or () if rule is not None else ()
    missing = [item.partition("=")[0] for item in query.split("&") if not any(one.matches(item) for one in listed)]
    return list(dict.fromkeys(missing))


def _turn_special(_: Denied, facts: Facts, named: str) -> str:
    host = facts.authority.host
    special = classify_name(host) if isinstance(host, str) else None
    if special is not None and not special.grantable:
        return "No rule can turn it."
    return f'Name it exactly: a rule with hosts = ["{host}"] {named}, and addresses where it is not public.'


_TURNS: Final[dict[Reason, Callable[[Denied, Facts, str], str]]] = {
    Reason.GRANT_MISSING: lambda *_: "Issue a grant for the call, or set require_grant = false in [egress].",
    Reason.GRANT_EXPIRED: lambda *_: "Issue a new grant.",
    Reason.SPECIAL_NAME: _turn_special,
    Reason.METHOD_REFUSED: lambda *_: "No rule can turn it: the broker refuses this method everywhere.",
    Reason.BAD_REQUEST: lambda *_: "No rule can turn it: send a request that every server reads alike.",
    Reason.RULE_DENY: lambda _, __, named: f"Remove or narrow what is denied {named}.",
    Reason.HOST_NOT_ALLOWED: _turn_host,
    Reason.ADDRESS_LITERAL: _turn_host,
    Reason.PORT_NOT_ALLOWED: lambda _, facts, named: f"Add {facts.authority.port} to ports {named}.",
    Reason.NOT_TLS: lambda _, __, named: f"Use https, or set plain_http = true {named}.",
    Reason.PLAIN_HTTP_NOT_ALLOWED: lambda _, __, named: f"Use https, or set plain_http = true {named}.",
    Reason.METHOD_NOT_ALLOWED: lambda _, facts, named: f"Add {quote(facts.method or '', 40)} to methods {named}.",
    Reason.PATH_NOT_ALLOWED: _turn_path,
    Reason.QUERY_NOT_ALLOWED: _turn_query,
    Reason.WEBSOCKET_NOT_ALLOWED: lambda _, __, named: f"Set websocket = true {named}.",
}
