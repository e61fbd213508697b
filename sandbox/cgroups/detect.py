"""Find out by trying which control groups this process may make.

Reads /proc and makes one directory that it removes.
"""

import contextlib
import os
from pathlib import Path

from sandbox.cgroups.layout import CONTROLLERS, Support, Version, locate, parse_membership, parse_mounts


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


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())
