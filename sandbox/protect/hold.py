"""Hold the absent names of a workspace with empty directories while sessions run, and take them away afterwards.

A mount needs something to lie on. An empty directory is that something with the least trace: git does not list one,
and no tool reads one, whatever its name. Several sessions share a workspace: removing a directory on the host would
undo another session's mount (the kernel detaches it), so the last one out removes them.

Who is in is kept by a lock on a file of the server's, never in the workspace, where a payload could lock it, too. Locks
end with their process, so a killed server leaves at most empty directories: `Hold.release` in the process that outlives
it (the same as for control groups), or else the next `hold` of that workspace, takes them away.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.protect.names import GIT_HELD, is_git
from sandbox.protect.survey import Survey, is_empty, join, open_below

DIRECTORY = "held"


@dataclass(slots=True)
class Hold:
    """One session's share in the held names of a workspace."""

    root: int  # a descriptor of the workspace, owned
    lock: (
        int  # a descriptor of the lock file, owned; inherited by a process that outlives its maker, it keeps the share
    )
    turn: Path  # the lock file under which sessions enter and leave, one at a time
    held: tuple[str, ...]

    def release(self) -> None:
        """Give the share up; the last one removes the empty directories. Call it when the session's processes are gone.

        A directory that is not empty any more was filled from outside: it stays.
        """
        if self.lock < 0:
            return
        try:
            with _turn(self.turn):
                if _try_exclusive(self.lock):
                    _remove_recorded(self.root, self.lock)
        finally:
            os.close(self.lock)
            os.close(self.root)
            self.lock = self.root = -1


def hold(root: int, found: Survey, *, state: Path) -> Hold:
    """Hold the absent names of the surveyed workspace behind `root`, which stays the caller's.

    `state` is the server's own directory. Raises OSError when a directory cannot be made: then nothing may be started.
    """
    own = os.dup(root)
    status = os.fstat(root)
    directory = state / DIRECTORY
    lock = -1
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        name = directory / f"{status.st_dev:x}-{status.st_ino:x}"
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        turn = name.with_suffix(".turn")
        with _turn(turn):
            held = _enter(own, lock, _wanted(found))
    except BaseException:
        os.close(own)
        if lock >= 0:
            os.close(lock)
        raise
    return Hold(root=own, lock=lock, turn=turn, held=held)


def _wanted(found: Survey) -> tuple[str, ...]:
    inside = [join(path, name) for path in found.git_directories if path for name in GIT_HELD]
    return (*found.absent, *(path for path in inside if path not in found.frozen))


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Hold the lock file `path` alone; others wait. What is done under it takes milliseconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _enter(root: int, lock: int, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Make what is missing and keep a share. The record is written first, so that a kill leaves nothing unrecorded."""
    recorded = _recorded(lock)
    if _try_exclusive(lock):
        _remove_recorded(root, lock)  # left behind by a kill; or by a session that ended after the survey was made
    fcntl.flock(lock, fcntl.LOCK_SH)
    every = tuple(dict.fromkeys((*recorded, *wanted)))
    _record(lock, every)
    made = {path for path in every if _make(root, path)}
    return tuple(path for path in every if path in made or (path in recorded and _is_free(root, path)))


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


def _remove_recorded(root: int, lock: int) -> None:
    for path in reversed(_recorded(lock)):
        above, _, name = path.rpartition("/")
        with contextlib.suppress(OSError):  # filled, replaced or removed from outside: not ours any more
            parent = open_below(root, above)
            try:
                os.rmdir(name, dir_fd=parent)
            finally:
                os.close(parent)
    _record(lock, ())


def _recorded(lock: int) -> tuple[str, ...]:
    content = os.pread(lock, 1 << 20, 0)
    try:
        return tuple(str(path) for path in json.loads(content or b"[]"))
    except ValueError:
        return ()  # a write cut short by a power cut; the names are found by the next survey as existing


def _record(lock: int, paths: tuple[str, ...]) -> None:
    content = json.dumps(list(dict.fromkeys(paths))).encode()
    os.pwrite(lock, content, 0)
    os.ftruncate(lock, len(content))
