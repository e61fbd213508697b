"""The kernel's texts about control groups, read right; what a new group is given."""

from pathlib import Path

import pytest

from sandbox.cgroups.layout import Version, locate, parse_membership, parse_mounts, settings
from sandbox.limits import GIB, Limits

V1_MEMBERSHIP = "12:pids:/a\n5:cpu,cpuacct:/b:c\n4:memory:/\n1:name=systemd:/user.slice\n0::/user.slice/x.scope\n"
MOUNTS = (
    "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - tmpfs tmpfs rw,mode=755\n"
    "25 24 0:23 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
    "26 24 0:24 /docker/x /sys/fs/cgroup/a\\040b rw - cgroup cgroup rw,memory\n"
    "27 24 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "28 24 0:24 / /other rw - cgroup cgroup rw,memory\n"
)


def test_membership_keeps_colons_in_paths_and_splits_joined_controllers() -> None:
    found = parse_membership(V1_MEMBERSHIP)
    assert found["cpu"] == found["cpuacct"] == "/b:c"
    assert found[""] == "/user.slice/x.scope"
    assert found["pids"] == "/a"


def test_mounts_resolve_escapes_and_the_first_mount_counts() -> None:
    found = parse_mounts(MOUNTS)
    assert found == {
        "": ("/", Path("/sys/fs/cgroup/unified")),
        "memory": ("/docker/x", Path("/sys/fs/cgroup/a b")),
        "cpu": ("/", Path("/sys/fs/cgroup/cpu,cpuacct")),
    }


@pytest.mark.parametrize(
    ("root", "path", "place"),
    [
        ("/", "/", "/m"),
        ("/", "/a/b", "/m/a/b"),
        ("/docker/x", "/docker/x", "/m"),
        ("/docker/x", "/docker/x/y", "/m/y"),
        ("/docker/x", "/docker/xy", None),
        ("/docker/x", "/", None),
        ("/", "/../../x", None),
    ],
)
def test_a_group_is_found_only_where_its_mount_shows_it(root: str, path: str, place: str | None) -> None:
    assert locate(root, Path("/m"), path) == (None if place is None else Path(place))


@pytest.mark.parametrize("version", [Version.V1, Version.V2])
def test_settings_bound_memory_without_swap_tasks_and_cpu(version: Version) -> None:
    found = settings(version, Limits(memory_bytes=GIB, tasks=99, cpus=1.5), ("memory", "pids", "cpu", ""))
    assert {content for name, content in found["memory"] if "swap" in name} <= {"0"}
    assert str(GIB) in dict(found["memory"]).values()
    assert found["pids"] == [("pids.max", "99")]
    assert any("150000" in content for _, content in found["cpu"])
    assert set(found) == {"memory", "pids", "cpu"}


def test_no_cpu_share_means_all_processors() -> None:
    assert settings(Version.V2, Limits(), ["cpu"]) == {"cpu": [("cpu.max", "max 100000")]}
    assert settings(Version.V1, Limits(), ["cpu"])["cpu"][1] == ("cpu.cfs_quota_us", "-1")
