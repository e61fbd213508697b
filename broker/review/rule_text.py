"""Rules and comments as the text of a policy file. What a record brings in can end neither a string nor a comment."""

from collections.abc import Iterable, Iterator
from typing import Final

from broker.audit.escaping import clip, escape
from broker.policy.rule import Rule, TlsMode

WIDTH: Final = 116
_COMMENT: Final = 2000


def format_rule(rule: Rule) -> str:
    """One allow rule as a `[[rule]]` table that loads as this rule. Ends with a newline."""
    upstream = {f"upstream_{key}": getattr(rule.upstream, key) for key in ("cacert", "certificate", "key")}
    lines = [
        "[[rule]]",
        f"name = {quoted(rule.name)}",
        'action = "allow"',
        _listed("hosts", [pattern.text for pattern in rule.hosts]),
        *_requests(rule),
        'tls = "splice"' if rule.tls is TlsMode.SPLICE else "",
        _listed("addresses", map(str, rule.addresses)) if rule.addresses else "",
        "websocket = true" if rule.websocket else "",
        "" if rule.plain_http is None else f"plain_http = {'true' if rule.plain_http else 'false'}",
        *[f"{key} = {quoted(value)}" for key, value in upstream.items() if value],
    ]
    return "\n".join(filter(None, lines)) + "\n"


def _requests(rule: Rule) -> Iterator[str]:
    if rule.ports is not None:
        yield f"ports = [{', '.join(map(str, sorted(rule.ports)))}]"
    if rule.methods is not None:
        implied = {"HEAD"} if "GET" in rule.methods else set()
        yield _listed("methods", sorted(rule.methods - implied))
    if rule.paths is not None:
        yield _listed("paths", [pattern.text for pattern in rule.paths])
    if rule.query is not None:
        yield _listed("query", [entry.text for entry in rule.query]) if rule.query else 'query = "none"'


def comment(text: str, indent: str = "") -> str:
    """One comment line, whatever the text is. Ends with a newline."""
    shown = clip(text, _COMMENT) if text.isprintable() else escape(text, _COMMENT)
    return f"# {indent}{shown}".rstrip() + "\n"


def quoted(text: str) -> str:
    """A basic string (TOML 1.0): what could end it or is not printable is escaped; a lone surrogate cannot be one."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _listed(key: str, values: Iterable[str]) -> str:
    """A list on one line where it fits, else an entry a line."""
    items = [quoted(value) for value in values]
    line = f"{key} = [{', '.join(items)}]"
    return line if len(line) <= WIDTH else f"{key} = [\n" + "".join(f"  {item},\n" for item in items) + "]"
