"""Hold the absent names of a workspace with empty directories while sessions run, and take them away afterwards.

A mount needs something to lie on. An empty directory is that something with the least trace: git does not list one,
and no tool reads one, whatever its name. Several sessions share a workspace: removing a directory on the host would
undo another session's mount (the kernel detaches it), so the last one out removes them.

Who is in is kept by a lock on a file of the server's, never in the workspace, where a payload could lock it, too. Locks
end with the last process that has the open file: the server, and its keeper (`sandbox.protect.keeper`), which is given
the file before anything is made and does `Hold.release` for a server that was killed. Where both were killed, the next
session of the workspace (`take_away`) or the next start of a runner (`sweep`) removes what is nobody's any more.
"""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sandbox.protect.below import is_empty, join, open_below
from sandbox.protect.names import GIT_HELD, is_git
from sandbox.protect.survey import Survey

DIRECTORY = "held"
# What was filled, replaced or removed from outside is nobody's to remove any more.
NOT_OURS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP})
RECORD, DRAFT, TURN = ".json", ".new", ".turn"  # beside the lock file; there is a record as long as names may be held

# Has a hold kept that is about to be made, and says how to give it up (`Keeper.take`). Raises LaunchError.
type Keep = Callable[["Hold", Survey], Callable[[], None]]


class Hold(msgspec.Struct):
    """One session's share in the held names of a workspace.

    `root`: a descriptor of the workspace; `lock`: one of the lock file, which is the share; both owned. `place`: the
    path of the lock file. `give_up` tells the keeper, which has both descriptors as well, that nothing is left to do.
    """

    root: int
    lock: int
    place: Path
    held: tuple[str, ...] = ()
    give_up: Callable[[], None] | None = None

    def release(self) -> None:
        """Give the share up; the last one removes the empty directories. Call it when the session's processes are gone.

        A directory that is not empty any more was filled from outside: it stays.
        """
        if self.lock < 0:
            return
        try:
            with _turn(self.place):
                if _try_exclusive(self.lock):
                    _remove_recorded(self.root, self.place)
                fcntl.flock(self.lock, fcntl.LOCK_UN)  # not left to the close: the keeper has the same open file
        finally:
            os.close(self.lock)
            os.close(self.root)
            self.lock = self.root = -1
        if self.give_up is not None:
            self.give_up()


def hold(root: int, found: Survey, *, state: Path, keep: Keep | None = None) -> Hold:
    """Hold the absent names of the surveyed workspace behind `root`, which stays the caller's.

    `state` is the server's own directory; `keep` has the hold released if the server is killed. Raises OSError when a
    directory cannot be made, LaunchError when the keeper has gone: then nothing may be started, and nothing is left.
    """
    made = _open(root, state)
    try:
        if keep is not None:
            made.give_up = keep(made, found)
        with _turn(made.place):
            made.held = _enter(made, _wanted(found))
    except BaseException:
        made.release()
        raise
    return made


def take_away(root: int, *, state: Path) -> None:
    """Take away what killed sessions left in the workspace behind `root`, unless another one is in. Raises OSError."""
    _open(root, state).release()


def sweep(state: Path) -> tuple[str, ...]:
    """Take away what killed sessions left in any workspace on record; the paths of those that were looked after.

    One that was moved, cannot be opened or is in use keeps its record: who comes next in it looks after it.
    """
    swept: list[str] = []
    for record in sorted((state / DIRECTORY).glob(f"*{RECORD}")):
        path = _read(record).get("path")
        with contextlib.suppress(OSError, TypeError):
            root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)  # type: ignore[arg-type]
            try:
                if _name(root) == record.stem:
                    take_away(root, state=state)
                    swept += [] if record.exists() else [str(path)]
            finally:
                os.close(root)
    return tuple(swept)


def _open(root: int, state: Path) -> Hold:
    """No share yet, only what one is made with."""
    directory = state / DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    place = directory / _name(root)
    lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return Hold(root=os.dup(root), lock=lock, place=place)
    except BaseException:
        os.close(lock)
        raise


def _name(root: int) -> str:
    status = os.fstat(root)
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _wanted(found: Survey) -> tuple[str, ...]:
    inside = [join(path, name) for path in found.git_directories if path for name in GIT_HELD]
    return (*found.absent, *(path for path in inside if path not in found.frozen))


@contextlib.contextmanager
def _turn(place: Path) -> Iterator[None]:
    """Let sessions of a workspace enter and leave one at a time. What is done meanwhile takes milliseconds."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(place.with_suffix(TURN), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _enter(made: Hold, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Make what is missing and keep a share. The record is written first, so that a kill leaves nothing unrecorded."""
    root, place = made.root, made.place
    recorded = _recorded(place)
    if _try_exclusive(made.lock):
        _remove_recorded(root, place)  # left behind by a kill; or by a session that ended after the survey was made
    fcntl.flock(made.lock, fcntl.LOCK_SH)
    every = tuple(dict.fromkeys((*recorded, *wanted)))
    _record(root, place, every)
    made_now = {path for path in every if _make(root, path)}
    return tuple(path for path in every if path in made_now or (path in recorded and _is_free(root, path)))


def _try_exclusive(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(root: int, path: str) -> bool:
    """Make the empty directory; False when something has the name by now (it then is no absent name)."""
    above, _, name = path.rpartition("/")
    try:
        parent = open_below(root, above)
    except (FileNotFoundError, NotADirectoryError):
        return False  # recorded by an earlier session, and the directory above it is gone
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    finally:
        os.close(parent)
    return True


def _is_free(root: int, path: str) -> bool:
    """Whether a name that another session holds is still a directory to mount on."""
    try:
        descriptor = open_below(root, path)
    except OSError:
        return False
    try:
        return is_git(path) or is_empty(descriptor)
    finally:
        os.close(descriptor)


def _remove_recorded(root: int, place: Path) -> None:
    left = tuple(path for path in reversed(_recorded(place)) if not _remove(root, path))
    if left:
        _record(root, place, left[::-1])
        return
    for suffix in (DRAFT, RECORD):
        place.with_suffix(suffix).unlink(missing_ok=True)


def _remove(root: int, path: str) -> bool:
    """Remove an empty directory; False when this process may not, and another one may."""
    above, _, name = path.rpartition("/")
    try:
        parent = open_below(root, above)
        try:
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        return error.errno in NOT_OURS
    return True


def _recorded(place: Path) -> tuple[str, ...]:
    return tuple(map(str, _read(place.with_suffix(RECORD)).get("held", ())))


def _read(record: Path) -> dict[str, Any]:
    """Empty where there is none; or a broken one after a power cut: the next survey finds those names as existing."""
    try:
        document = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _record(root: int, place: Path, paths: tuple[str, ...]) -> None:
    """Replace the record, so that a kill leaves the old one or the new one."""
    path = os.readlink(f"/proc/self/fd/{root}")  # noqa: PTH115  no path
    draft = place.with_suffix(DRAFT)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(json.dumps({"path": path, "held": paths}))
    draft.replace(place.with_suffix(RECORD))
