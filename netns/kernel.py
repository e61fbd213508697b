"""The few system calls and constants that Python's standard library lacks (prctl(2), user namespace set-up)."""

import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 4, 38, 24
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument; raise OSError on failure."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def die_with_parent() -> None:
    """Have the kernel kill this process when the **thread** that started it ends (PR_SET_PDEATHSIG).

    Call it after the last change of credentials, which clears the setting, and check afterwards that the parent is
    still there: it may have died before.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_capabilities() -> None:
    """Empty the permitted, effective and inheritable sets of this thread (capset(2))."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def enter_user_namespace(extra: int = 0) -> None:
    """Enter a new user namespace in which this user keeps its own numbers (identity-mapped).

    `extra` names further namespaces to enter in the same call (CLONE_NEW*). Needs a single-threaded process.
    Raises OSError: EPERM or EACCES where the kernel or a container's policy forbids it, ENOSPC at the limit of
    user.max_user_namespaces.
    """
    uid, gid = os.geteuid(), os.getegid()
    # A process that has changed its user is not dumpable, and then its own /proc files belong to root (proc(5)).
    prctl(PR_SET_DUMPABLE, 1)
    os.unshare(os.CLONE_NEWUSER | extra)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
