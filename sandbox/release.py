"""What a parked sandbox is told when it is released: the command, as a script for the shell that waits in it. Pure.

The shell reads one line, which only says that the script is there; at the end of the file instead it ends. The script
replaces it by env(1), and that by the command, so nothing of either is left when the command begins. It expands
nothing: every word is quoted. Of the descriptors only the first three go on.
"""

import os
from collections.abc import Iterable

SHELL, ENV = "/bin/sh", "/usr/bin/env"
SCRIPT_FD, STDIN_FD, WORD_FD = 3, 4, 5  # one digit: a POSIX shell need not know more (XCU 2.7)
WAITS = (SHELL, "-c", f"read -r word <&{WORD_FD} && . /proc/self/fd/{SCRIPT_FD}")
GO = b"\n"


def script(
    argv: Iterable[str], environment: Iterable[tuple[str, str]], *, directory: str, stdin: bool, outlets: str
) -> bytes:
    """The script. `stdin`: from the pipe that was made ahead, else from /dev/null, which 0 is already.

    `outlets`: a value of OUTLETS.
    """
    variables = (f"{name}={value}" for name, value in (*environment, ("PWD", directory)))
    words = b" ".join(map(_quoted, (ENV, "-i", *variables, *argv)))
    closed = " ".join(f"{fd}<&-" for fd in (SCRIPT_FD, STDIN_FD, WORD_FD))
    streams = f"{f'<&{STDIN_FD} ' if stdin else ''}{outlets} {closed}"
    return b"cd " + _quoted(directory) + b" && exec " + words + b" " + streams.encode() + b"\n"


APART, MERGED, NOWHERE = "", "2>&1", ">/dev/null 2>/dev/null"
OUTLETS = (APART, MERGED, NOWHERE)


def _quoted(word: str) -> bytes:
    """One word, taken literally (XCU 2.2.2). A quote ends the quoting, comes escaped, and begins it anew."""
    if "\0" in word:
        raise ValueError("no program can be given a word with a zero byte")  # and a shell may drop it
    return b"'" + os.fsencode(word).replace(b"'", b"'\\''") + b"'"
