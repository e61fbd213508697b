"""The keys of a rule, read into a `Rule`. One reader serves the policy file, grants and presets.

Parses values and refuses what means nothing; what a rule does beside other rules is judged in `check`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.policy.addresses import Network, canonical_address, parse_address, parse_network
from broker.policy.hosts import HostPattern, parse_host_pattern
from broker.policy.paths import parse_deny_pattern, parse_path_pattern
from broker.policy.problems import Mistake, Severity, quote
from broker.policy.queries import QueryPattern, parse_deny_parameter, parse_query_pattern
from broker.policy.reading import Findings, Section
from broker.policy.rule import ORDINARY, UpstreamTls, splice_with
from broker.policy.rules import Action, Rule, TlsMode
from broker.policy.toml_lines import Path

RULE_KEYS: Final = (
    "name",
    "action",
    "hosts",
    "preset",
    "ports",
    "methods",
    "paths",
    "query",
    "tls",
    "addresses",
    "websocket",
    "plain_http",
    "upstream_cacert",
    "upstream_certificate",
    "upstream_key",
    "enforce",
    "allow_public_suffix",
)
UPSTREAM_KEYS: Final = ("upstream_cacert", "upstream_certificate", "upstream_key")
_ALIASES: Final = {
    "host": "hosts",
    "domain": "hosts",
    "domains": "hosts",
    "port": "ports",
    "method": "methods",
    "path": "paths",
    "address": "addresses",
    "cidr": "addresses",
    "private": "addresses",
    "id": "name",
    "queries": "query",
    "ws": "websocket",
    "websockets": "websocket",
    "http": "plain_http",
    "mode": "tls",
    "cacert": "upstream_cacert",
    "client_certificate": "upstream_certificate",
    "client_key": "upstream_key",
}
_ACTION_WORDS: Final = {
    **dict.fromkeys(("block", "reject", "drop", "refuse", "forbid"), "deny"),
    **dict.fromkeys(("permit", "accept", "pass", "grant"), "allow"),
}
_PLANE_WORDS: Final = {
    **dict.fromkeys(("passthrough", "pass", "tunnel", "bypass", "opaque", "none", "off"), "splice"),
    **dict.fromkeys(("intercept", "terminate", "decrypt", "bump", "mitm", "on"), "inspect"),
}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,32}")  # RFC 9110 §5.6.2
_STANDARD: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# The broker refuses these inside every stream: they echo credentials or open tunnels.
_REFUSED: Final = frozenset({"TRACE", "TRACK", "DEBUG", "CONNECT"})
_WIDEST: Final = {4: 8, 6: 7}  # 10.0.0.0/8 and fc00::/7 are the widest private networks


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """A rule as read, before presets are resolved: `rule` is `None` where it cannot be built."""

    name: str
    rule: Rule | None
    preset: str | None
    path: Path
    where: str


def refuse_duplicates(texts: Sequence[RuleText], findings: Findings) -> None:
    """Record each name that stands twice: a record must tell which rule it means."""
    seen: dict[str, RuleText] = {}
    for text in texts:
        first = seen.setdefault(text.name, text)
        if first is not text and text.name:
            line = findings.line(first.path)
            place = f" (the other one is on line {line})" if line else ""
            found = f"the name {quote(text.name)} is used twice{place}"
            taken = {other.name for other in texts}
            free = next(f"{text.name}-{n}" for n in range(2, len(texts) + 3) if f"{text.name}-{n}" not in taken)
            findings.mistake(text.where, (*text.path, "name"), Mistake(found, "one name a rule", f'name = "{free}"'))


def read_rule(
    values: Mapping[str, object], number: int, findings: Findings, path: Path, keys: tuple[str, ...] = RULE_KEYS
) -> RuleText:
    """Read one rule; every mistake goes into `findings`. `number` counts from 1 and names a rule that has no name."""
    name = values.get("name")
    where = f"rule {quote(name)}" if isinstance(name, str) and name else f"rule {number}"
    section = Section(values, where, path, findings)
    before = len(findings.errors)
    section.refuse_unknown(keys, _ALIASES)
    parts = _read_parts(section, keys)
    preset = section.text("preset") if "preset" in keys else None
    rule = None
    if len(findings.errors) == before:
        try:
            rule = Rule(**parts)  # type: ignore[arg-type]
        except Mistake as mistake:
            section.wrong(mistake, "tls")
    return RuleText(name=name if isinstance(name, str) else "", rule=rule, preset=preset, path=path, where=where)


def _read_parts(section: Section, keys: tuple[str, ...]) -> dict[str, object]:
    action = section.choice("action", Action, aliases=_ACTION_WORDS)
    if "action" not in section.values:
        section.wrong(Mistake("action is missing", 'one of "allow", "deny"', 'action = "allow"'))
    deny = action is Action.DENY
    if deny:
        _refuse_in_deny(section)
    else:
        _refuse_with_splice(section)
    return {
        "name": _read_name(section),
        "action": action or Action.DENY,
        "hosts": _read_hosts(section, "preset" in keys),
        "ports": _read_ports(section, frozenset() if deny else frozenset({443})) or None,
        "methods": _read_methods(section),
        "paths": section.parsed(
            "paths", "paths", 'paths = ["/v1/**"]', parse_deny_pattern if deny else parse_path_pattern
        ),
        "query": _read_query(section, deny),
        "tls": section.choice("tls", TlsMode, TlsMode.INSPECT, _PLANE_WORDS),
        "addresses": _read_addresses(section),
        "websocket": section.flag("websocket", default=False),
        "enforce": section.flag("enforce", default=True),
        "plain_http": section.flag("plain_http"),
        "upstream": _read_upstream(section),
    }


def _read_upstream(section: Section) -> UpstreamTls:
    values = {key: section.text(key) or "" for key in UPSTREAM_KEYS}
    for key, value in values.items():
        if key in section.values and not (value.startswith("/") and value.isprintable()):
            expected = "the absolute path of a PEM file"
            section.wrong(
                Mistake(f"{key} is {quote(value)}", expected, f'{key} = "/etc/wicketgate/{key[9:]}.pem"'), key
            )
    if bool(values["upstream_certificate"]) is not bool(values["upstream_key"]):
        given = "upstream_certificate" if values["upstream_certificate"] else "upstream_key"
        section.wrong(Mistake(f"{given} stands alone", "a certificate and its key together"), given)
    if any(values.values()) and section.values.get("tls") == TlsMode.SPLICE.value:
        section.wrong(Mistake('upstream keys with tls = "splice"', "the client's own TLS is not touched there"), "tls")
    cacert, certificate, key = values.values()
    if not any(values.values()):
        return ORDINARY  # this very value: the data path knows it by identity
    return UpstreamTls(cacert=cacert, certificate=certificate, key=key)


def _refuse_in_deny(section: Section) -> None:
    for key in ("tls", "addresses", "plain_http", *UPSTREAM_KEYS, "allow_public_suffix"):
        if key in section.values:
            section.wrong(Mistake(f"{key} in a deny rule", "no such key: it says nothing there"), key)


def _refuse_with_splice(section: Section) -> None:
    """`Rule` refuses it too; here it is seen beside other mistakes in the same rule."""
    values = section.values
    given = [key for key in ("methods", "paths", "query", "websocket") if values.get(key, False) is not False]
    if given and values.get("tls") == TlsMode.SPLICE.value:
        section.wrong(splice_with(given), "tls")


def _read_name(section: Section) -> str:
    name = section.text("name")
    if "name" not in section.values:
        section.wrong(Mistake("name is missing", "a name, which records and refusals carry", 'name = "project-api"'))
    elif name is not None and not _NAME.fullmatch(name):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64]
        expected = "1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        section.wrong(Mistake(f"name is {quote(name)}", expected, f'name = "{plain}"' if plain else None), "name")
    return name or ""


def _read_hosts(section: Section, presets: bool) -> tuple[HostPattern, ...]:
    if "hosts" not in section.values:
        if not presets or "preset" not in section.values:
            section.wrong(Mistake("hosts is missing", "at least one host", 'hosts = ["api.example.com"]'))
        return ()
    wide = bool(section.flag("allow_public_suffix", default=False))
    # A deny rule may stand over a public suffix: it takes nothing from the suffix's other owners.
    wide = wide or section.values.get("action") == "deny"

    def parse(text: str) -> HostPattern:
        return parse_host_pattern(text, private_suffix_ok=wide)

    hosts = section.parsed("hosts", "hosts", 'hosts = ["api.example.com"]', parse) or ()
    _note_spellings(section, hosts)
    return hosts


def _note_spellings(section: Section, hosts: tuple[HostPattern, ...]) -> None:
    written = section.values["hosts"]
    if not isinstance(written, list) or len(written) != len(hosts):
        return
    for index, (text, host) in enumerate(zip(written, hosts, strict=True)):
        if not str(text).isascii():
            shown = Mistake(
                f"host {quote(text)} is used as {host.text}", "international names are compared in this form"
            )
            section.findings.note(Severity.NOTE, section.where, (*section.path, "hosts", index), shown)


def _read_ports(section: Section, default: frozenset[int]) -> frozenset[int]:
    items = section.items("ports", "numbers", "ports = [443]")
    if items is None:
        return default
    ports = set()
    for index, item in enumerate(items):
        if isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= 65535:
            ports.add(item)
            continue
        number = re.fullmatch(r"\s*(\d{1,5})\s*", item) if isinstance(item, str) else None
        meant = {"https": "443", "http": "80", "ssh": "22"}.get(
            quote(item).strip('"').casefold(), number[1] if number else None
        )
        section.wrong(Mistake(f"port {quote(item)}", "a number from 1 to 65535, without quotes", meant), "ports", index)
    return frozenset(ports)


def _read_methods(section: Section) -> frozenset[str] | None:
    methods = section.parsed("methods", "methods", 'methods = ["GET"]', _parse_method)
    if methods is None:
        return None
    for index, method in enumerate(methods):
        if method not in _STANDARD and method.upper() in _STANDARD:
            odd = Mistake(
                f"method {quote(method)}", "methods are case-sensitive: this is another one", quote(method.upper())
            )
            section.findings.note(Severity.WARNING, section.where, (*section.path, "methods", index), odd)
    return frozenset(methods) or None


def _parse_method(text: str) -> str:
    if text in {"*", "ANY", "any", "ALL", "all"}:
        raise Mistake(f"method {quote(text)}", "method names; without the key methods, any method is meant")
    several = re.split(r"[\s,;|]+", text.strip())
    if len(several) > 1 and all(one.upper() in _STANDARD for one in several):
        raise Mistake(
            f"method {quote(text)} holds several methods", "one method an entry", ", ".join(map(quote, several))
        )
    if not _TOKEN.fullmatch(text):
        raise Mistake(
            f"method {quote(text)}",
            "the name of a method",
            quote(text.strip().upper()) if text.isascii() and text.strip().isalpha() else None,
        )
    if text.upper() in _REFUSED:
        raise Mistake(f"method {quote(text)}", "no such method: the broker refuses it everywhere")
    return text


def _read_query(section: Section, deny: bool) -> tuple[QueryPattern, ...] | None:
    if section.values.get("query") == "none":
        if deny:
            section.wrong(
                Mistake('query = "none" in a deny rule', "the parameters to deny", 'query = ["name=*"]'), "query"
            )
        return ()
    parse = parse_deny_parameter if deny else parse_query_pattern
    return section.parsed("query", 'parameters, or "none"', 'query = "none"', parse)


def _read_addresses(section: Section) -> tuple[Network, ...]:
    if section.values.get("addresses") == []:
        return ()
    return section.parsed("addresses", "networks", 'addresses = ["10.1.2.0/24"]', parse_opened) or ()


def parse_opened(text: str) -> Network:
    """Parse one network that a rule opens; raises `Mistake`. A bare address stands for itself."""
    network = parse_network(text)
    if network is None:
        raise Mistake(
            f"network {quote(text)}", "ADDRESS or ADDRESS/LENGTH, no bits behind the prefix", _network_cure(text)
        )
    if network.prefixlen < _WIDEST[network.version]:
        raise Mistake(f"network {quote(text)}", f"at least /{_WIDEST[network.version]}: this is most of the internet")
    return network


def _network_cure(text: str) -> str | None:
    head, slash, tail = text.strip().strip("[]").partition("/")
    address = parse_address(head)
    if address is None or not slash or not tail.isdecimal() or int(tail) > address.max_prefixlen:
        return quote(head) if address is not None and not slash else None
    kept = int(canonical_address(address)) >> (address.max_prefixlen - int(tail)) << (address.max_prefixlen - int(tail))
    return quote(f"{type(address)(kept)}/{int(tail)}")
