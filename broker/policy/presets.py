"""Presets: the hosts that this machine's own package-manager configuration names.

There is no list of hosts here. A package manager that is not configured is a mistake with its cure. Files, directories
and the environment are read through `Machine`; where each tool keeps its settings is in `preset_sources`.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from broker.policy.hosts import HostPattern, parse_host_pattern
from broker.policy.preset_sources import PRESETS, Machine
from broker.policy.problems import Mistake, closest, quote
from broker.policy.rules import Action, Rule

__all__ = ["Machine", "expand_preset"]

_URL = re.compile(r"(?:[a-z]+\+)?(https?)://([^/?#\s]*)", re.IGNORECASE)
_DEFAULT_PORTS = {"https": 443, "http": 80}


def expand_preset(rule: Rule, preset: str, machine: Machine | None) -> tuple[Rule, ...]:
    """Return the rules that stand for `rule` with a preset: the rule for its own hosts, if any, then one a port.

    The first keeps the rule's name, the others get `name:port`. Raises `Mistake` for an unknown or unset preset.
    """
    if preset not in PRESETS:
        meant = closest(preset, PRESETS)
        expected = f"one of {', '.join(sorted(PRESETS))}"
        raise Mistake(f"preset is {quote(preset)}", expected, f'preset = "{meant}"' if meant else None)
    if rule.action is Action.DENY:
        raise Mistake("preset in a deny rule", "the hosts to deny", 'hosts = ["api.example.com"]')
    if machine is None:
        raise Mistake(f"preset {quote(preset)} cannot be looked up here", "the hosts, by name", None)
    source = PRESETS[preset]
    targets = _targets(source.urls(machine), preset)
    if not targets:
        raise Mistake(f"{preset} names no network source on this machine", f"{source.cure}, or list the hosts", None)
    made = [rule] if rule.hosts else []
    for (port, plain), hosts in sorted(targets.items()):
        name = rule.name if not made else f"{rule.name}:{port}"
        plain_http = True if plain else rule.plain_http
        made.append(replace(rule, name=name, hosts=hosts, ports=frozenset({port}), plain_http=plain_http))
    return tuple(made)


def _targets(urls: Iterable[str], preset: str) -> dict[tuple[int, bool], tuple[HostPattern, ...]]:
    """Return the hosts of the network URLs by port and by whether it is plain HTTP; other schemes need no network."""
    found: dict[tuple[int, bool], dict[str, HostPattern]] = {}
    for url in urls:
        parts = _URL.match(url.strip())
        if parts is None:
            continue
        scheme = parts[1].lower()
        # The userinfo is a credential: it goes nowhere, not even into a message.
        host, port = _split_port(parts[2].rpartition("@")[2], preset)
        pattern = parse_host_pattern(host)
        key = (port or _DEFAULT_PORTS[scheme], scheme == "http")
        found.setdefault(key, {})[pattern.text] = pattern
    return {key: tuple(hosts.values()) for key, hosts in found.items()}


def _split_port(authority: str, preset: str) -> tuple[str, int | None]:
    parts = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d{0,5}))?", authority)
    if parts is None or not parts[1] or int(parts[2] or 1) not in range(1, 65536):
        raise Mistake(f"{preset} is configured with a URL that has no valid host", "https://host[:port]/path")
    return parts[1], int(parts[2]) if parts[2] else None
