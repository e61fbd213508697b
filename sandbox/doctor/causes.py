"""Why a step of building a sandbox was refused: which layer forbids it, in one sentence, and a cure that works.

Pure: everything known comes in as `Attempt` and `Facts`. It must not suggest a cure for a layer that was not found to
be the cause: where nothing explains a refusal, it says so.
"""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Layer(StrEnum):
    """Who said no."""

    KERNEL = "kernel"  # it lacks the feature, or nothing that can be looked at explains its refusal
    SYSCTL = "sysctl"
    SECCOMP = "seccomp"
    APPARMOR = "apparmor"
    SELINUX = "selinux"
    PROCFS = "procfs"
    PROGRAM = "program"
    BROKER = "broker"
    CLOCK = "clock"
    DISK = "disk"
    CGROUP = "cgroup"
    BOUNDARY = "boundary"  # a sandbox could be built, but does not hold what it promises


class Step(StrEnum):
    """What is tried, in this order; the first refusal is the cause."""

    USER_NAMESPACE = "user_namespace"
    MAP_IDS = "map_ids"
    PID_NAMESPACE = "pid_namespace"
    MOUNT_NAMESPACE = "mount_namespace"
    MOUNT = "mount"
    PROCESSES = "processes"
    HOST_NAME = "host_name"
    CLONE = "clone"
    PIVOT_ROOT = "pivot_root"
    UNMOUNT = "unmount"
    NESTED = "nested_user_namespace"
    NETWORK_NAMESPACE = "network_namespace"
    VETH = "veth"
    CAPTURE = "capture"
    LISTENERS = "listeners"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One refused step.

    `reached`: whether the system call gets to the kernel at all; a harmless wrong call tells a filter from the kernel.
    None where that was not asked. `label` is the LSM's label of the process that tried, `detail` the kernel's words.
    """

    step: Step
    error: int
    reached: bool | None = None
    label: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What can be seen of the layers without trying anything.

    `sysctls` holds those that exist. `masked`: what is mounted over parts of /proc. `mapped`: whether the serving
    user's ids exist in this user namespace.
    """

    uid: int = 0
    mapped: bool = True
    filtered: bool = False
    apparmor: str = ""
    selinux: str = ""
    sysctls: Mapping[str, int] = field(default_factory=dict)
    masked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The answer: layer, one sentence, one cure."""

    layer: Layer
    sentence: str
    cure: str


_WHAT = {
    Step.USER_NAMESPACE: "a user namespace",
    Step.MAP_IDS: "mapping a user into its user namespace",
    Step.PID_NAMESPACE: "a pid namespace",
    Step.MOUNT_NAMESPACE: "a mount namespace",
    Step.MOUNT: "a mount in the runner's own namespace",
    Step.PROCESSES: "a fresh /proc",
    Step.HOST_NAME: "a host name of the sandbox's own",
    Step.CLONE: "a process in new namespaces (clone)",
    Step.PIVOT_ROOT: "a root directory of the sandbox's own (pivot_root)",
    Step.UNMOUNT: "letting the old root go (umount2)",
    Step.NESTED: "the sandbox's user namespace inside the runner's",
    Step.NETWORK_NAMESPACE: "a network namespace",
    Step.VETH: "the cable (a veth pair, its addresses and routes)",
    Step.CAPTURE: "the capture rules (nf_tables with tproxy)",
    Step.LISTENERS: "the broker's listeners in the bridge (transparent sockets)",
}
_LIMITS = {
    Step.USER_NAMESPACE: "user.max_user_namespaces",
    Step.NESTED: "user.max_user_namespaces",
    Step.CLONE: "user.max_user_namespaces",
    Step.PID_NAMESPACE: "user.max_pid_namespaces",
    Step.MOUNT_NAMESPACE: "user.max_mnt_namespaces",
    Step.HOST_NAME: "user.max_uts_namespaces",
    Step.NETWORK_NAMESPACE: "user.max_net_namespaces",
}
# Kernel modules, and the options of a kernel that has them.
_MODULES = {
    Step.VETH: ("veth", "CONFIG_VETH"),
    Step.CAPTURE: ("nf_tables nft_tproxy nft_reject_inet", "CONFIG_NF_TABLES_INET, CONFIG_NFT_TPROXY"),
}
_ABSENT = frozenset(
    {errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.ENOENT, errno.EAFNOSUPPORT, errno.ENODEV, errno.ENOPROTOOPT}
)
_USER = frozenset({Step.USER_NAMESPACE, Step.NESTED})
_RESTRICT, _CLONE = "kernel.apparmor_restrict_unprivileged_userns", "kernel.unprivileged_userns_clone"
_REPORT = "None is known; `wicketgate doctor --json` shows all that was found, for a report."

type _Rule = Callable[[Attempt, Facts], Cause | None]


def what(step: Step) -> str:
    """The step in words."""
    return _WHAT[step]


def explain(attempt: Attempt, facts: Facts) -> Cause:
    """The cause of a refusal: the first of the rules that fits. Total."""
    for rule in _RULES:
        cause = rule(attempt, facts)
        if cause is not None:
            return cause
    return _unexplained(attempt, facts)


def _seccomp(attempt: Attempt, facts: Facts) -> Cause | None:
    if attempt.reached is not False or not facts.filtered:
        return None
    return Cause(
        layer=Layer.SECCOMP,
        sentence=f"A seccomp filter around this process, a container's or a service's, forbids {what(attempt.step)}.",
        cure=(
            "In a container: start it with the seccomp profile deploy/seccomp/runner.json, as compose.yaml does. "
            "In a systemd service: remove RestrictNamespaces= and SystemCallFilter=."
        ),
    )


def _limit(attempt: Attempt, facts: Facts) -> Cause | None:
    if attempt.error not in {errno.ENOSPC, errno.EUSERS}:
        return None
    name = _LIMITS.get(attempt.step, "user.max_user_namespaces")
    value = facts.sysctls.get(name)
    told = f"{name} is 0" if value == 0 else f"the limit {name} ({'unknown' if value is None else value}) is reached"
    return Cause(
        layer=Layer.SYSCTL,
        sentence=f"The kernel refuses {what(attempt.step)}: {told}.",
        cure=f"On the host, as root: sysctl -w {name}=15000, and the same line in /etc/sysctl.d/.",
    )


def _ubuntu(attempt: Attempt, facts: Facts) -> Cause | None:
    restricted = facts.sysctls.get(_RESTRICT) == 1 and not _confined(facts.apparmor)
    if attempt.error not in {errno.EPERM, errno.EACCES} or not (
        restricted or attempt.label.startswith("unprivileged_userns")
    ):
        return None
    return Cause(
        layer=Layer.APPARMOR,
        sentence=(
            f"AppArmor keeps user namespaces of unconfined programs without rights ({_RESTRICT} is 1), "
            f"and so forbids {what(attempt.step)}."
        ),
        cure=(
            "On the host, as root: copy deploy/apparmor/wicketgate-host to /etc/apparmor.d/, with the path of your "
            "`wicketgate` in it, and run apparmor_parser -r on it; for containers use compose.apparmor.yaml."
        ),
    )


def _apparmor(attempt: Attempt, facts: Facts) -> Cause | None:
    label = attempt.label if _confined(attempt.label) else facts.apparmor
    if not _confined(label) or attempt.error not in {errno.EACCES, errno.EPERM}:
        return None
    if attempt.error == errno.EPERM and attempt.step is Step.PROCESSES and facts.masked:
        return None  # AppArmor's own answer to a mount is EACCES
    return Cause(
        layer=Layer.APPARMOR,
        sentence=f"The AppArmor profile {label} around this process forbids {what(attempt.step)}.",
        cure=(
            "On the host, as root: apparmor_parser -r deploy/apparmor/wicketgate. Then start the container with the "
            "AppArmor profile wicketgate, as compose.apparmor.yaml does."
        ),
    )


def _selinux(attempt: Attempt, facts: Facts) -> Cause | None:
    if not facts.selinux or attempt.error != errno.EACCES:
        return None
    return Cause(
        layer=Layer.SELINUX,
        sentence=f"SELinux, under the context {facts.selinux}, forbids {what(attempt.step)}.",
        cure="On the host, as root: `ausearch -m avc -ts recent` shows it, `audit2allow -M` makes a module of that.",
    )


def _sysctl(attempt: Attempt, facts: Facts) -> Cause | None:
    if attempt.error != errno.EPERM or facts.sysctls.get(_CLONE) != 0 or attempt.step not in _USER:
        return None
    return Cause(
        layer=Layer.SYSCTL,
        sentence=f"The kernel keeps user namespaces for root: {_CLONE} is 0.",
        cure=f"On the host, as root: sysctl -w {_CLONE}=1, and the same line in /etc/sysctl.d/.",
    )


def _unmapped(attempt: Attempt, facts: Facts) -> Cause | None:
    if facts.mapped or attempt.step not in {Step.USER_NAMESPACE, Step.MAP_IDS}:
        return None
    return Cause(
        layer=Layer.KERNEL,
        sentence=f"The serving user {facts.uid} does not exist in this user namespace, so it can make none itself.",
        cure="Run as a user whose number is in /proc/self/uid_map; rootless, as one of /etc/subuid's range.",
    )


def _masked(attempt: Attempt, facts: Facts) -> Cause | None:
    if attempt.step is not Step.PROCESSES or attempt.error != errno.EPERM:
        return None
    parts = ", ".join(facts.masked[:4]) + (" and more" if len(facts.masked) > 4 else "")
    hidden = f"a container engine hides parts of /proc ({parts})" if facts.masked else "no /proc here is fully visible"
    return Cause(
        layer=Layer.PROCFS,
        sentence=f"The kernel refuses {what(attempt.step)}, because {hidden}.",
        cure=(
            "Docker and Compose: the security option systempaths=unconfined, as in compose.yaml. Podman: "
            "--security-opt unmask=ALL. Kubernetes: procMount: Unmasked in a pod with hostUsers: false."
        ),
    )


def _missing(attempt: Attempt, _facts: Facts) -> Cause | None:
    if attempt.step in {*_MODULES, Step.LISTENERS} and attempt.error in _ABSENT:
        modules, options = _MODULES.get(attempt.step, ("", "IPv4 and transparent sockets"))
        load = f"On the host, as root: modprobe -a {modules}, and the same names in /etc/modules-load.d/. "
        return Cause(
            layer=Layer.KERNEL,
            sentence=f"The kernel lacks what is needed for {what(attempt.step)}: {_said(attempt)}.",
            cure=(load + "Where modprobe finds none: " if modules else "Use ") + f"a kernel with {options}.",
        )
    if attempt.error in {errno.EINVAL, errno.ENOSYS} and attempt.step in _LIMITS:
        return Cause(
            layer=Layer.KERNEL,
            sentence=f"The kernel was built without {what(attempt.step)}.",
            cure="Use a kernel with CONFIG_USER_NS, CONFIG_PID_NS, CONFIG_UTS_NS and CONFIG_NET_NS.",
        )
    return None


def _unexplained(attempt: Attempt, _facts: Facts) -> Cause:
    hint = " A process in a chroot gets none." if attempt.step is Step.USER_NAMESPACE else ""
    return Cause(
        layer=Layer.KERNEL,
        sentence=(
            f"The kernel refuses {what(attempt.step)} ({_said(attempt)}), and no layer in sight explains it.{hint}"
        ),
        cure=_REPORT,
    )


def _said(attempt: Attempt) -> str:
    return attempt.detail or os.strerror(attempt.error)


def _confined(label: str) -> bool:
    """Whether an AppArmor label names a profile that is in force: "NAME (enforce)"."""
    return bool(label) and not label.startswith("unconfined") and not label.endswith(("(complain)", "(unconfined)"))


# A switch that is off is a cause whatever else there is, and it is asked before the arguments are, which makes it look
# like a filter. Then the filter, because behind one nothing else was reached. A limit has an error of its own.
_RULES: tuple[_Rule, ...] = (_sysctl, _seccomp, _limit, _ubuntu, _apparmor, _selinux, _unmapped, _masked, _missing)
