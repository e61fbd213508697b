"""Bounds that a payload runs against: tasks, memory, cpu, files, descriptors, each with the host left unharmed.

Groups are made for real where this machine lets the tests; the limits without a group are tried as any user.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandbox.cgroups import Group, GroupError, Support, Version, claim, create, detect, reclaim, undo
from sandbox.cgroups.detect import _places
from sandbox.limits import MIB, Limits, Rlimit, clamp, inner_rlimits, outer_rlimits
from tests.live.runs import PATIENCE, PROMPTLY, until

pytestmark = [pytest.mark.live, pytest.mark.alone]
ROOT = Path(__file__).parents[2]
DROP = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--")
BWRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
    *("--tmpfs", "/tmp", "--chdir", "/tmp"),
)
SMALL = Limits(memory_bytes=128 * MIB, tasks=24, cpu_seconds=1, file_bytes=MIB, descriptors=64)
BOMB = """
import os, sys, time
made = 0
try:
    while made < 5000:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError as error:
    print(made, error.errno, flush=True)
"""


def set_limits(pid: int, limits: Iterable[Rlimit]) -> None:
    for limit in clamp(limits, lambda number: resource.getrlimit(number)[1]):
        resource.prlimit(pid, limit.resource, (limit.soft, limit.hard))


def set_limits_as_the_serving_user(pid: int) -> None:
    """prlimit(2) asks for the same user; a container's root need not have CAP_SYS_RESOURCE."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            set_limits(pid, inner_rlimits(SMALL))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@contextmanager
def blocked(command: list[str], *, group: Group | None = None) -> Iterator[subprocess.Popen[str]]:
    """bubblewrap started as the launcher does it: held, bounded from outside, then let go."""
    info, info_write = os.pipe()
    block, release = os.pipe()
    ends = (info, release)
    drop = DROP if os.geteuid() == 0 else ()
    child = subprocess.Popen(
        [*drop, *BWRAP, "--info-fd", str(info_write), "--block-fd", str(block), "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(info_write, block),
        preexec_fn=lambda: set_limits(0, outer_rlimits(SMALL, memory_bounded=group is not None)),  # noqa: PLW1509
    )
    try:
        os.close(info_write)
        os.close(block)
        with os.fdopen(os.dup(info)) as told:
            inner = int(json.load(told)["child-pid"])
        set_limits_as_the_serving_user(inner)
        if group is not None:
            group.add(inner)
        os.write(release, b"x")
        yield child
    finally:
        for end in ends:
            with suppress(OSError):
                os.close(end)
        child.kill()
        child.communicate()


def output(command: list[str], group: Group | None = None) -> tuple[int, str, str]:
    with blocked(command, group=group) as child:
        out, err = child.communicate(timeout=PATIENCE)
        return child.returncode, out, err


def test_a_fork_bomb_ends_inside_and_counts_the_session_alone() -> None:
    code, out, err = output(["/usr/bin/python3", "-c", BOMB])
    assert code == 0, err
    made, error = map(int, out.split())
    assert (error, SMALL.tasks - 4 <= made <= SMALL.tasks) == (11, True)
    # The bound is the session's: a second one next to the first gets as many.
    with blocked(["/usr/bin/python3", "-c", BOMB + "\ntime.sleep(60)"]) as first:
        assert first.stdout is not None
        assert first.stdout.readline().split()[0] == str(made)
        assert output(["/usr/bin/python3", "-c", BOMB])[1].split()[0] == str(made)


def test_without_the_bound_the_bomb_goes_on() -> None:
    drop = DROP if os.geteuid() == 0 else ()
    small = BOMB.replace("5000", "100")
    command = [*drop, *BWRAP, "--"]
    done = subprocess.run([*command, "/usr/bin/python3", "-c", small], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_a_memory_bomb_ends_inside_without_a_group() -> None:
    code, _, err = output(["/usr/bin/python3", "-c", "bytearray(512 << 20)"])
    assert code != 0
    assert "MemoryError" in err


def test_a_large_reservation_is_no_use_of_memory() -> None:
    script = "import mmap; mmap.mmap(-1, 1 << 36, flags=34 | 0x4000, prot=0); print('reserved')"
    assert output(["/usr/bin/python3", "-c", script])[:2] == (0, "reserved\n")


def test_cpu_time_ends_a_busy_loop() -> None:
    assert output(["/usr/bin/python3", "-c", "while True: pass"])[0] == 128 + signal.SIGXCPU


def test_a_file_cannot_grow_past_its_bound() -> None:
    code, out, _ = output(["sh", "-c", "trap '' XFSZ; head -c 4000000 /dev/zero > f; stat -c %s f"])
    assert (code, out) == (0, f"{SMALL.file_bytes}\n")


def test_descriptors_run_out_inside() -> None:
    script = "import os\ntry:\n  while True: os.dup(0)\nexcept OSError as e: print(e.errno, os.sysconf('SC_OPEN_MAX'))"
    assert output(["/usr/bin/python3", "-c", script])[:2] == (0, f"24 {SMALL.descriptors}\n")


def test_no_core_file_and_no_way_to_raise_a_limit() -> None:
    script = "import resource as r\nfor n in (r.RLIMIT_CORE, r.RLIMIT_NPROC, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE):\n"
    script += (
        "  try: r.setrlimit(n, (r.getrlimit(n)[1] + 1,) * 2); print('raised', n)\n  except (ValueError, OSError): pass"
    )
    assert output(["/usr/bin/python3", "-c", script])[:2] == (0, "")


@pytest.fixture(scope="module")
def support() -> Iterator[Support]:
    claimed = claim(detect(), uid=os.geteuid(), gid=os.getegid())
    if not claimed.support.bounds_memory or not claimed.support.bounds_tasks:
        undo(claimed)
        pytest.skip(f"no control groups for this user: {dict(claimed.support.missing)}")
    yield claimed.support
    undo(claimed)
    assert not any(own.exists() for own in claimed.made.values())


@pytest.fixture
def group(support: Support) -> Iterator[Group]:
    made = create(support, f"test-{os.getpid()}", SMALL)
    yield made
    made.remove()
    assert not any(place.exists() for place in made.directories.values())


@pytest.mark.root_only
def test_a_group_ends_a_memory_bomb_of_many_processes(group: Group) -> None:
    script = "import os, time\nfor _ in range(8):\n  if os.fork() == 0:\n    x = bytearray(40 << 20); time.sleep(20)\n"
    script += "print([os.WTERMSIG(os.wait()[1]) for _ in range(6)].count(9) >= 1, flush=True)\nos.kill(-1, 9)"
    with blocked(["/usr/bin/python3", "-c", script], group=group) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n" or group.usage().out_of_memory_kills >= 1
        assert group.usage().out_of_memory_kills >= 1
        assert group.usage().peak_memory_bytes <= SMALL.memory_bytes


@pytest.mark.root_only
def test_a_group_bounds_tasks(group: Group) -> None:
    child = subprocess.Popen(
        ["sh", "-c", 'read x; exec /usr/bin/python3 -c "$0"', BOMB], stdin=-1, stdout=-1, text=True
    )
    group.add(child.pid)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    made, error = map(int, child.stdout.readline().split())
    assert (made <= SMALL.tasks, error) == (True, 11)
    assert group.usage().refused_tasks >= 1
    group.remove()
    assert child.wait(PATIENCE) in {0, -signal.SIGKILL}  # the bomb itself may have ended; its children are gone
    child.communicate()
    assert group.pids() == set()


@pytest.mark.root_only
@pytest.mark.parametrize("version", [Version.V1, Version.V2])
def test_a_group_holds_its_processes_and_goes_with_them(version: Version) -> None:
    places = _places(Path("/proc/self"))
    chosen = {"": places[""]} if version is Version.V2 and "" in places else {"pids": places["pids"]}
    made = create(Support(version=version, directories=chosen), f"hold-{os.getpid()}", SMALL)
    script = "read go; sleep 60 & sleep 60 & setsid sleep 60 & echo ready; wait"
    child = subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1)
    made.add(child.pid)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"ready\n"
    made.remove()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    made.remove()
    child.communicate()


MAKER = """
import os, sys
from sandbox.cgroups import claim, create, detect, keep
from sandbox.limits import Limits
uid = int(sys.argv[1])
claimed = claim(detect(), uid=uid, gid=uid)
keep(claimed)
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
group = create(claimed.support, "lease", Limits())
print(*sorted({*map(str, group.directories.values()), *map(str, claimed.made.values())}), flush=True)
input()
"""


@pytest.mark.root_only
@pytest.mark.parametrize("uid", [0, 64321], ids=["root", "the serving user"])
def test_a_claim_is_undone_when_its_maker_is_killed(uid: int) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(uid)], stdin=-1, stdout=-1, text=True, cwd=ROOT)
    assert maker.stdout is not None
    places = [Path(word) for word in maker.stdout.readline().split()]
    assert places
    assert all(place.is_dir() and place.stat().st_uid == uid for place in places)
    maker.kill()
    maker.communicate()
    until(lambda: not any(place.exists() for place in places), PROMPTLY)


