"""What is wrong with a policy, said to be put right: where, what was found, what is expected, how to spell it.

These are the operator's mistakes, never the sandbox's (those are `Refusal`). Holds values only: reads no file.
"""

from collections.abc import Iterable
from datetime import date, time
from enum import Enum

import msgspec


class Severity(Enum):
    """An error stops the load, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `line` counts from 1 and is 0 where there is no place for it (a JSON document)."""

    severity: Severity = Severity.ERROR
    line: int = 0
    where: str = ""
    found: str
    expected: str
    suggestion: str | None = None

    def format(self, source: str) -> str:
        """Return one line in the shape `file:line: error: where: found; expected: …; write: …`."""
        place = f"{source}:{self.line}" if self.line else source
        head = f"{self.where}: {self.found}" if self.where else self.found
        lead = "expected: " if self.severity is Severity.ERROR else ""
        text = f"{place}: {self.severity.value}: {head}; {lead}{self.expected}"
        return f"{text}; write: {self.suggestion}" if self.suggestion else text


class Mistake(Exception):
    """One value that cannot be accepted, before anyone knows where in a document it stands."""

    def __init__(self, found: str, expected: str, suggestion: str | None = None) -> None:
        super().__init__(f"{found}; expected: {expected}" + (f"; write: {suggestion}" if suggestion else ""))
        self.found = found
        self.expected = expected
        self.suggestion = suggestion

    def at(self, where: str, line: int = 0) -> Problem:
        """Return the same finding with its place."""
        return Problem(line=line, where=where, found=self.found, expected=self.expected, suggestion=self.suggestion)


class PolicyError(Exception):
    """A policy, a grant's rules or an `--allow` list that is refused, with every problem found, in order of lines."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(problem.format(source) for problem in self.problems))


def quote(value: object, limit: int = 80) -> str:
    """Return a value as the operator wrote it (TOML spelling), bounded, on one line, control characters escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        match value:
            case str():
                text = '"' + repr(value)[1:-1].replace('"', '\\"') + '"'
            case date() | time():
                text = value.isoformat()
            case _:
                text = repr(value)
    except RecursionError:
        text = "a deeply nested value"
    except ValueError:  # a number of more digits than the language writes out (sys.set_int_max_str_digits)
        text = "a number of thousands of digits"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, or `None`."""
    words = list(known)
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in words}
    match = folded.get(word.casefold().replace("-", "_").strip())
    if match is not None:
        return match
    import difflib  # noqa: PLC0415  1.4 ms, for mistakes only

    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None
