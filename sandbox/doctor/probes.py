"""Really try each step of building a sandbox, as this user, in children that end with what they made.

A step that is refused is told with its error, with whether the call reached the kernel, and with the label that the
process had then. Nothing is executed here but our own code.
"""

import contextlib
import ctypes
import errno
import json
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from netns import kernel, mounts
from netns.bridge import build_bridge
from netns.netlink import NetlinkError
from sandbox.doctor.causes import Attempt, Step
from sandbox.doctor.children import hear_child
from sandbox.doctor.facts import apparmor_label

CLONE_FS: Final = 0x200
WRONG: Final = -1
_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NEW = os.CLONE_NEWUSER | os.CLONE_NEWPID | os.CLONE_NEWNS | os.CLONE_NEWUTS | os.CLONE_NEWIPC
# A place that every system has; it is covered in a mount namespace of the child's own.
_PLACE = "/usr"
_CAPTURE_WORDS = ("rule", "table", "chain", "counter", "batch")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

type _Try = Callable[[], None]


def try_namespaces() -> Attempt | None:
    """Everything that a sandbox without a network is made of; the first refusal, or None."""
    return _in_child(_namespaces, Step.USER_NAMESPACE)


def try_bridge() -> Attempt | None:
    """A bridge, a sandbox's network namespace, and the cable between them; the first refusal, or None."""
    return _in_child(_bridge, Step.NETWORK_NAMESPACE)


def _namespaces() -> None:
    _step(Step.USER_NAMESPACE, lambda: os.unshare(os.CLONE_NEWUSER))
    _step(Step.MAP_IDS, _map_ids)
    _step(Step.PID_NAMESPACE, lambda: os.unshare(os.CLONE_NEWPID))
    _continue_in_child(_mounts)


def _mounts() -> None:
    """The first process of the new pid namespace."""
    _step(Step.MOUNT_NAMESPACE, lambda: os.unshare(os.CLONE_NEWNS))
    _step(Step.MOUNT, mounts.enter_private_mounts)
    _step(Step.PROCESSES, mounts.mount_processes)
    _step(Step.HOST_NAME, _name_host)
    _step(Step.CLONE, _clone)
    _step(Step.NESTED, _nest)
    # What may be mounted inside is judged for the innermost namespace, the sandbox's own.
    _step(Step.MOUNT, lambda: mounts.mount_tmpfs(_PLACE, "mode=755"))
    _step(Step.PIVOT_ROOT, _pivot_root)
    _step(Step.UNMOUNT, lambda: _checked(_libc.umount2(b"/old", 2), "umount2"))


def _bridge() -> None:
    _step(Step.USER_NAMESPACE, lambda: os.unshare(os.CLONE_NEWUSER))
    _step(Step.MAP_IDS, _map_ids)
    _step(Step.NETWORK_NAMESPACE, lambda: os.unshare(os.CLONE_NEWNET))
    try:
        build_bridge().close()
    except NetlinkError as error:
        step = Step.CAPTURE if any(word in error.what for word in _CAPTURE_WORDS) else Step.VETH
        raise _Refused(step, error, None) from error
    except OSError as error:
        reached = _reaches_setns() if error.errno == errno.EPERM else None
        raise _Refused(Step.LISTENERS, error, reached) from error


def _map_ids() -> None:
    # The ids that this process had before: they cannot be asked any more.
    uid, gid = _IDS
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")


def _nest() -> None:
    os.unshare(_NEW & ~os.CLONE_NEWPID)
    _map_ids()


def _name_host() -> None:
    os.unshare(os.CLONE_NEWUTS)
    socket.sethostname("sandbox")


def _clone() -> None:
    """As bubblewrap does. The kernel refuses this combination by itself, so that no process comes of it."""
    result = _libc.syscall(ctypes.c_long(_CLONE[os.uname().machine]), ctypes.c_ulong(_NEW | CLONE_FS), 0, 0, 0, 0)
    if result >= 0 or (code := ctypes.get_errno()) == errno.EINVAL:
        return
    raise OSError(code, os.strerror(code))


def _pivot_root() -> None:
    os.chdir(_PLACE)
    Path("old").mkdir()
    _checked(_libc.syscall(ctypes.c_long(_PIVOT_ROOT[os.uname().machine]), b".", b"old"), "pivot_root")


def _checked(result: int, call: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), call)


# ---- did the call reach the kernel ----------------------------------------------------------------------------------


def _reaches_unshare(flags: int) -> bool:
    # The kernel looks for flags that it does not know before it looks at rights (unshare(2)).
    return _answer(lambda: os.unshare(flags | 1)) == errno.EINVAL


