"""Who serves: the calling user, or, for root, a service user without any right. A payload is never kernel uid 0."""

import contextlib
import os
import pwd
from pathlib import Path

import msgspec

from sandbox.errors import Code, LaunchError

ACCOUNT = "wicketgate"
# Used where no such account exists. Above the ranges for people and for accounts of packages, and inside the range
# that systemd documents for users which exist only while a service runs.
FALLBACK_ID = 64321


class Identity(msgspec.Struct, frozen=True):
    """A user to become."""

    uid: int
    gid: int

    @property
    def is_current(self) -> bool:
        """Whether this process is that user already."""
        return os.getresuid() == (self.uid,) * 3

    def become(self) -> None:
        """Drop to this user for good: groups, then the group, then the user."""
        if self.is_current:
            return
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


def serving_identity() -> Identity:
    """The user that runner, broker and payload run as."""
    if os.geteuid() != 0:
        return Identity(os.geteuid(), os.getegid())
    try:
        account = pwd.getpwnam(ACCOUNT)
        identity = Identity(account.pw_uid, account.pw_gid)
    except KeyError:
        identity = Identity(FALLBACK_ID, FALLBACK_ID)
    if 0 in {identity.uid, identity.gid}:
        raise LaunchError(
            Code.NO_SERVICE_USER,
            f"The account {ACCOUNT} is root itself or in root's group.",
            "Give it a user and a group of its own; Wicketgate never runs a command as root.",
        )
    for name, wanted in (("uid_map", identity.uid), ("gid_map", identity.gid)):
        if not _exists(name, wanted):
            raise LaunchError(
                Code.NO_SERVICE_USER,
                f"The service user {identity.uid}:{identity.gid} does not exist in this user namespace ({name}).",
                "Run Wicketgate as an ordinary user, or map a range of ids that holds it.",
            )
    return identity


def _exists(name: str, wanted: int) -> bool:
    rows = [line.split() for line in Path("/proc/self", name).read_text().splitlines()]
    return any(int(first) <= wanted < int(first) + int(count) for first, _outside, count in rows)


def lend_pipes(identity: Identity) -> None:
    """Give the pipes of standard input and output to the serving user, so that /dev/stdout can be opened inside.

    Opening it goes through /proc/self/fd, where an anonymous pipe has an owner like a file. Files and terminals are
    left alone: their owner outlives us.
    """
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:["):  # noqa: PTH115  no path
                os.fchown(number, identity.uid, -1)


def prepare_state(state: Path, identity: Identity) -> None:
    """Make the state directory, owned by the serving user and closed to others. Only root has to change owners."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0 and state.stat().st_uid == 0:
        os.chown(state, identity.uid, identity.gid, follow_symlinks=False)
