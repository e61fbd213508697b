"""Reports, as JSON on standard output, what a process finds itself confined by. Standard library only.

Left out is what belongs to a route by its nature: the three standard descriptors, the process's own number, and the
variables that a shell or a terminal sets for what it starts.
"""

# ruff: noqa: SIM115  read once by a process that ends at once

import ctypes
import errno
import json
import os
import resource
import socket
import stat

BY_A_SHELL_OR_TERMINAL = {"_", "SHLVL", "OLDPWD", "TERM", "TMUX", "TMUX_PANE", "TERM_PROGRAM", "TERM_PROGRAM_VERSION"}
BY_A_SHELL_OR_TERMINAL |= {"COLORTERM", "PWD"}
CALLS = {  # x86-64 and arm64 numbers of what must not work
    "unshare": (272, 97), "mount": (165, 40), "pivot_root": (155, 41), "setns": (308, 268), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "keyctl": (250, 219), "open_by_handle_at": (304, 265), "clone3": (435, 435),
    "kcmp": (312, 272), "swapon": (167, 224), "reboot": (169, 142), "sethostname": (170, 161), "chroot": (161, 51),
    "memfd_secret": (447, 447), "fsopen": (430, 430), "move_mount": (429, 429), "pidfd_getfd": (438, 438),
}  # fmt: skip


def status() -> dict[str, str]:
    wanted = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Umask", "SigBlk", "SigIgn")
    rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
    capabilities = [f"Cap{kind}" for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    return {name: rows[name].strip() for name in (*wanted, *capabilities)}


def mounts() -> list[str]:
    found = []
    for line in open("/proc/self/mountinfo"):
        words = line.split()
        kind = words[words.index("-") + 1]
        found.append(f"{words[4]} {words[5]} {kind}")
    return sorted(found)


def namespaces() -> dict[str, bool]:
    """Whether each is the one of process 1 of this sandbox; process 1's own are told by the test."""
    names = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
    return {name: link(f"/proc/self/ns/{name}") == link(f"/proc/1/ns/{name}") for name in names}


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def calls() -> dict[str, str]:
    libc = ctypes.CDLL(None, use_errno=True)
    column = 0 if os.uname().machine == "x86_64" else 1
    found = {}
    for name, numbers in CALLS.items():
        arguments = (0x10000000, 0, 0, 0, 0) if name == "unshare" else (0, 0, 0, 0, 0)
        code = libc.syscall(numbers[column], *arguments)
        found[name] = "worked" if code >= 0 else errno.errorcode[ctypes.get_errno()]
    return found


def sockets() -> dict[str, str]:
    found = {}
    for family in (1, 2, 10, 16, 17, 38, 40):
        try:
            socket.socket(family, socket.SOCK_RAW if family in {16, 17} else socket.SOCK_STREAM).close()
            found[str(family)] = "worked"
        except OSError as error:
            found[str(family)] = errno.errorcode[error.errno or 0]
    return found


def descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and not os.readlink(f"/proc/self/fd/{name}").endswith("/fd"):
                found.append(int(name))
        except OSError:
            continue
    return found


def directory(path: str) -> list[str]:
    try:
        names = sorted(os.listdir(path))
        return [f"{name} {stat.filemode(os.lstat(os.path.join(path, name)).st_mode)}" for name in names]
    except OSError as error:
        return [errno.errorcode[error.errno or 0]]


limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
environment = [f"{name}={value}" for name, value in os.environ.items() if name not in BY_A_SHELL_OR_TERMINAL]
report = {
    "status": status(),
    "environment": sorted(environment),
    "directory": os.getcwd(),
    "limits": limits,
    "mounts": mounts(),
    "namespaces": namespaces(),
    "calls": calls(),
    "sockets": sockets(),
    "descriptors": descriptors(),
    "root": directory("/"),
    "etc": directory("/etc"),
    "dev": [line for line in directory("/dev") if not line.startswith("console")],
    "hostname": socket.gethostname(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "oom": open("/proc/self/oom_score_adj").read().strip(),
    "priority": os.getpriority(os.PRIO_PROCESS, 0),
}
print(json.dumps(report, indent=1, sort_keys=True))
