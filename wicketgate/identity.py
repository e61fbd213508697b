"""Who serves: the calling user, or, for root, a service user without any right. A payload is never kernel uid 0."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import Code, LaunchError

ACCOUNT = "wicketgate"
# Used where no such account exists. Above the ranges for people and for accounts of packages, and inside the range
# that systemd documents for users which exist only while a service runs.
FALLBACK_ID = 64321


@dataclass(frozen=True, slots=True)
class Identity:
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
    except KeyError:
        return Identity(FALLBACK_ID, FALLBACK_ID)
    if account.pw_uid == 0:
        raise LaunchError(
            Code.NO_SERVICE_USER,
            f"The account {ACCOUNT} is root itself.",
            "Give it a user id of its own; Wicketgate never runs a command as root.",
        )
    return Identity(account.pw_uid, account.pw_gid)


def prepare_state(state: Path, identity: Identity) -> None:
    """Make the state directory, owned by the serving user and closed to others. Only root has to change owners."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0 and state.stat().st_uid == 0:
        os.chown(state, identity.uid, identity.gid, follow_symlinks=False)
