"""The system calls of joining a running sandbox and of a namespace's first process (clone(2), seccomp(2))."""

import ctypes
import os
import select
import signal

from netns import kernel

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_PARENT = 0x8000
INSTRUCTION = 8  # bytes of a struct sock_filter
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Program(ctypes.Structure):
    """struct sock_fprog (seccomp(2))."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def clone_sibling() -> int:
    """Fork, but as a child of this process's parent; the child's pid, 0 in the child.

    It is born in the pid namespace that this process has joined. Only for a process without threads that ends or
    executes a program soon: nothing of Python's own work around a fork is done.
    """
    flags = ctypes.c_long(CLONE_PARENT | signal.SIGCHLD)
    none = ctypes.c_long(0)  # stack, both thread ids and the thread's storage, in either machine's order
    pid = int(_libc.syscall(ctypes.c_long(_SYS_CLONE[os.uname().machine]), flags, none, none, none, none))
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "clone")
    return pid


def filter_system_calls(program: bytes) -> None:
    """Install a compiled filter for this thread and what it starts. Needs no_new_privs; afterwards only execute."""
    content = ctypes.create_string_buffer(program, len(program))
    loaded = _Program(len(program) // INSTRUCTION, ctypes.cast(content, ctypes.c_void_p))
    if _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(loaded), 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl PR_SET_SECCOMP")


def become_first_process() -> None:
    """Fork into the pid namespace that was unshared. Returns in process 1; the parent waits and ends with it.

    The parent passes PASSED_ON on, and dies with whoever started it, the child with the parent: so nothing of the
    namespace outlives any of them. Process 1 has these signals blocked: the kernel throws away what it has no handler
    for (pid_namespaces(7)), unless it is blocked. Unblock them when there are handlers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    above = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        if has_ended(above):
            os._exit(1)
        os.close(above)
        return
    for number in PASSED_ON:
        signal.signal(number, lambda which, _frame: os.kill(pid, which))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def has_ended(pidfd: int) -> bool:
    """Whether a process has ended, by its descriptor."""
    poll = select.poll()  # select(2) knows no number above 1023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
