"""Judge a typed path or name as text, before anything is opened. Pure."""

import os
import re
import unicodedata
from pathlib import Path

from sandbox.workspace.errors import WorkspaceCode, WorkspaceError

PATH_BYTES, NAME_BYTES = 4095, 255  # linux/limits.h: PATH_MAX with its NUL, NAME_MAX
# Control (Cc), format (Cf: bidirectional overrides, zero width), line and paragraph separators, unpaired surrogates
# (bytes that are not UTF-8), unassigned and private: none of them can be shown honestly in a message or a log line.
_UNSHOWABLE = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def check_path(typed: str | Path) -> str:
    """The typed path, unchanged, when its text can name a workspace; raises `WorkspaceError` otherwise."""
    text = str(typed)
    if not text:
        raise WorkspaceError(WorkspaceCode.EMPTY, "no directory was given", "give the full path of a directory")
    bad = next((character for character in text if unicodedata.category(character) in _UNSHOWABLE), None)
    if bad is not None:
        raise WorkspaceError(
            WorkspaceCode.BAD_CHARACTER,
            f"the path holds the character U+{ord(bad):04X}, which cannot be shown",
            "rename the directory or choose another",
        )
    if text != text.strip():
        raise WorkspaceError(
            WorkspaceCode.BAD_CHARACTER, "the path begins or ends with a space", "give the path without it"
        )
    if text.startswith("~"):
        raise WorkspaceError(WorkspaceCode.NOT_ABSOLUTE, "“~” is not expanded here", "give the full path")
    if not text.startswith("/"):
        raise WorkspaceError(
            WorkspaceCode.NOT_ABSOLUTE, f"“{text[:80]}” is relative", "give the full path, beginning with “/”"
        )
    encoded = os.fsencode(text)
    if len(encoded) > PATH_BYTES or any(len(part) > NAME_BYTES for part in encoded.split(b"/")):
        raise WorkspaceError(WorkspaceCode.TOO_LONG, "the path is longer than Linux allows", "choose a shorter one")
    return text


def check_name(name: str) -> str:
    """A name for a new folder under the managed root; raises `WorkspaceError` with `BAD_NAME`."""
    if not _NAME.fullmatch(name):
        raise WorkspaceError(
            WorkspaceCode.BAD_NAME,
            f"{name[:80]!r} is no name for a workspace",
            "use 1 to 64 letters, digits, “.”, “_” or “-”, beginning with a letter or digit",
        )
    return name
