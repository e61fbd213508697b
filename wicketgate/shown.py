"""What a payload shows, as far as it may reach the terminal of a person who looks on from outside. Pure.

The bytes come from the sandbox, and the payload may write them past tmux. What draws, moves the cursor or switches a
known mode passes. What makes a terminal answer, copy, print, name its window or keep something does not: an answer
would be typed into whatever reads next, which may be the person's own shell. Sequences: ECMA-48 and XTerm's.
"""

import codecs
import re
from typing import Final

_LONGEST: Final = 64  # characters of a sequence
_TOKEN: Final = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<private>[<-?]?)(?P<values>[0-9:;]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|(?P<string>\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"
    r"|(?P<escape>\x1b[ -/]*[0-OQ-WYZ\\`-~])"
    r"|(?P<rest>\x1b[ -/]*|\x1b\[[0-?]*[ -/]*)\Z"
    r"|(?P<control>.)",
    re.DOTALL,
)
_END_OF_STRING: Final = re.compile(r"[\x07\x18\x1a\x1b\x9c]")
_CONTROLS: Final = frozenset("\a\b\t\n\r\x0e\x0f")
_ESCAPES: Final = frozenset("\x1b" + word for word in ("7", "8", "=", ">", "D", "E", "H", "M", "(0", "(B", ")0", ")B"))
# (private, between) → finals
_FINALS: Final = {
    ("", ""): frozenset("@ABCDEFGHIJKLMPSTXZ`abdefgmrsu"),
    ("?", ""): frozenset("c"),  # the Linux console's cursor
    (">", ""): frozenset("m"),  # which modified keys are told apart
    ("", " "): frozenset("q"),  # the cursor's form
    ("", "!"): frozenset("p"),  # a soft reset
}
_ON: Final = ("7", "25", "34")  # lines wrap, the cursor is visible: what a terminal has by itself (34: GNU screen)
_OFF: Final = ("1", "6", "12", "1000", "1002", "1003", "1004", "1005", "1006", "1015", "2004", "2026", "2031")
_SCREENS: Final = ("47", "1047", "1048", "1049")
_MODES: Final = {"?": frozenset((*_ON, *_OFF, *_SCREENS)), "": frozenset(("4", "34"))}


class Shown:
    """Takes what is shown, however it is cut, and gives what may be written; `undo` what was left switched."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._in_string = False
        self._modes: dict[tuple[str, str], bool] = {}
        self._keypad = self._margins = self._keys = self._form = False

    def feed(self, data: bytes) -> bytes:
        """The part of it, and of what was held back before, that may be written."""
        text, self._rest = self._rest + self._decoder.decode(data), ""
        kept: list[str] = []
        at = 0
        while at < len(text):
            if self._in_string:
                found = _END_OF_STRING.search(text, at)
                if found is None:
                    break
                self._in_string = False
                at = found.start() if found[0] == "\x1b" else found.end()  # an escape ends it and begins the next
                continue
            token = _TOKEN.match(text, at)
            assert token is not None
            at = token.end()
            if self._passes(token):
                kept.append(token[0])
        return "".join(kept).encode()

    def undo(self) -> bytes:
        """What gives the terminal back as a shell expects it; empty where nothing was left."""
        left = [f"\x1b[{kind}{mode}{'h' if mode in _ON else 'l'}" for (kind, mode), on in self._modes.items() if on]
        left += ["\x1b>"] * self._keypad + ["\x1b7\x1b[r\x1b8"] * self._margins
        left += ["\x1b[>4m"] * self._keys + ["\x1b[0 q"] * self._form
        return "".join(("\x0f\x1b(B\x1b[m", *left) if left else ()).encode()

    def _passes(self, token: "re.Match[str]") -> bool:
        kind = token.lastgroup
        if kind == "final":
            return self._sequence(token["private"], token["values"], token["between"], token["final"])
        if kind == "rest":
            self._rest = token[0] if len(token[0]) <= _LONGEST else ""
        self._in_string = kind == "string"
        if kind == "escape" and token[0] in {"\x1b=", "\x1b>"}:
            self._keypad = token[0] == "\x1b="
        return kind == "text" or token[0] in (_ESCAPES if kind == "escape" else _CONTROLS)

    def _sequence(self, private: str, values: str, between: str, final: str) -> bool:
        if len(values) > _LONGEST:
            return False
        if final in "hl" and not between:
            return self._switch(private, values.split(";"), on=final == "h")
        if final not in _FINALS.get((private, between), ()):
            return False
        if (final == "J" and "3" in values) or (final == "T" and ";" in values):
            return False  # the lines above the screen are the person's; XTerm waits for an answer to the other
        if final == "r":
            self._margins = bool(values)
        elif final == "q":
            self._form = values not in {"", "0"}
        elif final == "m" and private:
            self._keys = values.startswith("4;") and not values.endswith(";0")
        return True

    def _switch(self, private: str, modes: list[str], *, on: bool) -> bool:
        if not all(mode in _MODES.get(private, ()) for mode in modes):
            return False
        for mode in modes:
            self._modes[private, mode] = on is (mode not in _ON)
        return True
