"""Proves from within a running sandbox that it holds: addresses, routes, names, sockets, mounts, rights, system calls.

Standard library only, and nothing of ours: its text is given to the sandbox's own Python. It prints one JSON document,
{"checks": [{"check": …, "ok": …, "detail": …}, …]}, and exits 0 if every check holds, else 1.
usage: python3 -I -S - [brokered] [WRITABLE-DIRECTORY…]
"""

# ruff: noqa: S108, SIM905  the sandbox's own directories; a table of words reads better than a column of strings

import ctypes
import errno
import fcntl
import json
import os
import socket
import stat
import sys
import termios
from pathlib import Path

# Addresses for documentation (RFC 5737, RFC 3849): nobody has them, and a bridge answers for all of them.
STRANGE_4, STRANGE_6, SYNTHETIC = "192.0.2.1", "2001:db8::1", ("198.18.", "198.19.")
PRIVATE = "/tmp /var/tmp /dev/shm /run /home/sandbox /proc /dev /dev/pts".split()
ENVIRONMENT = frozenset(
    "PATH HOME USER LOGNAME SHELL TMPDIR LANG TERM COLORTERM TZ PWD SHLVL _ OLDPWD LC_CTYPE JAVA_TOOL_OPTIONS".split()
)
TRUST = (
    "CERT",
    "CA_",
    "_CA",
    "CAFILE",
    "CAINFO",
    "TRUST",
    "SSL",
    "ROOTS",
)  # parts of names that point to the trust kit
SECRETS = (
    "/var/run/docker.sock /run/docker.sock /run/containerd /run/systemd /run/dbus /root /etc/shadow /sys /boot /var/lib"
).split()
KNOBS = "kernel/core_pattern kernel/modprobe vm/drop_caches net/ipv4/ip_forward".split()
MANY = 2_000_000  # directory entries to look at for sockets
PROMPT = 3.0  # seconds within which a refusal must come: nothing may hang
REFUSED = {errno.EPERM, errno.ENOSYS, errno.EACCES}
# Calls that a payload must not get: the number on x86-64 and on arm64, and arguments that would be harmless.
CALLS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "unshare": (272, 97, (0x10000000,)),
    "setns": (308, 268, (-1, 0)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount2": (166, 39, (0, 0)),
    "pivot_root": (155, 41, (0, 0)),
    "ptrace": (101, 117, (0, 0, 0, 0)),
    "process_vm_readv": (310, 270, (1, 0, 0, 0, 0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "userfaultfd": (323, 282, (1,)),
    "io_uring_setup": (425, 425, (1, 0)),
    "keyctl": (250, 219, (0, -3, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "clone3": (435, 435, (0, 0)),
}
FAMILIES = (
    ("packet", 17, socket.SOCK_RAW, 0x300),
    ("vsock", 40, socket.SOCK_STREAM, 0),
    ("alg", 38, socket.SOCK_SEQPACKET, 0),
    ("raw IP", socket.AF_INET, socket.SOCK_RAW, 1),
    ("bluetooth", 31, socket.SOCK_RAW, 1),
    ("packet filter", 16, socket.SOCK_RAW, 12),
)

checks: list[dict[str, object]] = []
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def note(check: str, problems: list[str], told: str = "") -> None:
    checks.append({"check": check, "ok": not problems, "detail": "; ".join(problems) if problems else told})


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def look_at_addresses(*, brokered: bool) -> None:
    allowed = {"lo", "eth0"} if brokered else {"lo"}
    names = {name for _index, name in socket.if_nameindex()}
    problems = [f"there is an interface {name}" for name in sorted(names - allowed)]
    if brokered and "eth0" not in names:
        problems.append("the cable eth0 is missing")
    note("addresses", problems, "interfaces: " + ", ".join(sorted(names)))


def look_at_routes(*, brokered: bool) -> None:
    rows = [line.split() for line in read("/proc/net/route").splitlines()[1:]]
    rows_6 = [line.split() for line in read("/proc/net/ipv6_route").splitlines()]
    strange = ({row[0] for row in rows} | {row[-1] for row in rows_6}) - {"lo", "eth0" if brokered else "lo"}
    problems = [f"there is a route through {name}" for name in sorted(strange)]
    note("routes", problems, f"{len(rows)} IPv4 routes, {len(rows_6)} IPv6 routes")


def look_up(name: str) -> set[str]:
    try:
        return {str(row[4][0]) for row in socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


def look_at_names(*, brokered: bool) -> None:
    strange = {one for one in look_up("doctor.example") if not (brokered and one.startswith(SYNTHETIC))}
    note("names", [f"a name has the address {one}" for one in sorted(strange)], "no real address of any name")


def reach(family: int, kind: int, address: str) -> int | None:
    """The error of trying to reach an address: 0 when it was reached, None when nothing answered in time."""
    try:
        with socket.socket(family, kind) as one:
            one.settimeout(PROMPT)
            one.connect((address, 9))
            if kind == socket.SOCK_DGRAM:
                one.send(b"?")
                one.recv(1)
    except TimeoutError:
        return None
    except OSError as error:
        return error.errno or -1
    return 0


def look_at_reach(*, brokered: bool) -> None:
    problems = []
    for family, address in ((socket.AF_INET, STRANGE_4), (socket.AF_INET6, STRANGE_6)):
        udp = reach(family, socket.SOCK_DGRAM, address)
        if udp in {0, None}:
            problems.append(f"UDP to {address} was " + ("answered" if udp == 0 else "neither answered nor refused"))
        if not brokered and reach(family, socket.SOCK_STREAM, address) in {0, None}:
            problems.append(f"TCP to {address} was not refused")
    note("reach", problems, "UDP is refused at once" if brokered else "TCP and UDP are refused at once")


def may_open(family: int, kind: int, protocol: int) -> bool:
    try:
        socket.socket(family, kind, protocol).close()
    except OSError:
        return False
    return True


def look_at_socket_families() -> None:
    problems = [f"a {name} socket can be opened" for name, *words in FAMILIES if may_open(*words)]
    note("socket families", problems, f"{len(FAMILIES)} families are refused")


def is_socket(entry: os.DirEntry[str]) -> bool:
    # The directory itself tells most kinds; only what is left is asked.
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def look_at_unix_sockets() -> None:
    found, seen, places = [], 0, ["/"]
    while places and seen <= MANY:
        try:
            entries = list(os.scandir(places.pop()))
        except OSError:
            continue
        seen += len(entries)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                found += [entry.path] if is_socket(entry) else []
            elif entry.path not in {"/proc", "/sys"}:
                places.append(entry.path)
    rows = [line.split() for line in read("/proc/net/unix").splitlines()[1:]]
    abstract = [row[7] for row in rows if len(row) > 7 and row[7].startswith("@")]
    problems = [f"there is a socket {name}" for name in [*found[:5], *abstract[:5]]]
    if seen > MANY:
        problems.append(f"there are more than {MANY} files, and not all were looked at")
    note("unix sockets", problems, f"none among {seen} files")


def can_write(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def can_make(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except OSError:
        return False
    path.unlink()
    return True


def look_at_mounts(writable: list[str]) -> None:
    problems = []
    for line in read("/proc/self/mountinfo").splitlines():
        point, options = line.split(" ")[4], line.split(" ")[5].split(",")
        ours = any(Path(point).is_relative_to(place) for place in (*PRIVATE, *writable))
        if "rw" in options and not ours:
            problems.append(f"{point} is writable")
        if "rw" in options and "nosuid" not in options:
            problems.append(f"{point} takes set-id programs")
    problems += [f"{path} can be written" for path in ("/", "/usr", "/etc") if can_make(Path(path, "wicketgate-probe"))]
    problems += [f"/proc/sys/{name} can be written" for name in KNOBS if can_write(f"/proc/sys/{name}")]
    problems += [f"{path} is there" for path in SECRETS if Path(path).exists()]
    note("mounts", problems, "all but the private directories and the workspace are read-only")


def look_at_rights() -> None:
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    problems = [f"{name} is {status.get(name)}" for name in sets if int(status.get(name, "1"), 16)]
    if status.get("NoNewPrivs") != "1":
        problems.append("new privileges can be had by executing a program")
    if status.get("Seccomp") != "2":
        problems.append("there is no system call filter")
    if 0 in {os.getuid(), os.geteuid(), os.getgid(), os.getegid()}:
        problems.append("this is root")
    note("rights", problems, f"user {os.getuid()}, no capability")


def is_refused(numbers: tuple[int, int], words: tuple[int, ...]) -> bool:
    number = dict(zip(("x86_64", "aarch64"), numbers, strict=True)).get(os.uname().machine)
    if number is None:
        return True
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, words))
    return result < 0 and ctypes.get_errno() in REFUSED


def look_at_system_calls() -> None:
    problems = [
        f"{name} gets to the kernel" for name, (x86, arm, words) in CALLS.items() if not is_refused((x86, arm), words)
    ]
    try:
        # Whoever reads a terminal of ours must not be sent keys; the filter answers before the kernel looks at fd 0.
        fcntl.ioctl(0, termios.TIOCSTI, b"x")
        problems.append("TIOCSTI types into a terminal")
    except OSError as error:
        if error.errno not in REFUSED:
            problems.append("TIOCSTI gets to the kernel")
    note("system calls", problems, f"{len(CALLS) + 1} calls are refused")


def look_at_processes() -> None:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  names are wanted
    problems = [f"{len(pids)} processes are visible"] if len(pids) > 256 else []
    if 2 in pids and read("/proc/2/comm").strip() == "kthreadd":
        problems.append("the machine's own processes are visible")
    if read("/proc/1/environ"):
        problems.append("process 1 shows an environment")
    note("processes", problems, f"{len(pids)} processes, the first is {read('/proc/1/comm').strip()}")


def look_at_inheritance() -> None:
    strange = [name for name in os.environ if name not in ENVIRONMENT and not any(part in name for part in TRUST)]
    problems = [f"the variable {name} was inherited" for name in strange]
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names are wanted
        if int(name) > 2:
            try:
                problems.append(f"descriptor {name} was inherited: {os.readlink('/proc/self/fd/' + name)}")  # noqa: PTH115
            except OSError:
                continue  # the listing itself
    note("inheritance", problems, "no variable and no descriptor of the server")


def main(words: list[str]) -> int:
    """Run every check and print the document."""
    brokered = words[:1] == ["brokered"]
    look_at_addresses(brokered=brokered)
    look_at_routes(brokered=brokered)
    look_at_names(brokered=brokered)
    look_at_reach(brokered=brokered)
    look_at_socket_families()
    look_at_unix_sockets()
    look_at_mounts(words[1:] if brokered else words)
    look_at_rights()
    look_at_system_calls()
    look_at_processes()
    look_at_inheritance()
    sys.stdout.write(json.dumps({"checks": checks}) + "\n")
    return 0 if all(one["ok"] for one in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
