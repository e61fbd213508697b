"""Where a broker's sockets are. Pure: the environment and the effective uid are arguments."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

_PRODUCT: Final = "wicketgate"
LOCK_NAME: Final = "broker.lock"
SOCKET_NAMES: Final = {"control": "control.sock", "attach": "attach.sock"}


class NoRuntimeDirectory(Exception):  # noqa: N818
    """XDG_RUNTIME_DIR names no absolute directory. The message holds the cure."""


def default_runtime_dir(environ: Mapping[str, str], euid: int) -> Path:
    """Return /run/wicketgate for root, else the user's runtime directory (XDG Base Directory Specification).

    A relative value is ignored, as that specification asks. Raises `NoRuntimeDirectory`.
    """
    if euid == 0:
        return Path("/run") / _PRODUCT
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if PurePosixPath(runtime).is_absolute():
        return Path(runtime) / _PRODUCT
    raise NoRuntimeDirectory("no runtime directory: set XDG_RUNTIME_DIR to an absolute path")


def default_socket(role: str, environ: Mapping[str, str], euid: int) -> Path:
    """Return the path of a broker's `control` or `attach` socket: WICKETGATE_CONTROL or WICKETGATE_ATTACH, if set."""
    named = environ.get(f"{_PRODUCT}_{role}".upper(), "")
    return Path(named) if named else default_runtime_dir(environ, euid) / SOCKET_NAMES[role]
