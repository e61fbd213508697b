"""The policy of `wicketgate run --allow HOST[:PORT]`: the command line's own words, judged like a policy file's.

Pure. Whoever types the command owns this policy, so its flag is on.
"""

import hashlib
import re
from collections.abc import Sequence

from broker.policy.addresses import Network, judge_answers
from broker.policy.hosts import HostKind, HostPattern, parse_host_pattern
from broker.policy.limits import Limits
from broker.policy.problems import Mistake, PolicyError, Problem, quote
from broker.policy.reasons import Refusal
from broker.policy.rules import Policy, Rule, TlsMode

_BOTH = frozenset({443, 80})
_SPLIT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", re.DOTALL)


def policy_from_allows(
    allows: Sequence[str],
    private: Sequence[str | Network] = (),
    *,
    tls: TlsMode = TlsMode.INSPECT,
    websocket: bool = True,
    limits: Limits | None = None,
) -> Policy:
    """Return the policy that allows exactly these hosts; without a port 443 and 80 are meant.

    `private` are the networks that names may resolve to beside public addresses. WebSocket is allowed unless the plane
    shows no requests anyway. Raises `PolicyError` with every problem and its corrected spelling.
    """
    problems: list[Problem] = []
    networks: list[Network] = []
    for item in private:
        try:
            networks.append(_parse_opened(item) if isinstance(item, str) else item)
        except Mistake as mistake:
            problems.append(mistake.at(f"--private {item}"))
    rules: dict[str, Rule] = {}
    for text in allows:
        try:
            host, ports = parse_allow(text)
            _check_literal(host, tuple(networks))
        except Mistake as mistake:
            problems.append(mistake.at(f"--allow {quote(text)}"))
            continue
        known = rules.get(host.text)
        rules[host.text] = Rule(
            name=host.text,
            hosts=(host,),
            ports=ports | (known.ports or frozenset() if known else frozenset()),
            tls=tls,
            addresses=tuple(networks),
            websocket=websocket and tls is TlsMode.INSPECT,
        )
    if problems:
        raise PolicyError("command line", problems)
    made = tuple(rules.values())
    version = hashlib.sha256(repr(made).encode()).hexdigest()[:12]
    return Policy(version=version, enabled=True, rules=made, limits=limits or Limits())


def _parse_opened(text: str) -> Network:
    from broker.policy.schema import parse_opened  # noqa: PLC0415  with the parser of policy files: 8 ms

    return parse_opened(text)


def parse_allow(text: str) -> tuple[HostPattern, frozenset[int]]:
    """Parse `HOST`, `HOST:PORT`, `*.NAME[:PORT]`, `ADDRESS[:PORT]` or `[IPV6][:PORT]`. Raises `Mistake`."""
    if "://" in text or "/" in text or "@" in text:
        raise Mistake(f"{quote(text)} is a URL", "HOST or HOST:PORT", _from_url(text))
    if text.count(":") > 1 and not text.startswith("["):
        host = parse_host_pattern(text)  # an IPv6 address without brackets, or a mistake that says so
        return host, _BOTH
    parts = _SPLIT.fullmatch(text)
    if parts is None:
        raise Mistake(f"{quote(text)} is not an authority", "HOST, HOST:PORT or [IPV6]:PORT")
    if parts[2] is None:
        return parse_host_pattern(parts[1]), _BOTH
    digits = parts[2]
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 1 <= int(digits) <= 65535:
        cure = f"{parts[1]}:443" if parts[1] else None
        raise Mistake(f"the port of {quote(text)} is {quote(digits)}", "a number from 1 to 65535", cure)
    return parse_host_pattern(parts[1]), frozenset({int(digits)})


def _from_url(text: str) -> str | None:
    """Return what was probably meant by a pasted URL: its host, and its port where it says one or the scheme does."""
    found = re.match(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://)?(?:[^/?#@]*@)?(\[[^\]/]*\]|[^:/?#@]*)(?::(\d+))?", text)
    if found is None or not found[2]:
        return None
    port = found[3] or {"https": "443", "wss": "443", "http": "80", "ws": "80"}.get((found[1] or "").lower())
    return f"{found[2]}:{port}" if port else found[2]


def _check_literal(host: HostPattern, networks: tuple[Network, ...]) -> None:
    if host.kind is not HostKind.ADDRESS or isinstance(host.host, str):
        return
    try:
        judge_answers([host.host], opened=networks)
    except Refusal as refusal:
        cure = f"--private {host.host}/{host.host.max_prefixlen}"
        raise Mistake(f"it can never be reached: {refusal.detail}", "an address that --private opens", cure) from None
