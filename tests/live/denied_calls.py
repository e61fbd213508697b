"""Run a program as it would run on a poorer host: `denied_calls.py RULE PROGRAM...`.

no-user-namespaces   the kernel's limit for user namespaces is zero (user.max_user_namespaces)
policy               a container's seccomp policy refuses unshare(2) and namespaces in clone(2)
no-nf-tables         the kernel has no netlink for packet filters
no-netlink           the kernel has no netlink at all
no-network           network namespaces are refused, user namespaces are not
no-pivot-root        bubblewrap cannot change the root directory
no-bwrap             there is no bubblewrap (a mount namespace without it)
one-id               a user namespace with root as the only user
"""

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

NUMBERS = {
    "x86_64": {"unshare": 272, "clone": 56, "clone3": 435, "socket": 41, "pivot_root": 155},
    "aarch64": {"unshare": 97, "clone": 220, "clone3": 435, "socket": 198, "pivot_root": 41},
}[os.uname().machine]
CLONE_NAMESPACES = 0x7E020000
LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
libc = ctypes.CDLL(None, use_errno=True)


def install(*blocks: list[tuple[int, int, int, int]]) -> None:
    """Each block loads the call's number first and falls through at its end."""
    program = [step for block in blocks for step in block] + [(RETURN, 0, 0, ALLOW)]
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("=H6xQ", len(program), ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, header, 0, 0) == 0, os.strerror(ctypes.get_errno())


def deny(
    call: str, code: int, *, argument: int = -1, value: int = 0, bits: bool = False
) -> list[tuple[int, int, int, int]]:
    """Refuse a call; with `argument` only where its low word is `value` (or has one of its bits)."""
    refuse = (RETURN, 0, 0, ERRNO | code)
    if argument < 0:
        return [(LOAD, 0, 0, 0), (EQUAL, 0, 1, NUMBERS[call]), refuse]
    test = (ANY if bits else EQUAL, 0, 1, value)
    return [(LOAD, 0, 0, 0), (EQUAL, 0, 3, NUMBERS[call]), (LOAD, 0, 0, 16 + 8 * argument), test, refuse]


def enter_user_namespace(uids: str, gids: str) -> None:
    """A child's map is written by its parent, which has the right over more than one id."""
    ready, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.read(ready[0], 1)
        if os.geteuid():
            Path(f"/proc/{child}/setgroups").write_text("deny")
        Path(f"/proc/{child}/uid_map").write_text(uids)
        Path(f"/proc/{child}/gid_map").write_text(gids)
        os.write(mapped[1], b"x")
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.unshare(os.CLONE_NEWUSER)
    os.write(ready[1], b"x")
    os.read(mapped[0], 1)


def everyone() -> tuple[str, str]:
    uid, gid = os.geteuid(), os.getegid()
    return ("0 0 4294967295", "0 0 4294967295") if uid == 0 else (f"{uid} {uid} 1", f"{gid} {gid} 1")


def main(rule: str, program: list[str]) -> None:
    match rule:
        case "no-user-namespaces":
            enter_user_namespace(*everyone())
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
        case "one-id":
            enter_user_namespace(f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1")
        case "policy":
            clone = deny("clone", errno.EPERM, argument=0, value=CLONE_NAMESPACES, bits=True)
            install(deny("unshare", errno.EPERM), clone, deny("clone3", errno.ENOSYS))
        case "no-network":
            install(deny("unshare", errno.EPERM, argument=0, value=os.CLONE_NEWNET))
        case "no-nf-tables":
            install(deny("socket", errno.EPROTONOSUPPORT, argument=2, value=12))
        case "no-netlink":
            install(deny("socket", errno.EAFNOSUPPORT, argument=0, value=16))
        case "no-pivot-root":
            install(deny("pivot_root", errno.EPERM))
        case "no-bwrap":
            enter_user_namespace(*everyone())
            os.unshare(os.CLONE_NEWNS)
            assert libc.mount(b"tmpfs", b"/usr/bin", b"tmpfs", 0, None) == 0
        case _:
            raise SystemExit(f"no such rule: {rule}")
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