def _reaches_mount() -> bool:
    # The arguments are fetched before anything is judged (mount(2)).
    nowhere = ctypes.c_void_p(WRONG)
    return _answer(lambda: _checked(_libc.mount(nowhere, nowhere, nowhere, 0, None), "")) == errno.EFAULT


def _reaches_umount() -> bool:
    return _answer(lambda: _checked(_libc.umount2(b"/", 0x40000000), "")) == errno.EINVAL


def _reaches_sethostname() -> bool:
    return _answer(lambda: _checked(_libc.sethostname(b"", ctypes.c_size_t(1 << 20)), "")) == errno.EINVAL


def _reaches_setns() -> bool:
    return _answer(lambda: _checked(_libc.setns(WRONG, os.CLONE_NEWNET), "")) == errno.EBADF


def _reaches_pivot_root() -> bool:
    number, nowhere = ctypes.c_long(_PIVOT_ROOT[os.uname().machine]), ctypes.c_void_p(WRONG)
    return _answer(lambda: _checked(_libc.syscall(number, nowhere, nowhere), "")) == errno.EFAULT


_REACHES: dict[Step, Callable[[], bool]] = {
    Step.USER_NAMESPACE: lambda: _reaches_unshare(os.CLONE_NEWUSER),
    Step.PID_NAMESPACE: lambda: _reaches_unshare(os.CLONE_NEWPID),
    Step.MOUNT_NAMESPACE: lambda: _reaches_unshare(os.CLONE_NEWNS),
    Step.NETWORK_NAMESPACE: lambda: _reaches_unshare(os.CLONE_NEWNET),
    Step.NESTED: lambda: _reaches_unshare(os.CLONE_NEWUSER),
    Step.MOUNT: _reaches_mount,
    Step.PROCESSES: _reaches_mount,
    Step.UNMOUNT: _reaches_umount,
    # Nobody but a filter refuses these to a process that has every capability in its user namespace.
    Step.CLONE: lambda: False,
    Step.HOST_NAME: _reaches_sethostname,
    Step.PIVOT_ROOT: _reaches_pivot_root,
}


def _answer(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


# ---- children -------------------------------------------------------------------------------------------------------


class _Refused(Exception):  # noqa: N818  an answer, not an error of ours
    def __init__(self, step: Step, error: OSError, reached: bool | None) -> None:
        super().__init__(str(error))
        self.step = step
        self.error = error
        self.reached = reached

    def document(self) -> dict[str, object]:
        return {
            "step": str(self.step),
            "error": self.error.errno or 0,
            "reached": self.reached,
            "label": apparmor_label(),
            "detail": self.error.strerror or str(self.error),
        }


_IDS = (os.geteuid(), os.getegid())


def _step(step: Step, attempt: _Try) -> None:
    try:
        attempt()
    except OSError as error:
        ask = _REACHES.get(step)
        denied = error.errno in {errno.EPERM, errno.ENOSYS}
        raise _Refused(step, error, ask() if ask is not None and denied else None) from error


def _in_child(body: Callable[[], None], first: Step) -> Attempt | None:
    """Run `body` in a child; what it was refused. One that dies without a word is a refusal of the `first` step."""
    global _IDS
    _IDS = (os.geteuid(), os.getegid())
    told, status = hear_child(partial(_be_child, body))
    if told:
        found = json.loads(told)
        return Attempt(
            step=Step(found["step"]),
            error=found["error"],
            reached=found["reached"],
            label=found["label"],
            detail=found["detail"],
        )
    if status != 0:
        return Attempt(step=first, error=errno.EIO, detail=f"the attempt ended with status {status}")
    return None


def _be_child(body: Callable[[], None], writer: int) -> NoReturn:
    status = 1
    with contextlib.suppress(BaseException):
        kernel.die_with_parent()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else its own /proc files are root's (proc(5))
        status = 0
        try:
            body()
        except _Refused as refused:
            os.write(writer, json.dumps(refused.document()).encode())
        except BaseException:
            status = 1
            raise
    os._exit(status)


def _continue_in_child(body: Callable[[], None]) -> None:
    """Go on in a child, which is the first process of a pid namespace that was just unshared."""
    told, status = hear_child(partial(_be_child, body))
    if not told and status != 0:
        raise OSError(errno.EIO, f"the first process of a pid namespace ended with status {status}")
    if told:
        found = json.loads(told)
        error = OSError(found["error"], found["detail"])
        raise _Carried(Step(found["step"]), error, found["reached"], found["label"])


class _Carried(_Refused):
    """What a grandchild was refused, with the label that it had."""

    def __init__(self, step: Step, error: OSError, reached: bool | None, label: str) -> None:
        super().__init__(step, error, reached)
        self.label = label

    def document(self) -> dict[str, object]:
        return super().document() | {"label": self.label}
