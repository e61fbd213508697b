"""Where the audit log lives. Pure: the environment and the effective uid are arguments."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

_PRODUCT: Final = "wicketgate"
AUDIT_DIRECTORY: Final = "audit"


class NoStateDirectory(Exception):  # noqa: N818
    """Neither XDG_STATE_HOME nor HOME names an absolute directory. The message holds the cure."""


def default_state_dir(environ: Mapping[str, str], euid: int) -> Path:
    """Return /var/lib/wicketgate for root, else the user's state directory (XDG Base Directory Specification).

    Relative values are ignored, as that specification asks. Raises `NoStateDirectory`.
    """
    if euid == 0:
        return Path("/var/lib") / _PRODUCT
    state_home = environ.get("XDG_STATE_HOME", "")
    if PurePosixPath(state_home).is_absolute():
        return Path(state_home) / _PRODUCT
    home = environ.get("HOME", "")
    if PurePosixPath(home).is_absolute():
        return Path(home) / ".local" / "state" / _PRODUCT
    raise NoStateDirectory("no state directory: set HOME or XDG_STATE_HOME to an absolute path, or pass --state-dir")


def audit_directory(state_dir: Path) -> Path:
    """Return the directory of the log inside a state directory."""
    return state_dir / AUDIT_DIRECTORY