@pytest.mark.root_only
def test_reclaim_takes_empty_groups_of_dead_makers_only(support: Support, group: Group) -> None:
    places = sorted({place.parent for place in support.directories.values()})
    gone = subprocess.Popen(["true"])
    gone.wait()
    parent = places[0]
    stale, foreign = parent / f"wicketgate-{gone.pid}-server", parent / "wicketgate-other"
    (stale / "wicketgate-1-old").mkdir(parents=True)
    foreign.mkdir()
    try:
        outer = Support(version=support.version, directories={str(place): place for place in places})
        assert reclaim(outer) == [stale / "wicketgate-1-old", stale]
        assert foreign.is_dir()
        assert all(place.is_dir() for place in group.directories.values())
    finally:
        foreign.rmdir()


@pytest.mark.root_only
@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "x" * 65, "a\n", "é"])
def test_a_session_name_cannot_leave_the_directory(support: Support, name: str) -> None:
    with pytest.raises(GroupError, match="no session id"):
        create(support, name, SMALL)


@pytest.mark.root_only
def test_adding_a_dead_process_is_an_error(group: Group) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(GroupError, match=r"cgroup\.procs"):
        group.add(gone.pid)


@pytest.mark.ordinary_only
def test_an_ordinary_user_without_delegation_is_told_why() -> None:
    found = detect()
    if found.version is Version.NONE:
        assert set(found.missing) == {"memory", "pids", "cpu"}
        assert all("not writable" in reason or "mounted" in reason for reason in found.missing.values())
    with pytest.raises(GroupError):
        create(Support(version=Version.NONE), "x", SMALL)
