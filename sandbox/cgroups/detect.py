"""Find out by trying which control groups this process may make. Reads /proc and makes one directory that it removes.

It must not move any process but those of the calling server, and it starts nothing.
"""

import contextlib
import os
from pathlib import Path

from sandbox.cgroups.layout import CONTROLLERS, Support, Version, locate, parse_membership, parse_mounts

LEAF = "wicketgate-server"


def detect(proc: Path = Path("/proc/self")) -> Support:
    """The best writable place: v2 with memory and pids, else v1, else nothing.

    Never raises for a host without control groups; `Support.missing` then says why, in words for `doctor`.
    """
    try:
        places = _places(proc)
    except OSError as error:
        return Support(version=Version.NONE, missing=dict.fromkeys(CONTROLLERS, f"{error.filename}: {error.strerror}"))
    unified, classic = _unified(places), _classic(places)
    if unified.bounds_memory and unified.bounds_tasks:
        return unified
    if classic.bounds_memory or classic.bounds_tasks:
        return classic
    return unified if unified.version is Version.V2 and len(unified.directories) > 1 else _nothing(unified, classic)


def _nothing(unified: Support, classic: Support) -> Support:
    reasons = {name: f"v2: {unified.missing[name]}; v1: {classic.missing[name]}" for name in CONTROLLERS}
    return Support(version=Version.NONE, missing=reasons)


def _places(proc: Path) -> dict[str, Path]:
    member = parse_membership((proc / "cgroup").read_text())
    mounts = parse_mounts((proc / "mountinfo").read_text())
    found = {name: locate(*mounts[name], member[name]) for name in mounts if name in member}
    return {name: place for name, place in found.items() if place is not None}


def _unified(places: dict[str, Path]) -> Support:
    place = places.get("")
    if place is None:
        return Support(version=Version.NONE, missing=dict.fromkeys(CONTROLLERS, "no v2 tree is mounted"))
    refusal = _try(place)
    if refusal:
        return Support(version=Version.NONE, missing=dict.fromkeys(CONTROLLERS, refusal))
    available = _words(place / "cgroup.controllers")
    missing = {name: f"not delegated to {place}" for name in CONTROLLERS if name not in available}
    directories = {"": place} | {name: place for name in CONTROLLERS if name in available}
    return Support(version=Version.V2, directories=directories, missing=missing)


def _classic(places: dict[str, Path]) -> Support:
    directories, missing = {}, {}
    for name in CONTROLLERS:
        place = places.get(name)
        refusal = "no v1 tree is mounted" if place is None else _try(place)
        if place is None or refusal:
            missing[name] = refusal
        else:
            directories[name] = place
    version = Version.V1 if directories else Version.NONE
    return Support(version=version, directories=directories, missing=missing)


def _try(place: Path) -> str:
    """Empty when a group can be made in `place` and processes may be moved there; else the reason."""
    if not os.access(place / "cgroup.procs", os.W_OK):
        return f"{place}/cgroup.procs is not writable by this user"
    trial = place / f"wicketgate-trial-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError as error:
        return f"{place}: {error.strerror}"
    with contextlib.suppress(OSError):
        trial.rmdir()
    return ""


def prepare(support: Support) -> Support:
    """Make a v2 place ready: move this server into a leaf, so that its controllers may be given to the sessions.

    A v2 group that distributes controllers may hold no process itself (cgroups(7), "no internal processes"). Only
    processes of this server's own session tree are moved; with a stranger in the group nothing is changed and the
    returned support lacks every controller, with the reason. A v1 or absent support is returned as it is.
    """
    wanted = [name for name in CONTROLLERS if name in support.directories]
    if support.version is not Version.V2 or not wanted:
        return support
    place = support.directories[""]
    try:
        _hand_down(place, wanted)
    except OSError as error:
        reason = f"{place}: {error.strerror or error}"
        return Support(version=Version.V2, directories={"": place}, missing=dict.fromkeys(CONTROLLERS, reason))
    return support


def _hand_down(place: Path, wanted: list[str]) -> None:
    if set(wanted) <= _words(place / "cgroup.subtree_control"):
        return
    strangers = [pid for pid in _words(place / "cgroup.procs") if not _is_ours(int(pid))]
    if strangers:
        raise OSError(f"the group also holds processes {', '.join(sorted(strangers)[:5])} that are not this server's")
    leaf = place / LEAF
    leaf.mkdir(exist_ok=True)
    for pid in _words(place / "cgroup.procs"):
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(pid)
    (place / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))


def _is_ours(pid: int) -> bool:
    """Whether `pid` is this process or a descendant of it."""
    while pid not in (0, 1, os.getpid()):
        try:
            # The name in parentheses may hold anything, so the fields are counted from the last one (proc(5)).
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return True  # gone meanwhile
    return pid == os.getpid()


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())
