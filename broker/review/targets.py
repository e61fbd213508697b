"""Logged paths and queries as patterns of the policy: exactly what was seen, or the narrowest that stands for it.

A payload chose these texts. A path of `/**` that was sent raw must not become the pattern that opens everything: every
`*` is taken for one piece of one segment, and what is wider than the text is said to be.
"""

from functools import lru_cache
from typing import Final

from broker.policy.paths import canonical_path
from broker.policy.problems import Mistake
from broker.policy.queries import canonical_parameters, parse_query_pattern
from broker.review.asked import HIDDEN, Asked

MAX_NAMES: Final = 20
"""Parameters told apart of one path; beyond them any query is meant."""

type Names = frozenset[str] | None
"""Entries of a rule's `query`; `None` stands for any query, an empty set for none."""


def path_pattern(asked: Asked) -> str | None:
    """The pattern for the path of a request; `None` for one that no pattern takes. It differs where it is wider."""
    path = asked.facts.path or ""
    if asked.cut and asked.facts.query is None:
        known = path.rpartition("/")[0]
        pattern = f"{known}/**" if known else None
        return None if pattern is None or canonical_path(_collapsed(known)) is None else _collapsed(pattern, deep=True)
    canonical = canonical_path(path)
    if canonical is None:
        return None
    # The policy's reader takes a `$` at the end for a regular expression.
    return _collapsed(f"{canonical[:-1]}{HIDDEN}" if canonical.endswith("$") else canonical)


def _collapsed(path: str, *, deep: bool = False) -> str:
    """One `*` a segment: from the first to the last, whatever stands between."""
    if HIDDEN not in path:
        return path
    head, last = (path[:-3], "/**") if deep else (path, "")
    return "/".join(_segment(one) for one in head.split("/")) + last


def _segment(text: str) -> str:
    first, last = text.find(HIDDEN), text.rfind(HIDDEN)
    return text if first == last else f"{text[:first]}{HIDDEN}{text[last + 1 :]}"


def query_names(asked: Asked) -> Names:
    """The entries that take the query of a request: its names with any value; `None` where they are not on record."""
    return None if asked.cut else _names(asked.facts.query)


@lru_cache(maxsize=1024)
def _names(query: str | None) -> Names:
    parameters = canonical_parameters(query)
    if parameters is None:
        return None
    names = set[str]()
    for parameter in parameters:
        name, sign, value = parameter.partition("=")
        if HIDDEN in name:
            return None
        entry = f"{name}=*" if value else f"{name}{sign}"
        try:
            parse_query_pattern(entry)
        except Mistake:  # a name that begins with `?`, say
            return None
        names.add(entry)
    return frozenset(names) if len(names) <= MAX_NAMES else None


def join_names(one: Names, other: Names) -> Names:
    """The entries that take what either takes."""
    if one is None or other is None:
        return None
    names = one | other
    # `a=*` takes `a=` too; `a` alone is another thing.
    names -= {name for name in names if name.endswith("=") and f"{name}*" in names}
    return names if len(names) <= MAX_NAMES else None


class Stem:
    """What the paths of very many requests begin with, kept without keeping them."""

    __slots__ = ("_segments", "_shortest")

    def __init__(self, pattern: str) -> None:
        self._segments = _segments(pattern)
        self._shortest = len(self._segments)

    def add(self, pattern: str) -> None:
        """Take one more path into account."""
        segments = _segments(pattern)
        self._shortest = min(self._shortest, len(segments))
        same = 0
        for mine, theirs in zip(self._segments, segments, strict=False):
            if mine != theirs:
                break
            same += 1
        self._segments = self._segments[:same]

    def holds(self, pattern: str) -> bool:
        """Whether this begins as they all do."""
        return _segments(pattern)[: len(self._segments)] == self._segments

    @property
    def patterns(self) -> tuple[str, ...]:
        """The narrowest patterns that take them all: everything below what they share, and that itself if it was."""
        stem = "".join(f"/{segment}" for segment in self._segments)
        return (stem, f"{stem}/**") if stem and self._shortest == len(self._segments) else (f"{stem}/**",)


def _segments(pattern: str) -> tuple[str, ...]:
    """The segments of a path; of a pattern that ends in `**` those before it, and one that equals no other."""
    parts = pattern.split("/")[1:]
    return (*parts[:-1], "") if parts[-1] == "**" else tuple(parts)
