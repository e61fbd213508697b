"""Typed reading of one table of a parsed document, collecting every mistake instead of stopping at the first.

Knows nothing of rules: it says "a list of texts was expected here" in the words of the policy file.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum

from broker.policy.problems import Mistake, Problem, Severity, closest, quote
from broker.policy.toml_lines import Path, nearest_line


class Findings:
    """The problems of one document, each with its line. `locate` is asked only when there is one to place."""

    def __init__(self, locate: Callable[[], Mapping[Path, int]] = dict) -> None:
        self._locate = locate
        self._lines: Mapping[Path, int] | None = None
        self.problems: list[Problem] = []

    def line(self, path: Path) -> int:
        """Return the line of a path in the document, 0 where unknown."""
        if self._lines is None:
            self._lines = self._locate()
        return nearest_line(self._lines, path)

    def mistake(self, where: str, path: Path, mistake: Mistake) -> None:
        """Add an error."""
        self.problems.append(mistake.at(where, self.line(path)))

    def note(self, severity: Severity, where: str, path: Path, mistake: Mistake) -> None:
        """Add a warning or a note."""
        found, expected, suggestion = mistake.found, mistake.expected, mistake.suggestion
        line = self.line(path)
        self.problems.append(
            Problem(severity=severity, line=line, where=where, found=found, expected=expected, suggestion=suggestion)
        )

    @property
    def errors(self) -> list[Problem]:
        """The problems that stop the load."""
        return [problem for problem in self.problems if problem.severity is Severity.ERROR]


class Section:
    """One table. A reader returns `None` where the key is absent or wrong; what is wrong has been recorded then."""

    def __init__(self, values: Mapping[str, object], where: str, path: Path, findings: Findings) -> None:
        self.values = values
        self.where = where
        self.path = path
        self.findings = findings

    def wrong(self, mistake: Mistake, *below: str | int) -> None:
        """Record a mistake at a key, or at an element of its list."""
        self.findings.mistake(self.where, (*self.path, *below), mistake)

    def refuse_unknown(self, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> None:
        """Record each key that the format does not have, with the one that was probably meant."""
        names = list(known)
        for key in self.values:
            if key not in names:
                meant = (aliases or {}).get(key) or closest(key, names)
                self.wrong(Mistake(f"unknown key {quote(key)}", f"one of {', '.join(names)}", meant), key)

    def text(self, key: str) -> str | None:
        """Read a string."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        written = f'{key} = "{quote(value)}"' if isinstance(value, int | float) else None
        self.wrong(Mistake(f"{key} is {quote(value)}", "a text", written), key)
        return None

    def flag(self, key: str, default: bool | None = None) -> bool | None:
        """Read true or false."""
        value = self.values.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = {"true": "true", "yes": "true", "on": "true", "1": "true"}.get(
            quote(value).strip('"').casefold(), "false"
        )
        self.wrong(Mistake(f"{key} is {quote(value)}", "true or false, without quotes", f"{key} = {word}"), key)
        return default

    def choice[E: Enum](
        self, key: str, kind: type[E], default: E | None = None, aliases: Mapping[str, str] | None = None
    ) -> E | None:
        """Read one of the words of a closed set. `aliases`: other programs' words for them."""
        if key not in self.values:
            return default
        value = self.values[key]
        if isinstance(value, str):
            with suppress(ValueError):
                return kind(value)
        words = [str(member.value) for member in kind]
        meant = (aliases or {}).get(value.casefold()) or closest(value, words) if isinstance(value, str) else None
        expected = "one of " + ", ".join(quote(word) for word in words)
        self.wrong(Mistake(f"{key} is {quote(value)}", expected, f'{key} = "{meant}"' if meant else None), key)
        return default

    def items(self, key: str, kind: str, example: str) -> list[object] | None:
        """Read a list that is not empty; its elements are read by the caller."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, list):
            wrapped = f"{key} = [{quote(value)}]" if isinstance(value, str | int) else example
            self.wrong(Mistake(f"{key} is {quote(value)}", f"a list of {kind}", wrapped), key)
            return None
        if not value:
            self.wrong(
                Mistake(f"{key} is an empty list", "at least one entry: an empty list would match nothing", example),
                key,
            )
            return None
        return value

    def parsed[T](self, key: str, kind: str, example: str, parse: Callable[[str], T]) -> tuple[T, ...] | None:
        """Read a list of texts, each through `parse`, which raises `Mistake`."""
        items = self.items(key, kind, example)
        if items is None:
            return None
        found: list[T] = []
        for index, item in enumerate(items):
            try:
                found.append(parse(_text(key, item)))
            except Mistake as mistake:
                self.wrong(mistake, key, index)
        return tuple(found)


def _text(key: str, item: object) -> str:
    if isinstance(item, str):
        return item
    raise Mistake(
        f"{key} holds {quote(item)}", "texts in quotes", f'"{quote(item)}"' if isinstance(item, int | float) else None
    )
