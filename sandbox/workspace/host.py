"""Collect what this host keeps workspaces away from: home directories, our state, configured databases.

Read once when a server starts, as the serving user. It reads the user database and looks at directories, nothing else.
"""

import os
import pwd
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandbox.workspace.errors import WorkspaceCode, WorkspaceError
from sandbox.workspace.rules import HOME_PARENTS, ForbiddenRoots, Identity


def forbidden_roots(
    *, uid: int, state: Iterable[Path] = (), databases: Iterable[Path] = (), managed: Path | None = None
) -> ForbiddenRoots:
    """Build the value that every call of `validate_workspace` takes.

    Paths are made canonical; one that does not exist yet stays protected by its name. `databases` are files or
    directories; what belongs beside a file (journals, write-ahead logs) lies in the same directory, which any
    workspace that could reach it would hold, too.

    Raises `WorkspaceError` (`BAD_MANAGED_ROOT`) where the root for workspaces is, holds or lies in one of these: what
    lies below it is exempt from their rules. Only the folder `workspaces` of a state directory may be one.
    """
    own = _home_of(uid)
    homes = tuple(sorted({*_homes(), *([] if own is None else [own])}))
    states, stores = tuple(map(_canonical, state)), tuple(map(_canonical, databases))
    if managed is not None:
        _check_managed(_canonical(managed), states, stores)
    return ForbiddenRoots(
        homes=homes,
        own_home=own,
        state=states,
        databases=stores,
        managed=None if managed is None else _canonical(managed),
        identities=tuple(_identities((*homes, *states, *stores))),
    )


def _check_managed(managed: Path, states: tuple[Path, ...], stores: tuple[Path, ...]) -> None:
    for place in (*states, *stores):
        if managed == place / "workspaces" and place in states:
            continue
        if _is_below(managed, place) or _is_below(place, managed):
            cause = f"the root for workspaces, “{managed}”, is, holds or lies in “{place}”, which no command may reach"
            raise WorkspaceError(WorkspaceCode.BAD_MANAGED_ROOT, cause, "name another directory as `managed`")


def _is_below(path: Path, place: Path) -> bool:
    """By name, or by identity: a directory may be mounted in a second place."""
    known = _identity(place)
    return path.is_relative_to(place) or (
        known is not None and any(_identity(one) == known for one in (path, *path.parents))
    )


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _canonical(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _home_of(uid: int) -> Path | None:
    try:
        return _usable(Path(pwd.getpwuid(uid).pw_dir))
    except KeyError:
        return None  # containers often run as a user without a name


def _homes() -> Iterator[Path]:
    for entry in pwd.getpwall():
        home = _usable(Path(entry.pw_dir))
        if home is not None:
            yield home


def _usable(path: Path) -> Path | None:
    """The canonical home, None for what only fills the field (`/`, `/nonexistent`, the parent of all homes)."""
    home = _canonical(path) if path.is_absolute() else Path("/")
    return home if home != Path("/") and home not in HOME_PARENTS and home.is_dir() else None


def _identities(paths: Iterable[Path]) -> Iterator[tuple[Identity, Path]]:
    for path in paths:
        identity = _identity(path)
        if identity is not None:
            yield identity, path
