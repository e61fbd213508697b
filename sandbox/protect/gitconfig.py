"""Read a git configuration strictly and keep the part that executes nothing. Pure.

An allow-list: git gains keys that name a program in every release (`core.fsmonitor`, `gpg.ssh.program`, `filter.*` …).
A line that is not understood is dropped, so the result can be read by git in one way only.
"""

import re
from typing import Final

# Compiled by `re` when first asked for: most sessions change no configuration, and a start need not wait for it.
_SECTION: Final = r'\[([A-Za-z0-9.-]+)(?: "((?:[^"\\\n]|\\["\\])*)")?\]'
_ENTRY: Final = r"([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)"
# A value without quoting, comments, escapes or control characters means the same to everybody.
_PLAIN: Final = r"[^\x00-\x1f\x7f\"\\#;]*"
_BOOLEAN: Final = r"(?i:true|false|yes|no|on|off|0|1)"
_NAME: Final = r"(?a:\w[\w.-]*|\.)"  # of a remote or branch: never a path, which would be a repository
# Never `ext::`, `fd::` or a local path, which run or read what they name, and nothing that begins with an option.
_URL: Final = r"(?a:(?:https?|ssh|git)://(?:\w[\w.:~%+-]*@)?\w[\w.:/~%+?=&-]*|\w[\w.-]*@\w[\w.-]*:[\w/~][\w./~+-]*)"
_REFSPEC: Final = r"(?a:\+?refs/[\w./*-]+(?::refs/[\w./*-]+)?)"

_ALLOWED: Final = {
    ("core", "repositoryformatversion"): r"0|1",
    ("core", "filemode"): _BOOLEAN,
    ("core", "bare"): _BOOLEAN,
    ("core", "logallrefupdates"): _BOOLEAN,
    ("core", "ignorecase"): _BOOLEAN,
    ("core", "precomposeunicode"): _BOOLEAN,
    ("core", "symlinks"): _BOOLEAN,
    ("core", "autocrlf"): r"true|false|input",
    ("extensions", "objectformat"): r"sha1|sha256",
    ("extensions", "refstorage"): r"files|reftable",
    ("user", "name"): _PLAIN,
    ("user", "email"): _PLAIN,
    ("remote", "url"): _URL,
    ("remote", "fetch"): _REFSPEC,
    ("branch", "remote"): _NAME,
    ("branch", "merge"): _REFSPEC,
    ("branch", "rebase"): _BOOLEAN,
    ("pull", "rebase"): _BOOLEAN,
    ("pull", "ff"): r"true|false|only",
    ("push", "default"): r"[a-z]+",
    ("init", "defaultbranch"): _NAME,
}


# Section, subsection and the line below their header: an entry, or text that only git can judge.
type _Line = tuple[str | None, str | None, str]


def harmless(text: str) -> str:
    """The allowed entries of a configuration, rewritten in one form; empty for none."""
    lines: list[str] = []
    written: tuple[str | None, str | None] = (None, None)
    for section, subsection, line in _lines(text):
        if not _is_allowed(section, line):
            continue
        if written != (section, subsection):
            lines.append(f"[{section}]" if subsection is None else f'[{section} "{subsection}"]')
            written = (section, subsection)
        lines.append(f"\t{line}")
    return "".join(f"{line}\n" for line in lines)


def is_harmless(text: str, known: str = "") -> bool:
    """Whether a configuration adds nothing but allowed entries to what `known`, the owner's own, has."""
    before = set(_lines(known))
    return all(line in before or _is_allowed(line[0], line[2]) for line in _lines(text))


def _is_allowed(section: str | None, line: str) -> bool:
    entry = re.fullmatch(_ENTRY, line)
    if entry is None or section is None or not re.fullmatch(_PLAIN, entry[2]):
        return False
    pattern = _ALLOWED.get((section, entry[1].lower()))
    return pattern is not None and re.fullmatch(pattern, entry[2]) is not None


def _lines(text: str) -> list[_Line]:
    """Every line that is neither blank, comment nor header, with the header it stands under."""
    found: list[_Line] = []
    section = subsection = None
    # A backslash at the end continues the value: joined, such a line is never allowed by itself nor extended.
    for line in (line.strip(" \t\r") for line in text.replace("\\\r\n", "\\ ").replace("\\\n", "\\ ").split("\n")):
        header = re.fullmatch(_SECTION, line)
        if header:
            section, subsection = header[1].lower(), header[2]
        elif line and line[0] not in "#;":
            found.append((section, subsection, line))
    return found
