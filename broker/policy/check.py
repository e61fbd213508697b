"""What a rule does beside the others: rules that can never act are errors, surprises are warnings.

Works on built rules. Time grows with the number of rules, not with its square (everything goes through `RuleIndex`).
"""

from collections.abc import Sequence

from broker.policy.address_registry import Opening
from broker.policy.addresses import AddressClass, classify_address, judge_answers
from broker.policy.hosts import HostKind, HostPattern
from broker.policy.problems import Mistake, Severity, quote
from broker.policy.reading import Findings
from broker.policy.reasons import Refusal
from broker.policy.rules import Action, Rule, RuleIndex, TlsMode, index_rules
from broker.policy.schema import RuleText
from broker.policy.suffixes import shared_suffix


def check_rules(texts: Sequence[RuleText], findings: Findings) -> None:
    """Record the errors and warnings of a whole set of rules."""
    built = [(text, text.rule) for text in texts if text.rule is not None]
    rules = tuple(rule for _, rule in built)
    deny, allow = index_rules(rules, Action.DENY), index_rules(rules, Action.ALLOW)
    for text, rule in built:
        if rule.action is Action.DENY:
            continue
        _check_literals(text, rule, findings)
        _check_networks(text, rule, findings)
        _check_shadowed(text, rule, deny, findings)
        _check_planes(text, rule, allow, findings)
        _check_unseen_denials(text, rule, deny, findings)


def _check_literals(text: RuleText, rule: Rule, findings: Findings) -> None:
    for index, host in enumerate(rule.hosts):
        if host.kind is not HostKind.ADDRESS or isinstance(host.host, str):
            continue
        try:
            judge_answers([host.host], opened=rule.addresses)
        except Refusal as refusal:
            openable = classify_address(host.host).opening is not Opening.NEVER
            bits = host.host.max_prefixlen
            cure = f'addresses = ["{host.host}/{bits}"]' if openable else None
            expected = "an address that the rule's addresses open" if openable else "no such entry: no rule can open it"
            found = f"host {quote(host.text)} can never be reached: {refusal.detail}"
            findings.mistake(text.where, (*text.path, "hosts", index), Mistake(found, expected, cure))


def _check_networks(text: RuleText, rule: Rule, findings: Findings) -> None:
    for index, network in enumerate(rule.addresses):
        where = (*text.path, "addresses", index)
        found = classify_address(network.network_address)
        whole = found is classify_address(network.broadcast_address)
        single = network.prefixlen == network.max_prefixlen
        shown = f"network {quote(str(network))} is {found.value}"
        if found.opening is Opening.NEVER and whole:
            findings.mistake(text.where, where, Mistake(shown, "no such entry: no rule can open it"))
        elif found.opening is Opening.EXACT and whole and not single:
            cure = f'"{network.network_address + 1}/{network.max_prefixlen}"'
            findings.mistake(text.where, where, Mistake(shown, "each such address is opened by itself", cure))
        elif found is AddressClass.PUBLIC and whole:
            seen = Mistake(shown, "public addresses need no entry, unless they are on the broker's own links")
            findings.note(Severity.WARNING, text.where, where, seen)


def _check_shadowed(text: RuleText, rule: Rule, deny: RuleIndex, findings: Findings) -> None:
    """An allow rule of which nothing is left is a mistake; one of which a host is left out is worth a warning."""
    if not deny:
        return
    shadows = [_shadow(host, rule, deny) for host in rule.hosts]
    named = next((shadow for shadow in shadows if shadow is not None), None)
    if named is None:
        return
    if None not in shadows:
        whole = Mistake(
            f"everything it allows is denied by rule {named.name}", "a rule that can act: deny wins over allow"
        )
        findings.mistake(text.where, text.path, whole)
        return
    for index, shadow in enumerate(shadows):
        if shadow is not None:
            part = Mistake(
                f"host {quote(rule.hosts[index].text)} is denied by rule {shadow.name}", "deny wins over allow"
            )
            findings.note(Severity.WARNING, text.where, (*text.path, "hosts", index), part)


def _shadow(host: HostPattern, rule: Rule, deny: RuleIndex) -> Rule | None:
    for denial in deny.covering(host):
        ports = denial.ports is None or (rule.ports is not None and rule.ports <= denial.ports)
        if denial.enforce and ports and not denial.judges_requests:
            return denial
    return None


def _check_planes(text: RuleText, rule: Rule, allow: RuleIndex, findings: Findings) -> None:
    """The same pattern spliced and inspected: inspect is chosen, so the splice rule would do nothing for TLS."""
    if rule.tls is not TlsMode.SPLICE:
        return
    for index, host in enumerate(rule.hosts):
        for other in allow.covering(host):
            both = rule.ports is not None and other.ports is not None and rule.ports & other.ports
            if other.tls is TlsMode.INSPECT and both and host in other.hosts:
                found = f"host {quote(host.text)} is inspected by rule {other.name}"
                clash = Mistake(found, "one plane for the same host and port", None)
                findings.mistake(text.where, (*text.path, "hosts", index), clash)
                break


def _check_unseen_denials(text: RuleText, rule: Rule, deny: RuleIndex, findings: Findings) -> None:
    if rule.tls is not TlsMode.SPLICE or not deny:
        return
    for index, host in enumerate(rule.hosts):
        for denial in deny.covering(host):
            if denial.judges_requests and denial.enforce:
                keys = " and ".join(denial.restrictions)
                found = f"rule {denial.name} denies by {keys} what is spliced for {quote(host.text)}"
                blind = Mistake(found, "under splice no request is seen, so every such connection is denied")
                findings.note(Severity.WARNING, text.where, (*text.path, "hosts", index), blind)
                break


def note_shared_hosts(texts: Sequence[RuleText], findings: Findings) -> None:
    """Warn of names below a hosting or delivery network's suffix. Apart, because it reads the whole suffix list."""
    for text in texts:
        if text.rule is None or text.rule.action is Action.DENY:
            continue
        for index, host in enumerate(text.rule.hosts):
            suffix = None if host.kind is HostKind.ADDRESS else shared_suffix(str(host.host))
            if suffix is None:
                continue
            splice = text.rule.tls is TlsMode.SPLICE
            more = "; under splice the tenant can be changed unseen (domain fronting)" if splice else ""
            shared = Mistake(
                f"host {quote(host.text)} is one tenant of {suffix}",
                f"be sure that the tenant is the one you mean{more}",
            )
            findings.note(Severity.WARNING, text.where, (*text.path, "hosts", index), shared)
