"""Let the service user write in a workspace that belongs to root (or to another user), while it stays its owner's.

Root runs its sandboxes as a service user. In a mount namespace of our own the workspace is mounted once more, so that
the owner's files are shown as the service user's and what the payload makes belongs to the owner on the disk
(mount_setattr(2), MOUNT_ATTR_IDMAP). Nobody else sees that mount, and no file changes its owner.
"""

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from netns import mounts
from sandbox.errors import Code, LaunchError

type IdRange = tuple[int, int]  # first, count
_REASONS = {
    errno.EPERM: "this container or user namespace lacks CAP_SYS_ADMIN over it",
    errno.EINVAL: "its file system cannot show other owners",
    errno.ENOSYS: "the kernel is older than 5.12",
}


def lend_workspace(workspace: Path, *, uid: int, gid: int) -> None:
    """Mount the workspace so that `uid` owns it. Needs root; leaves the thread in a mount namespace of its own.

    Does nothing where the service user can use it as it is. Raises LaunchError where the kernel refuses.
    """
    status = workspace.stat()
    barrier = first_barrier(workspace, uid, gid)
    if status.st_uid == uid and barrier is None:
        return
    try:
        _mount_mapped(workspace, barrier, status, uid, gid)
    except OSError as error:
        if barrier is None and may_enter(status, uid, gid, bits=stat.S_IRWXO):
            return  # open to everyone: usable, and what is made there is the service user's
        reason = _REASONS.get(error.errno or 0, f"{error.filename or 'the kernel'}: {error.strerror}")
        raise LaunchError(
            Code.BAD_WORKSPACE,
            f"The workspace {workspace} belongs to user {status.st_uid}, "
            f"and the service user {uid} cannot write there: {reason}.",
            f"Run Wicketgate as the owner, or give the directory away: chown -R {uid}:{gid} {workspace}",
        ) from error


def first_barrier(workspace: Path, uid: int, gid: int) -> Path | None:
    """The topmost directory above the workspace that the service user may not pass."""
    above = reversed(workspace.parents)
    return next((path for path in above if not may_enter(path.stat(), uid, gid, bits=stat.S_IXOTH)), None)


def may_enter(status: os.stat_result, uid: int, gid: int, *, bits: int) -> bool:
    """Whether the mode grants this user all of `bits` (as of others: 1 search, 2 write, 4 read)."""
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return (status.st_mode >> shift) & bits == bits


def mapping(owner: int, serving: int, ranges: Iterable[IdRange]) -> str:
    """A uid_map or gid_map: `owner` on the disk is shown as `serving`, everybody else as who they are.

    `ranges`: the ids that exist in this user namespace. What belongs to `serving` on the disk is left without a name:
    two owners cannot be shown as one.
    """
    lines = [] if owner == serving else [(owner, serving, 1)]
    taken = () if owner == serving else tuple(sorted((owner, serving)))
    for first, count in ranges:
        start, end = first, first + count
        for cut in taken:
            if start <= cut < end:
                lines.append((start, start, cut - start))
                start = cut + 1
        lines.append((start, start, end - start))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in lines if count > 0)


def _mount_mapped(workspace: Path, barrier: Path | None, status: os.stat_result, uid: int, gid: int) -> None:
    with contextlib.ExitStack() as files:
        mounts.enter_private_mounts()
        # Opened in the new namespace: only its own mounts can be copied.
        place = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        files.callback(os.close, place)
        if not os.path.samestat(os.fstat(place), status):
            raise OSError(errno.ESTALE, "exchanged for another directory meanwhile", str(workspace))
        tree = mounts.open_tree(place)
        files.callback(os.close, tree)
        owners = _user_namespace(
            mapping(status.st_uid, uid, _existing("uid_map")), mapping(status.st_gid, gid, _existing("gid_map"))
        )
        files.callback(os.close, owners)
        mounts.map_owners(tree, owners)
        if barrier is not None:
            # The service user may not look in here: an empty directory with only the way to the workspace covers it.
            mounts.mount_tmpfs(str(barrier), "mode=0755,size=64k,nr_inodes=512")
            workspace.mkdir(parents=True)
            for made in (workspace, *workspace.parents):
                if made != barrier and made.is_relative_to(barrier):
                    made.chmod(0o755)  # whatever the umask took away
        mounts.attach_tree(tree, str(workspace))


def _existing(name: str) -> list[IdRange]:
    rows = [line.split() for line in Path("/proc/self", name).read_text().splitlines()]
    # -1 is no id: the whole range of the initial namespace ends before it (user_namespaces(7)).
    return [(int(first), min(int(count), 0xFFFFFFFF - int(first))) for first, _outside, count in rows]


def _user_namespace(uids: str, gids: str) -> int:
    """A user namespace that exists only as these two mappings. The caller owns the descriptor."""
    ready, told = os.pipe2(os.O_CLOEXEC)
    wait, end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _be_namespace(told, wait, end)
    os.close(told)
    os.close(wait)
    try:
        code = int(os.read(ready, 16) or str(errno.EPERM))
        if code:
            raise OSError(code, os.strerror(code), "unshare")
        Path(f"/proc/{pid}/uid_map").write_text(uids)
        Path(f"/proc/{pid}/gid_map").write_text(gids)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(end)
        os.waitpid(pid, 0)


def _be_namespace(told: int, wait: int, end: int) -> NoReturn:
    # Ends with its parent: the only writing end of `wait` is the parent's.
    os.close(end)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    code = 0
    try:
        os.unshare(os.CLONE_NEWUSER)
    except OSError as error:
        code = error.errno or errno.EPERM
    os.write(told, str(code).encode())
    os.read(wait, 1)
    os._exit(0)
