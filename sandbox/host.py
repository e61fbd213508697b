"""What this host offers: a trusted bubblewrap and the parts of its file system that a sandbox is shown.

Look before a user namespace is entered: inside one, root-owned files look owned by the overflow user.
"""

import contextlib
import os
import resource
import stat
import sys
from pathlib import Path

import msgspec

from sandbox.environ import HOME, PATH
from sandbox.errors import Code, LaunchError
from sandbox.plan import HostLayout

BWRAP = Path("/usr/bin/bwrap")
FILTERS = Path(__file__).parent / "seccomp"
# Beside /usr on a Linux root: links into it where /usr is merged, else directories of their own.
BESIDE_USR = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Read by loaders, shells, compilers and language runtimes; none of them holds a secret.
SHARED = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
)
# What full access covers, where it is there and no link: a mount on a link would land where the link leads.
COVERED = (
    *(
        f"/etc/{name}"
        for name in ("passwd", "group", "hostname", "hosts", "nsswitch.conf", "machine-id", "resolv.conf")
    ),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates"),
)
# What is raised as far as may be must suffice (1: the hard limit), and what is not, as it is (0).
NEEDED = (
    (resource.RLIMIT_NOFILE, 1, 64, "open files", "-n"),
    (resource.RLIMIT_FSIZE, 0, 1 << 20, "bytes in a file", "-f"),
)
# The caller's keys have no namespace: any process of the same user sees their descriptions (keyrings(7)).
HIDDEN = ("/proc/keys", "/proc/key-users")
SHARED_PATTERNS = ("java-*", "python3*", "perl", "fonts", "terminfo", "nodejs", "chromium.d")


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """An opened, trusted bubblewrap (executed by descriptor, never by name again), the filter, the layout."""

    bwrap_fd: int
    seccomp: bytes
    layout: HostLayout
    trusted: tuple[int, int, int] = (0, 0, 0)  # mode, size and time of the last change of what was trusted


UNUSABLE = Host(bwrap_fd=-1, seccomp=b"", layout=HostLayout(links=(), directories=(), shared=()))


def look_at_host(bwrap: Path = BWRAP) -> Host:
    """Open bubblewrap, check that it can be trusted, read the layout. Raises LaunchError."""
    if sys.platform != "linux":
        raise LaunchError(
            Code.NOT_LINUX, f"Wicketgate runs on Linux only, not on {sys.platform}.", "Run it on a Linux host."
        )
    _check_room()
    seccomp, fd = read_filter(os.uname().machine), _open_trusted(bwrap)
    return Host(seccomp=seccomp, bwrap_fd=fd, layout=_read_layout(), trusted=_fingerprint(fd))


def _check_room() -> None:
    """Refuse limits (getrlimit(2)) with which a start would fail somewhere in its middle."""
    for number, index, least, what, option in NEEDED:
        limit = resource.getrlimit(number)[index]
        if limit != resource.RLIM_INFINITY and limit < least:
            cause = f"This process may have no more than {limit} {what}, and a sandbox takes {least}."
            raise LaunchError(Code.SANDBOX_FAILED, cause, f"Raise the limit: `ulimit {option}`, or the unit's.")


def check_still_trusted(host: Host) -> None:
    """Refuse a bubblewrap that was changed in place since it was looked at. Raises LaunchError.

    One that was replaced goes on to be used as it was. Its owner cannot be told any more where a user namespace has
    been entered; whoever else could write it would show here.
    """
    if _fingerprint(host.bwrap_fd) != host.trusted:
        raise LaunchError(
            Code.UNTRUSTED_BWRAP,
            "The opened bubblewrap was changed in place since it was looked at.",
            "Reinstall the distribution's bubblewrap, then start the runner again.",
        )


def _fingerprint(fd: int) -> tuple[int, int, int]:
    found = os.fstat(fd)
    return found.st_mode, found.st_size, found.st_mtime_ns


def read_filter(machine: str) -> bytes:
    """The committed system call filter of a machine (uname(2)). Raises LaunchError.

    Read as a file: loading the package that builds it would take longer than starting bubblewrap.
    """
    # uname(2) tells a machine without a dot; the filters that only take notes have one.
    program = FILTERS / f"{machine.replace('.', '_')}.bpf"
    try:
        return program.read_bytes()
    except OSError as error:
        machines = ", ".join(sorted(path.stem for path in FILTERS.glob("*.bpf") if "." not in path.stem))
        raise LaunchError(
            Code.UNSUPPORTED_MACHINE,
            f"There is no system call filter for {machine} ({error.strerror}).",
            f"Run Wicketgate on one of: {machines}.",
        ) from error


