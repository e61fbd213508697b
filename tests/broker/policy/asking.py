"""Questions to the policy in one line of text, for the tables."""

from dataclasses import replace

from broker.policy.authority import Authority, parse_authority
from broker.policy.decide import Facts, Scheme, Stage
from broker.policy.load import parse_policy
from broker.policy.rules import Policy

SCHEMES: dict[str, tuple[Scheme, int]] = {
    "https": ("https", 443),
    "wss": ("https", 443),
    "http": ("http", 80),
    "ws": ("http", 80),
    "tcp": ("tcp", 0),
}


def ask(text: str) -> Facts:
    """`METHOD scheme://host[:port]/path?query`, or `CONNECT scheme://host:port` for a connection."""
    method, _, url = text.partition(" ")
    word, _, rest = url.partition("://")
    scheme, port = SCHEMES[word]
    end = min((rest.find(mark) for mark in "/?" if mark in rest), default=len(rest))
    authority: Authority = parse_authority(rest[:end].encode(), default_port=port)
    if method == "CONNECT":
        return Facts(stage=Stage.CONNECTION, scheme=scheme, authority=authority)
    path, mark, query = rest[end:].partition("?")
    return Facts(
        stage=Stage.REQUEST,
        scheme=scheme,
        authority=authority,
        method=method,
        path=path,
        query=query if mark else None,
        websocket=word in {"wss", "ws"},
    )


def policy_of(rules: str, egress: str = "enabled = true") -> Policy:
    """A policy from the text of its rules, switched on. Each rule is read alone, not checked with the others."""
    head = parse_policy(f"version = 1\n[egress]\n{egress}", source="test")
    alone = [parse_policy(f"version = 1\n[[rule]]{text}", source="test") for text in rules.split("[[rule]]")[1:]]
    return replace(head, rules=tuple(rule for policy in alone for rule in policy.rules))
