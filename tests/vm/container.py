"""A container in the test machine, as an engine would start the runner's: by runc, with the profiles of deploy/.

The root is an overlay over the machine's own, so that nothing has to be copied; what is asked of runc is what Compose
asks of it (the tests in tests/compose look at that side).
"""

import json
from typing import Any

from deploy.seccomp.generate import profile, read_default
from tests.vm.machine import Done, Machine

RUNNER = 64321
PLACE = "/run/container"
ENVIRONMENT = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH=/project:/project/site",
    "XDG_STATE_HOME=/state",
    "HOME=/tmp",
)


def _seccomp() -> dict[str, Any]:
    """The profile resolved for this machine, as the engine does it."""
    ours = profile(read_default())
    rules = [
        {key: value for key, value in rule.items() if key != "includes"}
        for rule in ours["syscalls"]
        if "amd64" in rule.get("includes", {}).get("arches", ["amd64"])
    ]
    names = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    return {
        "defaultAction": ours["defaultAction"],
        "defaultErrnoRet": ours["defaultErrnoRet"],
        "architectures": names,
        "syscalls": rules,
    }


def _mount(place: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "type": kind, "source": source, "options": list(options)}


def specification(argv: list[str], apparmor: str, *, filtered: bool = True) -> dict[str, Any]:
    """The runtime's configuration (OCI): no capability, not root, no network, /proc whole, read-only."""
    none: dict[str, list[str]] = {name: [] for name in ("bounding", "effective", "permitted", "inheritable", "ambient")}
    process = {
        "user": {"uid": RUNNER, "gid": RUNNER},
        "args": argv,
        "env": list(ENVIRONMENT),
        "cwd": "/",
        "capabilities": none,
        "noNewPrivileges": True,
    }
    if apparmor:
        process["apparmorProfile"] = apparmor
    tight = ("nosuid", "nodev", "noexec")
    mounts = [
        _mount("/proc", "proc", "proc", *tight),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
        _mount(
            "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
        ),
        _mount("/dev/shm", "tmpfs", "shm", *tight, "mode=1777"),
        _mount("/sys", "sysfs", "sysfs", *tight, "ro"),
        _mount("/tmp", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777"),
        _mount("/state", "tmpfs", "tmpfs", *tight, f"mode=700,uid={RUNNER}"),
        _mount("/project", "bind", "/project", "bind", "ro"),
    ]
    kinds = ("pid", "network", "ipc", "uts", "mount", "cgroup")
    linux: dict[str, Any] = {"namespaces": [{"type": kind} for kind in kinds]}
    if filtered:
        linux["seccomp"] = _seccomp()
    root = {"path": f"{PLACE}/root", "readonly": True}
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": root,
        "hostname": "runner",
        "mounts": mounts,
        "linux": linux,
    }


def lay_root(vm: Machine) -> None:
    """Make the container's root, once."""
    vm.check(
        "sh",
        "-c",
        f"mountpoint -q {PLACE}/root || {{ mkdir -p {PLACE}/root {PLACE}/upper {PLACE}/work {PLACE}/bundle && "
        f"mount -t overlay overlay -o lowerdir=/,upperdir={PLACE}/upper,workdir={PLACE}/work {PLACE}/root && "
        f"mkdir -p {PLACE}/root/state {PLACE}/root/project; }}",
    )


def lay_bundle(vm: Machine, argv: tuple[str, ...], *, apparmor: str, filtered: bool, name: str) -> str:
    """Write what runc starts from; where it is."""
    lay_root(vm)
    text = json.dumps(specification(list(argv), apparmor, filtered=filtered)).encode()
    vm.check("sh", "-c", f"mkdir -p {PLACE}/{name} && cat >{PLACE}/{name}/config.json", given=text)
    return f"{PLACE}/{name}"


def in_container(
    vm: Machine, *argv: str, apparmor: str, filtered: bool = True, seconds: float = 240, name: str = "runner"
) -> Done:
    """Run a command in a container of its own to its end. `filtered`: under the seccomp profile."""
    bundle = lay_bundle(vm, argv, apparmor=apparmor, filtered=filtered, name=name)
    try:
        return vm.run("runc", "run", "--bundle", bundle, name, seconds=seconds)
    finally:
        vm.run("runc", "delete", "--force", name)


def wicketgate(vm: Machine, *words: str, apparmor: str, seconds: float = 240) -> Done:
    """Run a command line of the product in a container."""
    return in_container(vm, "/usr/bin/python3", "-m", "wicketgate", *words, apparmor=apparmor, seconds=seconds)
