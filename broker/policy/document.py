"""The policy file as text: TOML, version 1, read strictly into a `Policy` or refused with every problem at once.

Pure: the text and the machine's package-manager settings are passed in. Opening the file is `load`.
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from broker.policy.check import check_rules, note_shared_hosts
from broker.policy.limits import DEFAULTS, Limits, check_limit
from broker.policy.presets import Machine, expand_preset
from broker.policy.problems import Mistake, PolicyError, Problem, closest, quote
from broker.policy.reading import Findings, Section
from broker.policy.rules import Mode, Policy
from broker.policy.schema import RuleText, read_rule, refuse_duplicates
from broker.policy.toml_lines import locate

FORMAT_VERSION: Final = 1
_TABLES: Final = ("version", "egress", "limits", "rule")
_TABLE_ALIASES: Final = {"rules": "[[rule]]", "limit": "[limits]", "allow": "[[rule]]", "deny": "[[rule]]"}
_EGRESS_KEYS: Final = ("enabled", "mode", "require_grant")
_MODE_WORDS: Final = {
    **dict.fromkeys(("monitor", "audit", "log", "learn", "permissive", "warn", "report"), "observe"),
    **dict.fromkeys(("block", "strict", "on", "enforcing"), "enforce"),
}
_EGRESS_ALIASES: Final = {"enable": "enabled", "on": "enabled", "grant": "require_grant"}


def parse_policy(text: str, *, source: str, machine: Machine | None = None, advise: bool = False) -> Policy:
    """Parse a policy file. Raises `PolicyError` with all problems.

    machine: where presets are looked up; without it a preset is a problem. advise: also warn of hosts that share a
    suffix with strangers (this loads the Public Suffix List). Warnings and normalised names are in `Policy.notes`.
    """
    document = parse_toml(text, source)
    findings = Findings(lambda: locate(text))
    top = Section(document, "", (), findings)
    _check_top(top)
    written = _read_rules(top)
    refuse_duplicates(written, findings)
    texts = _expand(written, machine, findings)
    check_rules(texts, findings)
    limits = _read_limits(top)
    egress = Section(_table(top, "egress"), "[egress]", ("egress",), findings)
    egress.refuse_unknown(_EGRESS_KEYS, _EGRESS_ALIASES)
    enabled = egress.flag("enabled", default=False)
    mode = egress.choice("mode", Mode, Mode.ENFORCE, _MODE_WORDS)
    require_grant = egress.flag("require_grant", default=False)
    if advise:
        note_shared_hosts(texts, findings)
    if findings.errors or mode is None:
        raise PolicyError(source, findings.problems)
    return Policy(
        version=_digest(text, texts),
        enabled=bool(enabled),
        mode=mode,
        require_grant=bool(require_grant),
        rules=tuple(made.rule for made in texts if made.rule is not None),
        limits=limits,
        notes=tuple(sorted(findings.problems, key=lambda problem: problem.line)),
    )


def _digest(text: str, rules: Sequence[RuleText]) -> str:
    """Return the short id of a policy: it changes with the text and with what its presets resolved to."""
    content = hashlib.sha256(text.encode())
    for made in rules:
        if made.preset is not None and made.rule is not None:
            content.update(f"\0{made.rule!r}".encode())
    return content.hexdigest()[:12]


def parse_toml(text: str, source: str) -> dict[str, object]:
    """Parse a text as TOML; `source` names it. Raises `PolicyError` with the line."""
    if text.startswith("\ufeff"):
        mark = Problem(line=1, found="not TOML: the text begins with a byte order mark", expected="UTF-8 without one")
        raise PolicyError(source, [mark])
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(found[1]) if found else len(text.splitlines()) or 1
        what = str(error).partition(" (at ")[0]
        place = f" at column {found[2]}" if found else ""
        problem = Problem(line=line, found=f"not TOML: {what}{place}", expected="a TOML 1.0 document")
        raise PolicyError(source, [problem]) from None
    except ValueError:  # not of the parser: a number of more digits than the language reads
        digits = re.search(r"[0-9_]{4301}", text)
        line = text.count("\n", 0, digits.start()) + 1 if digits else 0
        raise PolicyError(
            source, [Problem(line=line, found="a number of thousands of digits", expected="a number that fits its key")]
        ) from None
    except RecursionError:
        raise PolicyError(source, [Problem(found="nested too deeply", expected="a TOML 1.0 document")]) from None


def _check_top(top: Section) -> None:
    for key in top.values:
        if key not in _TABLES:
            meant = _TABLE_ALIASES.get(key) or closest(key, _TABLES)
            top.wrong(Mistake(f"unknown key {quote(key)}", f"one of {', '.join(_TABLES)}", meant), key)
    version = top.values.get("version")
    if "version" not in top.values:
        top.wrong(Mistake("version is missing", "the version of this format, first", f"version = {FORMAT_VERSION}"))
    elif version != FORMAT_VERSION or isinstance(version, bool) or not isinstance(version, int):
        found = f"version is {quote(version)}"
        top.wrong(Mistake(found, f"{FORMAT_VERSION}, the only one known", f"version = {FORMAT_VERSION}"), "version")


def _table(top: Section, key: str) -> Mapping[str, object]:
    value = top.values.get(key, {})
    if isinstance(value, dict):
        return value
    top.wrong(Mistake(f"{key} is {quote(value)}", "a table", f"[{key}]"), key)
    return {}


def _read_limits(top: Section) -> Limits:
    section = Section(_table(top, "limits"), "[limits]", ("limits",), top.findings)
    section.refuse_unknown(DEFAULTS)
    good: dict[str, int | float] = {}
    for key, value in section.values.items():
        if key in DEFAULTS:
            try:
                check_limit(key, value)
                good[key] = value  # type: ignore[assignment]
            except Mistake as mistake:
                section.wrong(mistake, key)
    return Limits(**good)  # type: ignore[arg-type]


def _read_rules(top: Section) -> list[RuleText]:
    items = top.values.get("rule", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        top.wrong(Mistake(f"rule is {quote(items)}", "an array of tables", "[[rule]]"), "rule")
        return []
    if "rule" in top.values and not items:
        top.wrong(Mistake("rule is an empty list", "remove it: without a rule nothing is allowed"), "rule")
    return [read_rule(item, number, top.findings, ("rule", number - 1)) for number, item in enumerate(items, 1)]


def _expand(texts: Sequence[RuleText], machine: Machine | None, findings: Findings) -> list[RuleText]:
    """Return the rules with presets replaced by what they stand for on this machine."""
    made: list[RuleText] = []
    for text in texts:
        if text.rule is None or text.preset is None:
            made.append(text)
            continue
        try:
            made += [replace(text, rule=rule) for rule in expand_preset(text.rule, text.preset, machine)]
        except Mistake as mistake:
            findings.mistake(text.where, (*text.path, "preset"), mistake)
    return made
