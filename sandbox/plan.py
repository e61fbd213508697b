"""The plan: what a sandbox consists of, as an ordered list of operations. Pure; `argv` turns it into arguments.

Everything shown is named here (positive mounts); what is not named does not exist inside. The root is a tmpfs that is
made read-only last, so the generated /etc cannot be changed.
"""

from functools import lru_cache
from pathlib import Path
from typing import assert_never

import msgspec
from msgspec import structs

from sandbox.environ import HOME, USER, environment, home_of
from sandbox.spec import Authority, Mode, Mount, Network, SandboxSpec

UID = GID = 1000  # inside; outside it is the serving user, never 0
HOSTNAME = "sandbox"
NAME_SERVER = "198.19.255.1"  # netns.bridge.GATE_4: any address would do, all of them are captured
SHM_BYTES = 1 << 30
EMPTY_BYTES = 4096
_PASSWD = f"""\
root:x:0:0:root:/root:/usr/sbin/nologin
{USER}:x:{UID}:{GID}::{HOME}:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""


class Bind(msgspec.Struct, frozen=True):
    """Show a host path."""

    source: Path
    destination: Path
    writable: bool = False


class File(msgspec.Struct, frozen=True):
    """A generated file."""

    destination: Path
    content: bytes
    mode: int = 0o644


class Directory(msgspec.Struct, frozen=True):
    """An empty directory."""

    destination: Path
    mode: int = 0o755


class Symlink(msgspec.Struct, frozen=True):
    """A symbolic link."""

    target: str
    destination: Path


class Tmpfs(msgspec.Struct, frozen=True):
    """A private, empty, writable directory of bounded size in bytes."""

    destination: Path
    size: int
    mode: int = 0o700


class Devices(msgspec.Struct, frozen=True):
    """A fresh /dev with null, zero, full, random, urandom, tty and a private devpts."""

    destination: Path = Path("/dev")


class Processes(msgspec.Struct, frozen=True):
    """A fresh /proc of the sandbox's own pid namespace."""

    destination: Path = Path("/proc")


class Empty(msgspec.Struct, frozen=True):
    """An empty, read-only file over one that is there."""

    destination: Path


class ReadOnly(msgspec.Struct, frozen=True):
    """Make what is mounted at this place read-only from here on."""

    destination: Path


class Cover(msgspec.Struct, frozen=True):
    """A generated, read-only file over one that is there."""

    destination: Path
    content: bytes


type Operation = Bind | File | Directory | Symlink | Tmpfs | Devices | Processes | Empty | Cover | ReadOnly


class HostLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the host that shape a plan: its /usr links and which shared files exist."""

    links: tuple[tuple[str, str], ...]  # ("/bin", "usr/bin"): a link beside /usr
    directories: tuple[str, ...]  # real directories beside /usr ("/lib64" on hosts without merged /usr)
    present: frozenset[str] = frozenset()  # for full access: which places exist that are covered there
    hidden: tuple[str, ...] = ()  # files of /proc that tell about others of this user
    shared: tuple[str, ...]  # files and directories below /etc that programs need and that hold no secret


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All of a sandbox: its file system, environment, working directory and command.

    `workspace`: those of the operations that show the workspace and protect what is in it.
    """

    operations: tuple[Operation, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    argv: tuple[str, ...]
    network: Network
    rlimits: tuple[tuple[int, int, int], ...]
    workspace: tuple[Operation, ...] = ()


def plan(spec: SandboxSpec, host: HostLayout, protection: tuple[Operation, ...] = ()) -> Plan:
    """Lay a sandbox out. Total: whatever could be wrong with the spec was refused when it was made.

    `protection` are the mounts over what is protected in the workspace (`sandbox.protect`).
    """
    workspace = spec.authority.workspace
    first, last = _around(structs.replace(spec.authority, workspace=None, timeout=None, trust_environment=()), host)
    shown = () if workspace is None else (Bind(workspace, workspace, writable=True), *protection)
    return Plan(
        operations=(*first, *shown, *last),
        environment=environment(spec),
        directory=str((workspace or Path(home_of(spec))) / spec.call.directory),
        argv=spec.call.argv,
        network=spec.authority.network,
        rlimits=spec.authority.rlimits,
        workspace=shown,
    )


@lru_cache(maxsize=8)  # sessions differ in their workspace, not in these
def _around(authority: Authority, host: HostLayout) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """What is mounted before a workspace, and after it."""
    match authority.mode:
        case Mode.SANDBOX:
            first = [*_system(host), *_etc(authority, host), *_proc(), Devices(), *_private(authority)]
            last: list[Operation] = [ReadOnly(Path("/dev")), ReadOnly(Path("/"))]
        case Mode.FULL_ACCESS:
            first, last = _whole_host(authority, host), [ReadOnly(Path("/dev"))]
        case _:
            assert_never(authority.mode)
    return tuple(first), (*_hidden(host), *last)


def _whole_host(authority: Authority, host: HostLayout) -> list[Operation]:
    """The host's files with the serving user's rights; its run-time state, devices and processes are never shown.

    Nothing is mounted where the host has nothing: bubblewrap would make the place, on the host.
    """
    empty = [Path("/sys"), *(path for path in authority.hidden if str(path) in host.present)]
    covered = [(f"/etc/{name}", content) for name, content in _etc_files(authority)]
    return [
        Bind(Path("/"), Path("/"), writable=True),
        *_proc(),
        Devices(),
        *(step for step in _private(authority) if not step.destination.is_relative_to(HOME)),
        *(step for path in empty for step in (Tmpfs(path, EMPTY_BYTES, 0o555), ReadOnly(path))),
        *(Cover(Path(path), content.encode()) for path, content in covered if path in host.present),
        *(_show(mount) for mount in authority.trust if str(mount.destination) in host.present),
    ]


def _system(host: HostLayout) -> list[Operation]:
    operations: list[Operation] = [Bind(Path("/usr"), Path("/usr"))]
    operations += [Symlink(target, Path(link)) for link, target in host.links]
    operations += [Bind(Path(directory), Path(directory)) for directory in host.directories]
    return operations


def _etc(authority: Authority, host: HostLayout) -> list[Operation]:
    operations: list[Operation] = [Directory(Path(path)) for path in ("/etc", "/home", "/var")]
    operations += [Bind(Path(path), Path(path)) for path in host.shared]
    operations += [File(Path("/etc", name), content.encode()) for name, content in _etc_files(authority)]
    operations += [_show(mount) for mount in authority.trust]
    return operations


def _proc() -> list[Operation]:
    # The payload has the number that is root in the user namespace that owns its pid and ipc namespaces, and that is
    # all that the settings of these ask for (proc_sys(5)): so nothing there can be written.
    return [Processes(), Bind(Path("/proc/sys"), Path("/proc/sys"))]


def _hidden(host: HostLayout) -> list[Operation]:
    """Generated files close to the end: whoever waits for the mounts hears when the last of them is made (`launch`)."""
    return [Empty(Path(path)) for path in host.hidden]


def _show(mount: Mount) -> Bind:
    return Bind(mount.source, mount.destination)


def _etc_files(authority: Authority) -> list[tuple[str, str]]:
    names = "files dns" if authority.network is Network.BROKERED else "files"
    files = [
        ("passwd", _PASSWD),
        ("group", f"root:x:0:\ntty:x:5:\n{USER}:x:{GID}:\nnogroup:x:65534:\n"),
        ("hostname", f"{HOSTNAME}\n"),
        ("hosts", f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"),
        ("nsswitch.conf", f"passwd: files\ngroup: files\nshadow: files\nhosts: {names}\nservices: files\n"),
        ("machine-id", "00000000000000000000000000000000\n"),
    ]
    if authority.network is Network.BROKERED:
        files.append(("resolv.conf", f"nameserver {NAME_SERVER}\n"))
    return files


def _private(authority: Authority) -> list[Operation]:
    size = authority.tmp_bytes
    return [
        Tmpfs(Path("/dev/shm"), SHM_BYTES, 0o1777),  # noqa: S108  the sandbox's own
        Tmpfs(Path("/tmp"), size, 0o1777),  # noqa: S108
        Tmpfs(Path("/var/tmp"), size, 0o1777),  # noqa: S108
        Tmpfs(Path("/run"), size, 0o755),
        Tmpfs(Path(HOME), size),
        *(File(Path(HOME, file.place), file.content, 0o600) for file in authority.home),
    ]
