"""Whether a drafted rule does its work: it loads, stands beside the policy's own rules, and `decide` allows by it."""

from collections.abc import Iterator
from dataclasses import replace

from broker.policy.authority import Authority
from broker.policy.check import check_rules
from broker.policy.decide import Allowed, Denied, Verdict
from broker.policy.document import parse_policy
from broker.policy.facts import Facts, Stage
from broker.policy.problems import Mistake, PolicyError
from broker.policy.reading import Findings
from broker.policy.reasons import Reason
from broker.policy.rule import ORDINARY, Rule, TlsMode
from broker.policy.rules import Policy
from broker.policy.schema import RuleText
from broker.review.aside import Words
from broker.review.closed import HAS_IT
from broker.review.draft import Draft, build_rule
from broker.review.judging import judge
from broker.review.rule_text import format_rule
from broker.review.suggestion import Aside

_NAME = "suggested"


class Unfit(Exception):  # noqa: N818
    """No rule for this draft: how it is set aside, the reason code if another than the record's, and the words."""

    def __init__(self, aside: Aside, words: Words, reason: str = "") -> None:
        super().__init__(words[0])
        self.aside = aside
        self.words = words
        self.reason = reason


def fit(draft: Draft, policy: Policy | None) -> Draft:
    """Return the draft of one host and port, completed by what the policy says of the host. Raises `Unfit`."""
    rule = _load(draft)
    if policy is None:
        return draft
    around = _around(draft, policy)
    questions = list(_questions(draft))
    if all(_serves(judge(facts, around), draft) for facts in questions):
        raise Unfit(Aside.ALLOWED, HAS_IT)
    completed = _completed(draft, around)
    if completed is not draft:
        rule = _load(completed)
    for facts in questions:
        verdict = judge(facts, replace(around, rules=(*around.rules, _renamed(rule, around))))
        if not _serves(verdict, draft):
            raise _unserved(verdict, draft)
    _check_beside(rule, around)
    return completed


def _load(draft: Draft) -> Rule:
    """The rule of a draft, read back by the strict reader, which has the last word."""
    try:
        rule = build_rule(draft, _NAME)
        read = parse_policy(f"version = 1\n{format_rule(rule)}", source="suggestion").rules
    except Mistake as mistake:
        raise Unfit(Aside.CLOSED, (f"{mistake.found}.", f"Expected: {mistake.expected}.")) from None
    except PolicyError as error:
        first = error.problems[0]
        raise Unfit(Aside.CLOSED, (f"{first.found}.", f"Expected: {first.expected}.")) from None
    assert read == (rule,)
    return rule


def _around(draft: Draft, policy: Policy) -> Policy:
    """The rules of the policy that speak of this host, enforced, and without the conditions that no rule can meet."""
    facts = next(_openings(draft))
    hosts = (*policy.allow.candidates(facts), *policy.deny.candidates(facts))
    return Policy(version=policy.version, enabled=True, rules=tuple(dict.fromkeys(hosts)))


def _openings(draft: Draft) -> Iterator[Facts]:
    scheme = "http" if draft.plain else "https"
    for host in draft.hosts:
        for port in draft.ports:
            yield Facts(stage=Stage.CONNECTION, scheme=scheme, authority=Authority(host, port))  # type: ignore[arg-type]


def _questions(draft: Draft) -> Iterator[Facts]:
    """One question for each thing that the draft is to allow; a pattern is a path that it matches."""
    for opening in _openings(draft):
        if draft.methods is None or draft.paths is None:
            yield opening
            continue
        query = "&".join(sorted(draft.names)) if draft.names else None
        for method in draft.methods:
            for path in draft.paths:
                yield Facts(
                    stage=Stage.REQUEST,
                    scheme=opening.scheme,
                    authority=opening.authority,
                    method=method,
                    path=path,
                    query=query,
                    websocket=draft.websocket,
                )


def _serves(verdict: Verdict, draft: Draft) -> bool:
    """Whether this is what the draft is for: an allow, not only observed, to the addresses, on the plane."""
    if isinstance(verdict, Denied) or verdict.would is not None:
        return False
    if draft.tls is TlsMode.SPLICE and verdict.rule.tls is not TlsMode.SPLICE:
        return False
    opened = verdict.addresses
    return all(any(one.version == net.version and one.subnet_of(net) for net in opened) for one in draft.addresses)  # type: ignore[arg-type]


def _completed(draft: Draft, around: Policy) -> Draft:
    """With the addresses and upstream certificates of the rule that serves the host's other requests.

    The new rule is asked before that one where it names the host more closely, and would not reach it without.
    """
    facts = next(_openings(draft))
    port = facts.authority.port
    served = [rule for rule in around.allow.candidates(facts) if rule.ports is None or port in rule.ports]
    near = served[0] if served else None
    if near is None or (not near.addresses and near.upstream is ORDINARY):
        return draft
    upstream = near.upstream if draft.tls is TlsMode.INSPECT else ORDINARY
    note = f"addresses and upstream certificates as in rule {near.name}"
    return replace(
        draft,
        addresses=draft.addresses | frozenset(near.addresses),
        upstream=upstream,
        notes=(*draft.notes, note),
    )


def _renamed(rule: Rule, around: Policy) -> Rule:
    taken = {other.name for other in around.rules}
    return rule if rule.name not in taken else replace(rule, name=f"{rule.name}-of-{len(taken)}")


def _unserved(verdict: Verdict, draft: Draft) -> Unfit:
    match verdict:
        case Denied(reason=Reason.RULE_DENY) | Allowed(would=Denied(reason=Reason.RULE_DENY)):
            denied = verdict if isinstance(verdict, Denied) else verdict.would
            name = denied.rule.name if denied is not None and denied.rule is not None else ""
            words = (f"Rule {name} denies it, and deny wins over allow.", f"Remove or narrow rule {name}.")
            return Unfit(Aside.CHANGE, words, Reason.RULE_DENY)
        case Denied():
            return Unfit(Aside.CLOSED, (f"A rule for it would not be asked: {verdict.detail}.", "Nothing opens it."))
        case Allowed(rule=rule) if draft.addresses and draft.tls is rule.tls:
            listed = ", ".join(f'"{network}"' for network in sorted(draft.addresses, key=str))
            why = f"Rule {rule.name} is asked first, and does not open the address."
            return Unfit(Aside.CHANGE, (why, f"Add addresses = [{listed}] to rule {rule.name}."))
        case Allowed(rule=rule):
            why = f"Rule {rule.name} is asked first, and inspects the host, whose client refuses the authority."
            cure = (
                f'Let the client trust the bundle, or move the host from rule {rule.name} to one with tls = "splice".'
            )
            return Unfit(Aside.CHANGE, (why, cure))


def _check_beside(rule: Rule, around: Policy) -> None:
    """What the loader says of the rule beside the others; what it says of them without it is not our affair."""
    found, before = _errors((*around.rules, rule)), _errors(around.rules)
    new = [error for error in found if error not in before]
    if new:
        raise Unfit(Aside.CHANGE, (f"Beside the policy's rules: {new[0]}.", "Change the policy's rule by hand."))


def _errors(rules: tuple[Rule, ...]) -> list[str]:
    findings = Findings()
    check_rules([RuleText(name=one.name, rule=one, preset=None, path=(), where=one.name) for one in rules], findings)
    return [f"{problem.where}: {problem.found}" for problem in findings.errors]