def find_command(name: str, workspace: Path | None) -> None:
    """Refuse a command that the sandbox cannot have, before anything is made. Raises LaunchError.

    Only what is shown from the host can be looked for; a program that the command line makes first is not.
    """
    if "/" not in name:
        candidates = [Path(directory, name) for directory in PATH.split(":")] if name else []
    else:
        place = Path(os.path.normpath(workspace / name if workspace is not None else Path(HOME, name)))
        if place.is_relative_to("/proc") or place.is_relative_to("/dev"):
            return
        candidates = [place] if _is_shown(place, workspace) else []
    found = [path for path in candidates if path.exists()]
    if not found:
        raise LaunchError(
            Code.COMMAND_NOT_FOUND,
            f"The command {name!r} does not exist in the sandbox.",
            "Inside there are /usr and the workspace; name a program of theirs.",
        )
    programs = [path for path in found if path.is_file() and path.stat().st_mode & 0o111]
    if not programs:
        raise LaunchError(
            Code.COMMAND_NOT_EXECUTABLE,
            f"The command {name!r} is not an executable file.",
            "Make it executable, or start it with its interpreter.",
        )
    _check_interpreter(programs[0], workspace)


def _is_shown(path: Path, workspace: Path | None) -> bool:
    shown = [*map(Path, ("/usr", *BESIDE_USR, *SHARED)), *([workspace] if workspace is not None else [])]
    return any(path.is_relative_to(directory) for directory in shown)


def _check_interpreter(program: Path, workspace: Path | None) -> None:
    with contextlib.suppress(OSError), program.open("rb") as file:
        line = file.readline(256)
        words = line[2:].split()
        if not line.startswith(b"#!") or not words:
            return
        interpreter = Path(os.fsdecode(words[0]))
        if interpreter.is_absolute() and not (_is_shown(interpreter, workspace) and interpreter.exists()):
            raise LaunchError(
                Code.COMMAND_NOT_FOUND,
                f"The interpreter {str(interpreter)!r} of {str(program)!r} does not exist in the sandbox.",
                "Inside there are /usr and the workspace; start the script with an interpreter of theirs.",
            )


def _open_trusted(bwrap: Path) -> int:
    try:
        fd = os.open(bwrap, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise LaunchError(
            Code.NO_BWRAP,
            f"bubblewrap is not usable at {bwrap} ({error.strerror}).",
            "Install it there (Debian, Ubuntu and Fedora: the package `bubblewrap`).",
        ) from error
    problem = _distrust(os.fstat(fd))
    if problem:
        owner = os.fstat(fd).st_uid
        os.close(fd)
        if owner and not _knows_root():
            raise LaunchError(
                Code.UNTRUSTED_BWRAP,
                f"Whether {bwrap} is root's cannot be told: this user namespace does not know root.",
                "Run Wicketgate outside of it, or map root into it.",
            )
        raise LaunchError(
            Code.UNTRUSTED_BWRAP,
            f"{bwrap} {problem}.",
            "Reinstall the distribution's bubblewrap: a plain file owned by root, 0755, without set-id bits.",
        )
    return fd


def _knows_root() -> bool:
    rows = Path("/proc/self/uid_map").read_text().splitlines()
    return any(row.split()[0] == "0" for row in rows)


def _distrust(status: os.stat_result) -> str:
    checks = (
        (not stat.S_ISREG(status.st_mode), "is not a regular file"),
        (status.st_uid != 0, f"is owned by user {status.st_uid}, not by root"),
        (bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)), "can be written by others than root"),
        (bool(status.st_mode & (stat.S_ISUID | stat.S_ISGID)), "is set-id"),
        (not status.st_mode & stat.S_IXOTH, "is not executable for everyone"),
    )
    return next((text for wrong, text in checks if wrong), "")


def _is_plainly_there(path: Path) -> bool:
    return path.exists() and not path.is_symlink()


def _read_layout() -> HostLayout:
    links = tuple((path, str(Path(path).readlink())) for path in BESIDE_USR if Path(path).is_symlink())
    linked = {path for path, _ in links}
    etc = Path("/etc")
    patterns = (str(path) for pattern in SHARED_PATTERNS for path in sorted(etc.glob(pattern)))
    return HostLayout(
        links=links,
        directories=tuple(path for path in BESIDE_USR if path not in linked and Path(path).is_dir()),
        present=frozenset(path for path in COVERED if _is_plainly_there(Path(path))),
        hidden=tuple(path for path in HIDDEN if Path(path).exists()),
        shared=tuple(path for path in (*SHARED, *patterns) if Path(path).exists()),
    )
