"""Whose the log is: root asking about a service's log acts as that service's user, or becomes that user for good.

So what is made beside the log is its owner's, and a link that the owner put there leads root nowhere.
"""

import contextlib
import os
from collections.abc import Iterator

from broker.audit.errors import AuditError


@contextlib.contextmanager
def acting_as(owner: os.stat_result) -> Iterator[None]:
    """Take the owner's ids for a while. Raises `AuditError`."""
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    before = os.getegid()
    try:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    except OSError as error:
        raise _cannot(owner, error) from error
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)


def become(owner: os.stat_result) -> None:
    """Take the owner's ids for good, without further groups. Raises `AuditError`."""
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    try:
        os.setgroups([])
        os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
        os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
    except OSError as error:
        raise _cannot(owner, error) from error


def _cannot(owner: os.stat_result, error: OSError) -> AuditError:
    return AuditError(f"cannot act as uid {owner.st_uid}, who owns the log: {error.strerror}")
