"""The protection of a session's workspace while its sandbox is built: surveyed and held before, compared after.

What is protected, and how, is decided in `sandbox.protect`, which is loaded where there is a workspace.
"""

import codecs
import contextlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from sandbox.errors import AGAIN, Code, LaunchError
from sandbox.ground import Ground
from sandbox.plan import Operation

if TYPE_CHECKING:
    from sandbox import protect
    from sandbox.workspace import Workspace

HOLD_ATTEMPTS: Final = 5
GITS: Final = "git"  # below the state: repositories that payloads made at the top of a workspace


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """The protection of one session's workspace: the directory, what was found in it, the share in the held names."""

    root: int
    found: "protect.Survey"
    hold: "protect.Hold"

    def settle(self) -> "tuple[protect.Finding, ...]":
        """Make harmless what the payload planted, and let the names go. Once, when all of the sandbox is dead."""
        from sandbox import protect  # noqa: PLC0415  loaded by `guard_workspace`

        try:
            return protect.settle(self.root, self.found)
        finally:
            self.hold.release()
            os.close(self.root)


def preload() -> None:
    """Load what a workspace needs, before a change of user that may make this interpreter unreadable."""
    for name in ("sandbox.protect", "sandbox.workspace"):
        importlib.import_module(name)
    for codec in ("ascii", "utf-8"):
        codecs.lookup(codec)


def guard_workspace(
    workspace: "Workspace | None", ground: Ground, undo: contextlib.ExitStack
) -> tuple[Guard | None, tuple[Operation, ...]]:
    """Survey the workspace and hold its absent names; the mounts that protect it. Raises LaunchError."""
    if workspace is None:
        return None, ()
    from sandbox import protect  # noqa: PLC0415
    from sandbox.workspace import WorkspaceError  # noqa: PLC0415

    state, keeper = ground.state, ground.keeper
    if state is None or keeper is None:  # a process that has the one has the other
        raise LaunchError(
            Code.NO_STATE_DIRECTORY,
            "There is no state directory, and without one a workspace cannot be protected.",
            "Set XDG_STATE_HOME to a directory that this user can write.",
        )
    try:
        root = _open(workspace)
        undo.callback(os.close, root)
        found, hold = _hold(root, state, keeper)
        undo.callback(hold.release)
        private = state / GITS / f"{workspace.device:x}-{workspace.inode:x}"
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
    except WorkspaceError as error:
        raise LaunchError(Code.BAD_WORKSPACE, f"{error.cause}.", f"{error.cure}.") from error
    except OSError as error:
        raise LaunchError(
            Code.BAD_WORKSPACE,
            f"The workspace {workspace.path} cannot be protected ({error.filename or 'it'}: {error.strerror}).",
            "The serving user needs every right over it, and space in the state directory.",
        ) from error
    made = Guard(root=root, found=found, hold=hold)
    return made, protect.operations(workspace.path, found, held=hold.held, private_git=private)


def verify_workspace(init: int, guard: Guard | None, workspace: "Workspace | None") -> None:
    """Compare what is mounted with what was surveyed. Raises LaunchError."""
    if workspace is None or guard is None:
        return
    from sandbox import protect  # noqa: PLC0415

    try:
        place = f"/proc/{init}/root{workspace.path}"
        inside = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(inside)
            if (found.st_dev, found.st_ino) != (workspace.device, workspace.inode):
                raise protect.MountsDifferError("the workspace was exchanged for another directory")
            protect.verify(inside, guard.found, held=guard.hold.held)
        finally:
            os.close(inside)
    except (protect.MountsDifferError, OSError) as error:
        cause = f"The workspace changed while the sandbox was built: {error}."
        raise LaunchError(Code.BAD_WORKSPACE, cause, AGAIN) from error


def _hold(root: int, state: Path, keeper: "protect.Keeper") -> "tuple[protect.Survey, protect.Hold]":
    """Survey and hold. Sessions come and go: a name that one of them held may be gone between the two."""
    from sandbox import protect  # noqa: PLC0415

    protect.take_away(root, state=state)
    for _ in range(HOLD_ATTEMPTS):
        found = protect.survey(root)
        hold = protect.hold(root, found, state=state, keep=keeper.take)
        try:
            protect.verify(root, found)
        except protect.MountsDifferError:
            hold.release()
        except BaseException:
            hold.release()
            raise
        else:
            return _without_held(found, hold.held), hold
    raise LaunchError(Code.BAD_WORKSPACE, "The workspace changes faster than it can be looked at.", AGAIN)


def _without_held(found: "protect.Survey", held: tuple[str, ...]) -> "protect.Survey":
    """An empty directory that another session holds a name with is no file of the owner's: it is covered."""
    ours = set(held)
    return structs.replace(
        found,
        frozen=tuple(path for path in found.frozen if path not in ours),
        identities=frozenset((path, inode) for path, inode in found.identities if path not in ours),
    )


def _open(workspace: "Workspace") -> int:
    with workspace.opened() as place:
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
