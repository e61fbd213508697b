"""What can be seen of the layers that may forbid a sandbox: read from /proc and /sys, nothing is tried.

A file that is not there or not readable is a fact that is not known; nothing here raises.
"""

import os
from pathlib import Path

from sandbox.doctor.causes import Facts

SYSCTLS = (
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "user.max_user_namespaces",
    "user.max_pid_namespaces",
    "user.max_mnt_namespaces",
    "user.max_net_namespaces",
    "user.max_uts_namespaces",
)
# What systemd and others mount below /proc on directories that are empty for good; the kernel does not mind them.
HARMLESS = frozenset({"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd"})


def look(proc: Path = Path("/proc")) -> Facts:
    """The facts about this process and this kernel."""
    status = _read(proc / "self/status")
    return Facts(
        uid=os.geteuid(),
        mapped=is_mapped(_read(proc / "self/uid_map"), os.geteuid()),
        filtered="\nSeccomp:\t2" in status,
        apparmor=apparmor_label(proc),
        selinux=_selinux(proc),
        sysctls=_sysctls(proc),
        masked=masked(_read(proc / "self/mountinfo")),
    )


def apparmor_label(proc: Path = Path("/proc")) -> str:
    """This process's AppArmor label, "" where AppArmor is off ("docker-default (enforce)", "unconfined")."""
    if _read(Path("/sys/module/apparmor/parameters/enabled")).strip() == "N":
        return ""
    # The LSM's own directory first: the old name belongs to whichever major LSM came first.
    for name in ("self/attr/apparmor/current", "self/attr/current"):
        label = _read(proc / name).strip("\0\n ")
        if label:
            return "" if ":" in label.partition(" ")[0] and not label.startswith(":") else label
    return ""


def masked(mountinfo: str) -> tuple[str, ...]:
    """What is mounted over parts of /proc, in order (proc(5), mountinfo: the fifth field is the mount point)."""
    points = [line.split(" ")[4] for line in mountinfo.splitlines() if line.count(" ") > 4]
    return tuple(point for point in points if point.startswith("/proc/") and point not in HARMLESS)


def is_mapped(uid_map: str, uid: int) -> bool:
    """Whether an id exists in this user namespace (user_namespaces(7)). True where it cannot be told."""
    rows = [line.split() for line in uid_map.splitlines()]
    return not rows or any(int(first) <= uid < int(first) + int(count) for first, _outside, count in rows)


def _selinux(proc: Path) -> str:
    if not Path("/sys/fs/selinux/enforce").exists():
        return ""
    return _read(proc / "self/attr/current").strip("\0\n ")


def _sysctls(proc: Path) -> dict[str, int]:
    texts = {name: _read(proc / "sys" / name.replace(".", "/")).strip() for name in SYSCTLS}
    return {name: int(text) for name, text in texts.items() if text.isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
