"""The one sentence that says why a request was denied: what was asked, and what the closest rule would have taken.

Only the sandbox's own request and the names of rules go in; no query, no header, and nothing unescaped.
"""

from broker.policy.addresses import Network
from broker.policy.facts import Facts
from broker.policy.match import Step
from broker.policy.paths import path_fault
from broker.policy.problems import quote
from broker.policy.queries import query_fault
from broker.policy.rules import Rule

_MANY = 8


def describe_deny(rule: Rule, facts: Facts, whose: str) -> str:
    """Say which deny rule applied."""
    return f"{whose} denies {_subject(facts)} by rule {rule.name}"


def describe_miss(step: Step, facts: Facts, rule: Rule | None, whose: str) -> str:
    """Say what no allow rule covers. `rule` is the closest one, `None` where no rule has the host."""
    host, port = facts.authority.host, facts.authority.port
    if rule is None:
        kind = "the name" if isinstance(host, str) else "the literal address"
        return f"no rule of {whose} allows {kind} {host}"
    match step:
        case Step.PORT:
            return f"rule {rule.name} of {whose} allows {host} on port {listed(rule.ports)}, not {port}"
        case Step.PROTOCOL:
            return f"the connection to {_subject(facts)} is neither TLS nor HTTP/1"
        case Step.PLAIN_HTTP:
            return f"rule {rule.name} of {whose} does not allow HTTP without TLS on port {port}"
        case Step.PLANE:
            return f'{whose} allows {_subject(facts)} only with tls = "{rule.tls.value}" (rule {rule.name})'
        case Step.METHOD:
            return f"rule {rule.name} of {whose} allows {listed(rule.methods)}, not {quote(facts.method or '', 24)}"
        case Step.PATH:
            fault = "it is missing" if facts.path is None else path_fault(facts.path)
            why = f"cannot judge this path: {fault}" if fault else "does not allow this path"
            return f"rule {rule.name} of {whose} {why}"
        case Step.QUERY:
            fault = query_fault(facts.query or "")
            why = f"cannot judge this query: {fault}" if fault else "does not allow these query parameters"
            return f"rule {rule.name} of {whose} {why}"
        case _:
            return f"rule {rule.name} of {whose} does not allow WebSocket"


def listed(items: frozenset[int] | frozenset[str] | None) -> str:
    """Return a short, ordered list for people."""
    if items is None:
        return "any"
    ordered = [str(item) for item in sorted(items, key=lambda item: (isinstance(item, str), item))]
    shown = ", ".join(ordered[:_MANY])
    return f"{shown} and {len(ordered) - _MANY} more" if len(ordered) > _MANY else shown


def _subject(facts: Facts) -> str:
    return f"{facts.authority.host} port {facts.authority.port}"


def describe_addresses(addresses: tuple[Network, ...]) -> str:
    """Say where the name may resolve to."""
    if not addresses:
        return "public addresses only"
    return f"public addresses and {', '.join(str(network) for network in addresses[:_MANY])}"
