"""The few system calls and constants that Python's standard library lacks (prctl(2), capset(2), user namespaces)."""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import struct
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 4, 38, 24
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
CAPABILITY_VERSION_3 = 0x20080522
CLOSE_RANGE_CLOEXEC = 4
_SYS_CLOSE_RANGE, _LAST = 436, 0xFFFFFFFF  # on every architecture; the highest number that there can be
_SYS_OPENAT2, _RESOLVE_IN_ROOT = 437, 0x10
SIGNAL_INFO = 128  # size of struct signalfd_siginfo

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument; raise OSError on failure."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def set_name(name: str) -> None:
    """Name this thread (at most 15 bytes), as process lists show it."""
    buffer = ctypes.create_string_buffer(name.encode())
    if _libc.prctl(PR_SET_NAME, buffer, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl PR_SET_NAME: {os.strerror(code)}")


def die_with_parent() -> None:
    """Have the kernel kill this process when the **thread** that started it ends (PR_SET_PDEATHSIG).

    Call it after the last change of credentials, which clears the setting, and check afterwards that the parent is
    still there: it may have died before.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_capabilities(*, bounding: bool = True, keep: int = 0) -> None:
    """Empty the bounding, permitted, effective and inheritable sets of this thread (capabilities(7), capset(2)).

    Only CAP_SETPCAP can empty the bounding set. `bounding=False` leaves it: under no_new_privs it gives nothing.
    `keep`: the bits (of the first 32) that stay permitted and effective.
    """
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(keep, keep)
    if bounding:
        _empty_bounding_set()
    if _libc.capset(header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def hand_capabilities_on() -> None:
    """Let the program that is executed next have what this thread may have (capabilities(7), ambient set)."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same of the numbers from 32 on
    _checked(_libc.capget(header, data), "capget")
    data[2], data[5] = data[1], data[4]
    _checked(_libc.capset(header, data), "capset")
    for capability in range(64):
        if data[1 + 3 * (capability // 32)] >> capability % 32 & 1:
            _ambient(PR_CAP_AMBIENT_RAISE, capability)


def keep_capabilities_to_oneself() -> None:
    """The other way round: what is executed from here on gets none, as if none had been handed on."""
    _ambient(PR_CAP_AMBIENT_CLEAR_ALL, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, data), "capget")
    data[2] = data[5] = 0
    _checked(_libc.capset(header, data), "capset")


def _ambient(what: int, capability: int) -> None:
    arguments = (ctypes.c_ulong(what), ctypes.c_ulong(capability), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(_libc.prctl(PR_CAP_AMBIENT, *arguments), "prctl PR_CAP_AMBIENT")


def _checked(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def _empty_bounding_set() -> None:
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                return  # the kernel knows no more capabilities
            raise OSError(code, f"prctl PR_CAPBSET_DROP: {os.strerror(code)}")


def explain_namespaces(error: OSError) -> str:
    """Why a namespace was refused; the kernel's own word for a limit speaks of a full disk (clone(2))."""
    if error.errno in {errno.ENOSPC, errno.EUSERS}:
        return "a limit below /proc/sys/user is reached, or is zero"
    return error.strerror or str(error)


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


def signal_descriptor(numbers: Iterable[int]) -> int:
    """A descriptor that is readable while one of these blocked signals is pending (signalfd(2)). The caller owns it."""
    mask = bytearray(128)  # glibc's and musl's sigset_t
    for number in numbers:
        mask[(number - 1) // 8] |= 1 << (number - 1) % 8
    fd = int(_libc.signalfd(-1, bytes(mask), os.O_CLOEXEC | os.O_NONBLOCK))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"signalfd: {os.strerror(code)}")
    return fd


def timer_descriptor() -> int:
    """A descriptor that is readable when the time of `set_timer` has come (timerfd_create(2)). The caller owns it."""
    fd = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"timerfd_create: {os.strerror(code)}")
    return fd


def set_timer(fd: int, seconds: float) -> None:
    """Let a timer go off once, in so many seconds; 0: not at all."""
    whole = int(seconds)
    setting = (ctypes.c_long * 4)(0, 0, whole, int((seconds - whole) * 1e9))  # struct itimerspec: interval, value
    if _libc.timerfd_settime(fd, 0, setting, None) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"timerfd_settime: {os.strerror(code)}")


def keep_descriptors(keep: set[int]) -> None:
    """Close every other descriptor of this process; what is not kept of 0, 1 and 2 leads to nothing instead."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in {0, 1, 2} - keep:
        os.dup2(null, number)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208  after a fork: nothing fancy
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


def inherit_only(keep: set[int]) -> None:
    """Let a program that is executed next have these descriptors, beside 0, 1 and 2, and no other one.

    The kernel marks all of them in one step (close_range(2), Linux 5.11): a server may have many thousand.
    """
    flags = ctypes.c_long(CLOSE_RANGE_CLOEXEC)
    if _libc.syscall(ctypes.c_long(_SYS_CLOSE_RANGE), ctypes.c_long(3), ctypes.c_long(_LAST), flags) != 0:
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  after a fork: nothing fancy
            if fd > 2:
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.set_inheritable(fd, False)
    for fd in {0, 1, 2} | keep:
        os.set_inheritable(fd, True)


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open a path as a process would whose root directory this is (openat2(2), RESOLVE_IN_ROOT). Raises OSError."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    fd = int(_libc.syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(root), os.fsencode(path), ctypes.byref(how), size))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def raise_descriptors() -> None:
    """Take as many descriptors as this process may have (getrlimit(2))."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_signals(fd: int) -> list[tuple[int, int]]:
    """The pending signals as (number, si_code); empty where there are none."""
    try:
        data = os.read(fd, SIGNAL_INFO * 16)
    except BlockingIOError:
        return []
    records = (struct.unpack_from("=Iii", data, offset) for offset in range(0, len(data), SIGNAL_INFO))
    return [(number, code) for number, _errno, code in records]


def lock_standard_descriptors() -> None:
    """Fill 0, 1 and 2 where the caller closed them, so that nothing opened later takes such a number.

    What fills them fails with EBADF as a closed descriptor does: 0 cannot be read, 1 and 2 cannot be written.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given out, and those below this one are taken.
            os.set_inheritable(os.open(os.devnull, flags), True)
