"""Where the keys and array elements of a TOML text stand, because the language's own parser tells no positions.

Only for texts that `tomllib` has accepted: nothing is validated here, and nothing but line numbers comes out.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping

type Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*""")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_STRINGS = (
    re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def locate(text: str) -> Mapping[Path, int]:
    """Return the line (from 1) of each table, key and array element, by path: `("rule", 2, "hosts", 0)`."""
    scanner = _Scanner(text)
    try:
        return scanner.run()
    except RecursionError:  # nested as deeply as the parser just bears: what was found so far has to do
        return scanner.lines


def nearest_line(lines: Mapping[Path, int], path: Path) -> int:
    """Return the line of `path`, or of the closest thing around it; 0 where nothing is known."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 0


class _Scanner:
    """One pass over one text. `at` is the position of the next unread character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ends = [found.start() for found in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {}
        self.arrays: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self._skip()
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text.startswith("[", self.at):
                table = self._header(1)
            else:
                self._pair(table)
            self._skip()
        return self.lines

    def _header(self, brackets: int) -> Path:
        line = self._line()
        self.at += brackets
        keys = self._keys()
        self.at += brackets
        path: Path = ()
        for key in keys[:-1]:
            self.lines.setdefault((*path, key), line)
            path = self._inside((*path, key))
        path = (*path, keys[-1])
        if brackets == 2:
            self.arrays[path] = self.arrays.get(path, -1) + 1
            self.lines.setdefault(path, line)
            path = (*path, self.arrays[path])
        self.lines.setdefault(path, line)
        return path

    def _inside(self, path: Path) -> Path:
        return (*path, self.arrays[path]) if path in self.arrays else path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while (found := _KEY_PART.match(self.text, self.at)) is not None:
            self.at = found.end()
            keys.append(_bare(found.group(1)))
            if not self.text.startswith(".", self.at):
                break
            self.at += 1
        return keys

    def _value(self, path: Path) -> None:
        self._skip()
        opening = self.text[self.at : self.at + 1]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            forms = (*_STRINGS, _SCALAR) if opening in "\"'" else (_SCALAR,)
            self.at = next(found.end() for form in forms if (found := form.match(self.text, self.at)))

    def _array(self, path: Path) -> None:
        index = 0
        self.at += 1
        while self._more("]"):
            self.lines.setdefault((*path, index), self._line())
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while self._more("}"):
            self._pair(path)

    def _more(self, closing: str) -> bool:
        """Step to the next element, or past the end of the array or inline table."""
        self._skip()
        while self.text.startswith(",", self.at):
            self.at += 1
            self._skip()
        if self.at < len(self.text) and not self.text.startswith(closing, self.at):
            return True
        self.at += 1
        return False

    def _skip(self) -> None:
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _line(self) -> int:
        return bisect_right(self.ends, self.at - 1) + 1


def _bare(key: str) -> str:
    if key[0] not in "\"'":
        return key
    return str(tomllib.loads(f"key = {key}")["key"])
