"""Query patterns of rules, matched against the raw query that will be forwarded.

An entry is `name=value` (exactly), `name=*` (any value) or `name` (a parameter without a value). Names and values are
compared as they stand in the raw query, never decoded; a query that could be read in two ways is called ambiguous, and
no rule that restricts queries accepts it. Matching is case-sensitive. Not so for a denial: there every parameter counts
that some server takes for a denied one.

An allow rule accepts a query when **each** of its parameters is listed, so a repeated or an additional parameter cannot
slip by. A deny rule hits when **any** of its parameters is listed, with `name` and `name=` as the same.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from broker.policy.paths import escape_fault, fold
from broker.policy.problems import Mistake, quote

MAX_PATTERN: Final = 1024

# RFC 3986 §3.4 without ";" (a separator to some servers) and with the brackets that form encoders leave alone.
_QUERY = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,=:@/?\[\]|^{}]|%[0-9A-Fa-f]{2})*\Z").match
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


class QueryPattern(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter: its name, and its value, `None` for a parameter without `=`; `any_value` for `name=*`."""

    name: str
    value: str | None = None
    any_value: bool = False

    @property
    def text(self) -> str:
        """The entry as a policy file spells it."""
        if self.any_value:
            return f"{self.name}=*"
        return self.name if self.value is None else f"{self.name}={self.value}"

    def matches(self, parameter: str) -> bool:
        """Match one canonical parameter (`canonical_parameters`)."""
        name, separator, value = parameter.partition("=")
        if name != self.name:
            return False
        return bool(separator) if self.any_value else (value if separator else None) == self.value

    def covers(self, other: "QueryPattern") -> bool:
        """Tell whether every parameter that `other` matches is matched here."""
        if self.name != other.name:
            return False
        if self.any_value:
            return other.any_value or other.value is not None
        return not other.any_value and self.value == other.value


# One request is compared with many rules; but one query, which may hold secrets, is all that is remembered.
@lru_cache(maxsize=1)
def canonical_parameters(query: str | None) -> tuple[str, ...] | None:
    """Split a raw query at `&`; `()` for none or an empty one, `None` for an ambiguous one. Hex digits become upper."""
    if not query:
        return ()
    if query_fault(query):
        return None
    return tuple(_upper(query).split("&"))


def query_fault(query: str) -> str | None:
    """Say why a raw query is ambiguous, in a short phrase; `None` for a clear one."""
    if ";" in query:
        return "it holds a semicolon, which some servers take for a separator"
    if not _QUERY(query):
        return "it holds a malformed escape or a character that needs one"
    if any(not parameter.partition("=")[0] for parameter in query.split("&")):
        return "it holds a parameter without a name"
    return escape_fault(query)


def accepts(patterns: Iterable[QueryPattern], parameters: tuple[str, ...]) -> bool:
    """Tell whether each parameter is matched by one of the patterns (an allow rule's question)."""
    # By name: a query may hold thousands of parameters, and a rule hundreds of patterns.
    by_name: dict[str, list[QueryPattern]] = {}
    for pattern in patterns:
        by_name.setdefault(pattern.name, []).append(pattern)
    return all(
        any(pattern.matches(parameter) for pattern in by_name.get(parameter.partition("=")[0], ()))
        for parameter in set(parameters)
    )


def hits(patterns: Iterable[QueryPattern], parameters: tuple[str, ...]) -> bool:
    """Tell whether any parameter is matched by one of the patterns of `parse_deny_parameter` (a deny rule's question).

    `a` and `a=` are one thing to most servers: for a denial that is doubt, which counts as a hit.
    """
    sent = _values_sent(parameters)
    return any(
        pattern.name in sent and (pattern.any_value or (pattern.value or "") in sent[pattern.name])
        for pattern in patterns
    )


@lru_cache(maxsize=1)
def _values_sent(parameters: tuple[str, ...]) -> dict[str, set[str]]:
    sent: dict[str, set[str]] = {}
    for parameter in set(parameters):
        name, _, value = parameter.partition("=")
        folded, given = _fold_name(name), _fold_value(value)
        # "a[]=1" and "a[x]=1" are values of "a" where parameters may be lists and tables.
        for meant in {folded, folded[0] + folded[1:].partition("[")[0]} if folded else ():
            sent.setdefault(meant, set()).add(given)
    return sent


def parse_deny_parameter(text: str) -> QueryPattern:
    """Parse one entry of a deny rule's `query`, to be compared by `hits`; raises `Mistake` too."""
    pattern = parse_query_pattern(text)
    value = None if pattern.value is None else _fold_value(pattern.value)
    return msgspec.structs.replace(pattern, name=_fold_name(pattern.name), value=value)


# What PHP puts into the names of its variables for a dot and a blank.
_UNDERSCORES: Final = str.maketrans(". ", "__")


def _fold_name(raw: str) -> str:
    return _fold_value(raw).strip().translate(_UNDERSCORES)


def _fold_value(raw: str) -> str:
    # A plus is a blank in a form, and itself elsewhere.
    return fold(raw).replace("+", " ")


def parse_query_pattern(text: str) -> QueryPattern:
    """Parse one entry of a rule's `query`; raises `Mistake` with the corrected spelling."""
    if not text or len(text) > MAX_PATTERN:
        raise Mistake(f"query entry of {len(text)} characters", f"1 to {MAX_PATTERN} characters")
    if text.startswith("?"):
        raise Mistake(f"query entry {quote(text)} starts with ?", "the parameter alone", quote(text[1:]))
    if "&" in text:
        parts = ", ".join(quote(part) for part in text.split("&"))
        raise Mistake(f"query entry {quote(text)} holds several parameters", "one parameter an entry", parts)
    fault = query_fault(text)
    if fault is not None:
        raise Mistake(f"query entry {quote(text)} can never match: {fault}", "a parameter as a client sends it")
    name, separator, value = _upper(text).partition("=")
    if "*" in name or ("*" in value and value != "*"):
        raise Mistake(
            f"query entry {quote(text)} holds * inside a name or a value",
            "name=* for any value",
            quote(f"{name.strip('*')}=*") if name.strip("*") else None,
        )
    if separator and value == "*":
        return QueryPattern(name=name, any_value=True)
    return QueryPattern(name=name, value=value if separator else None)


def _upper(text: str) -> str:
    return _ESCAPE.sub(lambda escape: escape.group().upper(), text)
