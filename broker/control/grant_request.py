"""What a request for a grant means under a policy: its rules, its end, its budgets. Pure.

`allow` is the short form: for each `HOST[:PORT]` it takes what the policy's own rules allow there, with their methods,
paths and plane, as they stand at that moment. Whether rules are covered is decided by `broker.policy.grants.uncovered`.
"""

from collections.abc import Sequence
from typing import Any, Final

from broker.api.faults import ApiError
from broker.control.config import GrantLimits
from broker.control.faults import Fault, RulesError
from broker.control.schema import IssueGrant
from broker.policy.allows import parse_allow
from broker.policy.grant_rules import MAX_RULES, parse_grant_rules
from broker.policy.grants import Budgets, uncovered
from broker.policy.hosts import HostPattern
from broker.policy.problems import Mistake, PolicyError, quote
from broker.policy.rules import Policy, Rule

_WEB: Final = frozenset({443, 80})


def rules_of(request: IssueGrant, policy: Policy) -> tuple[list[dict[str, Any]], tuple[Rule, ...]]:
    """The grant's rules, as JSON and as values. Raises `ApiError`: INVALID_RULES, INVALID_FIELD or NOT_COVERED."""
    match request.allow, request.rules:
        case None, list() as rules:
            documents = rules
        case list() as allow, None:
            documents = _expand(allow, policy)
        case _:
            raise ApiError(Fault.INVALID_FIELD, "Exactly one of allow and rules must be given.", field="allow")
    try:
        parsed = parse_grant_rules(documents)
    except PolicyError as error:
        raise RulesError(Fault.INVALID_RULES, str(error), field="rules", findings=error.problems) from None
    missing = uncovered(parsed, policy)
    if missing:
        raise _not_covered(missing)
    return documents, parsed


def expiry_of(request: IssueGrant, limits: GrantLimits, now: float) -> float:
    """When the grant ends, in seconds since the epoch. Raises `ApiError`."""
    match request.ttl_seconds, request.expires_at:
        case None, None:
            raise ApiError(Fault.INVALID_FIELD, "A grant expires: give ttl_seconds or expires_at.", field="ttl_seconds")
        case float() | int() as seconds, None:
            field = "ttl_seconds"
        case None, moment if moment is not None:
            field, seconds = "expires_at", moment.timestamp() - now
        case _:
            raise ApiError(Fault.INVALID_FIELD, "Give ttl_seconds or expires_at, not both.", field="expires_at")
    if now + seconds <= now:  # a moment that is too short to be one counts as none
        raise ApiError(Fault.INVALID_FIELD, f"{field} is in the past.", field=field)
    if seconds > limits.max_seconds:
        detail = f"A grant may live {limits.max_seconds} seconds at most, as this broker is configured."
        raise ApiError(Fault.INVALID_FIELD, detail, field=field)
    return now + seconds


def budgets_of(request: IssueGrant) -> Budgets:
    """The budgets as the policy's value."""
    asked = request.budgets
    return Budgets(
        uses=asked.uses,
        requests=asked.requests,
        connections=asked.connections,
        bytes_up=asked.bytes_up,
        bytes_down=asked.bytes_down,
        rate=asked.rate,
    )


def rule_document(rule: Rule, name: str, host: HostPattern, port: int) -> dict[str, Any]:
    """What an allow rule of the policy allows at one host and port, as a grant's rule."""
    document: dict[str, Any] = {"name": name, "action": "allow", "hosts": [host.text], "ports": [port]}
    document["tls"] = rule.tls.value
    if rule.methods is not None:
        document["methods"] = sorted(rule.methods)
    if rule.paths is not None:
        document["paths"] = [pattern.text for pattern in rule.paths]
    if rule.query is not None:
        document["query"] = [pattern.text for pattern in rule.query] or "none"
    if rule.addresses:
        document["addresses"] = [str(network) for network in rule.addresses]
    if rule.websocket:
        document["websocket"] = True
    if rule.plain_http is not None:
        document["plain_http"] = rule.plain_http
    return document


def _expand(allow: Sequence[str], policy: Policy) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = []
    missing: list[str] = []
    for index, text in enumerate(allow):
        try:
            host, ports = parse_allow(text)
        except Mistake as mistake:
            detail = f"{quote(text)}: {mistake}"
            raise ApiError(Fault.INVALID_FIELD, detail, field=f"allow[{index}]") from None
        found = [(rule, port) for port in sorted(ports) for rule in _covering(policy, host, port)]
        if not found:
            # Without a port both of the web's are asked for, and one is enough.
            port = 443 if ports == _WEB else min(ports)
            missing += uncovered([Rule(name=f"allow-{index + 1}", hosts=(host,), ports=frozenset({port}))], policy)
        if len(documents) + len(found) > MAX_RULES:
            detail = f"The policy has more than {MAX_RULES} rules for these hosts: give rules."
            raise ApiError(Fault.INVALID_FIELD, detail, field=f"allow[{index}]")
        for number, (rule, port) in enumerate(found, 1):
            documents.append(rule_document(rule, f"allow-{index + 1}-{number}", host, port))
    if missing:
        raise _not_covered(missing)
    return documents


def _covering(policy: Policy, host: HostPattern, port: int) -> list[Rule]:
    return [rule for rule in policy.allow.covering(host) if rule.ports is None or port in rule.ports]


def _not_covered(missing: list[str]) -> ApiError:
    return RulesError(Fault.NOT_COVERED, "; ".join(missing), uncovered=missing)
