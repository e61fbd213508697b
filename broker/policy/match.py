"""How far one rule follows a question: the single comparison that policies and grants share.

Steps are ordered. The step at which the closest rule stops is the reason of a denial, so their order is the order in
which a reader is told what is missing.
"""

from collections.abc import Iterable
from enum import IntEnum

from broker.policy.facts import Facts, Stage
from broker.policy.paths import PathPattern, canonical_path, deny_forms
from broker.policy.queries import accepts, canonical_parameters, hits
from broker.policy.rules import Rule, TlsMode


class Step(IntEnum):
    """The first thing that a rule of the right host does not allow; MATCH when there is none."""

    HOST = 0
    PORT = 1
    PROTOCOL = 2
    PLAIN_HTTP = 3
    PLANE = 4
    METHOD = 5
    PATH = 6
    QUERY = 7
    WEBSOCKET = 8
    MATCH = 9


def step_of(rule: Rule, facts: Facts, plane: TlsMode | None) -> Step:
    """Return where an allow rule, whose host is known to match, stops. `plane`: the only acceptable one, if any."""
    ports = rule.ports
    if ports is not None and facts.authority.port not in ports:
        return Step.PORT
    scheme = facts.scheme
    if scheme == "https":
        if plane is not None and rule.tls is not plane:
            return Step.PLANE
    elif scheme != "http":
        return Step.PROTOCOL
    elif not _serves_plain(rule, facts.authority.port):
        return Step.PLAIN_HTTP
    if facts.stage is Stage.CONNECTION:
        return Step.MATCH
    return _request_step(rule, facts)


def _serves_plain(rule: Rule, port: int) -> bool:
    # Port 443 is for TLS: plain bytes there are a mistake or an attempt to slip past inspection.
    return port != 443 if rule.plain_http is None else rule.plain_http


def _request_step(rule: Rule, facts: Facts) -> Step:
    if rule.methods is not None and facts.method not in rule.methods:
        return Step.METHOD
    if rule.paths is not None and not _path_matches(rule.paths, facts.path):
        return Step.PATH
    if rule.query is not None:
        parameters = canonical_parameters(facts.query)
        if parameters is None or not accepts(rule.query, parameters):
            return Step.QUERY
    return Step.WEBSOCKET if facts.websocket and not rule.websocket else Step.MATCH


def _path_matches(patterns: Iterable[PathPattern], path: str | None) -> bool:
    canonical = None if path is None else canonical_path(path)
    if canonical is None:
        return False
    return any(pattern.matches(canonical) for pattern in patterns)


def deny_hits(rule: Rule, facts: Facts, plane: TlsMode | None) -> bool:
    """Tell whether a deny rule, whose host is known to match, applies.

    Doubt counts as a hit: an ambiguous path or query, a method or path in another case, and a request that stays unseen
    under splice.
    """
    if rule.ports is not None and facts.authority.port not in rule.ports:
        return False
    if not rule.judges_requests:
        return True
    if facts.stage is Stage.CONNECTION:
        return plane is TlsMode.SPLICE and facts.scheme == "https"
    # "post" is another method than POST, but servers that fold it exist: for a denial that is doubt too.
    if rule.methods is not None and not {facts.method, (facts.method or "").upper()} & rule.methods:
        return False
    if rule.paths is not None:
        forms = () if facts.path is None else deny_forms(facts.path)
        if forms and not any(pattern.matches(form) for form in forms for pattern in rule.paths):
            return False
    if rule.query is not None:
        parameters = canonical_parameters(facts.query)
        if parameters is not None and not hits(rule.query, parameters):
            return False
    return facts.websocket or not rule.websocket
