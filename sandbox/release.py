"""What a parked sandbox is told when it is released: the command, as a script for the shell that waits in it. Pure.

The shell reads one line, which only says that the script is there; at the end of the file instead it ends. The script
replaces it by env(1), and that by the command, so nothing of either is left when the command begins. It expands
nothing: every word is quoted. Of the descriptors only the first three go on.

Some shells add variables of their own to what they execute, whatever they are told. One that does not executes the
command itself, which saves a program.
"""

import os
import re
from collections.abc import Collection, Iterable

SHELL, ENV = "/bin/sh", "/usr/bin/env"
SCRIPT_FD, STDIN_FD, WORD_FD = 3, 4, 5  # one digit: a POSIX shell need not know more (XCU 2.7)
WAITS = (SHELL, "-c", f"read -r word <&{WORD_FD} && . /proc/self/fd/{SCRIPT_FD}")
GO = b"\n"
_ADDS_NOTHING = frozenset({"dash"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)  # XBD 3.216


def script(  # noqa: PLR0913  one parameter a part
    argv: Iterable[str],
    environment: Iterable[tuple[str, str]],
    *,
    directory: str,
    stdin: bool,
    outlets: str,
    shell: str = "",
    left: Collection[str] = (),
) -> bytes:
    """The script. `stdin`: from the pipe that was made ahead, else from /dev/null, which 0 is already.

    `outlets`: a value of OUTLETS. `shell`: the name of the program that waits, `left`: the variables that it has.
    """
    variables = (*environment, ("PWD", directory))
    if shell in _ADDS_NOTHING and all(_NAME.fullmatch(name) for name, _ in variables):
        return _script((), _exported(variables, left), argv, directory, stdin=stdin, outlets=outlets)
    before = (ENV, "-i", *(f"{name}={value}" for name, value in variables))
    return _script(before, b"", argv, directory, stdin=stdin, outlets=outlets)


def _exported(variables: Iterable[tuple[str, str]], left: Collection[str]) -> bytes:
    """Exactly these variables; `cd` has set OLDPWD by now."""
    named = dict(variables)
    unset = sorted({"OLDPWD", *left} - named.keys())
    lines = [f"unset -v {' '.join(unset)}".encode()] if unset else []
    lines += [b"export " + name.encode() + b"=" + _quoted(value) for name, value in named.items()]
    return b" && ".join(lines) + b" && "


def _script(  # noqa: PLR0913  one parameter a part
    before: Iterable[str], exported: bytes, argv: Iterable[str], directory: str, *, stdin: bool, outlets: str
) -> bytes:
    words = b" ".join(map(_quoted, (*before, *argv)))
    closed = " ".join(f"{fd}<&-" for fd in (SCRIPT_FD, STDIN_FD, WORD_FD))
    streams = f"{f'<&{STDIN_FD} ' if stdin else ''}{outlets} {closed}"
    return b"cd " + _quoted(directory) + b" && " + exported + b"exec " + words + b" " + streams.encode() + b"\n"


APART, MERGED, NOWHERE = "", "2>&1", ">/dev/null 2>/dev/null"
OUTLETS = (APART, MERGED, NOWHERE)


def _quoted(word: str) -> bytes:
    """One word, taken literally (XCU 2.2.2). A quote ends the quoting, comes escaped, and begins it anew."""
    if "\0" in word:
        raise ValueError("no program can be given a word with a zero byte")  # and a shell may drop it
    return b"'" + os.fsencode(word).replace(b"'", b"'\\''") + b"'"
