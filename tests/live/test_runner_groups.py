"""Control groups of a runner that root has started: claimed before it becomes the serving user, and really bounding.

What a limit per process cannot do is what is tried here: a session of several processes, each of them modest.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox.cgroups import detect
from tests.live.runners import Daemon, alive, daemon, serving_uid
from tests.live.runs import until
from wicketgate.runner.client import Authority, Call, Runner
from wicketgate.runner.schema import LimitsAsked

pytestmark = [pytest.mark.live, pytest.mark.alone]
MIB = 1 << 20
# Three processes of 60 MiB each. Each says whether it was killed.
MANY = """
import os, sys, time
ends = []
for _ in range(3):
    if os.fork() == 0:
        block = bytearray(60 << 20)
        time.sleep(1)
        os._exit(0)
print(sorted(os.WTERMSIG(os.wait()[1]) for _ in range(3)))
"""
# How many processors four busy processes got, over two seconds or more.
BURN = """
import os, time
def used():
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system
begin, before = time.monotonic(), used()
children = [os.fork() for _ in range(2)]
while time.monotonic() < begin + 2:
    pass
if 0 in children:
    os._exit(0)
for _ in range(2):
    os.wait()
print((used() - before) / (time.monotonic() - begin))
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon(extra="parked = 0") as made:
        yield made


@pytest.fixture
async def runner(served: Daemon) -> AsyncIterator[Runner]:
    async with served.client() as client:
        if (await client.health()).bounds == "none":
            pytest.skip(f"this host has no control groups for the runner: {dict(detect().missing)}")
        yield client


def places(made: Daemon) -> list[Path]:
    """What a runner has claimed, one directory for each place."""
    assert made.process is not None
    name = f"wicketgate-{made.process.pid}-server"
    return sorted({place.parent / name if place.name == name else place / name for place in _places()})


def _places() -> set[Path]:
    return set(detect().directories.values())


def groups(made: Daemon) -> list[Path]:
    """The groups of its sessions."""
    return [one for place in places(made) for one in place.glob("wicketgate-1-*")]


def _has_all(group: Path, mark: str) -> bool:
    """Its process 1, the session's first command, and the one that has entered."""
    members = {int(word) for word in (group / "cgroup.procs").read_text().split()}
    return len(members) >= 3 and bool(members & set(alive(mark)))


def number(session: list[Path], *names: str) -> int:
    """A value of a session's group, whichever version it is of."""
    found = [one / name for one in session for name in names if (one / name).exists()]
    return int(found[0].read_text().split()[-1])


@pytest.mark.root_only
async def test_memory_is_bounded_for_the_session_as_a_whole(runner: Runner) -> None:
    bounded = await runner.run(
        Call(argv=["/usr/bin/python3", "-c", MANY]), Authority(limits=LimitsAsked(memory_bytes=100 * MIB))
    )
    assert b"9" in bounded.stdout or bounded.code == 128 + signal.SIGKILL, bounded
    oracle = await runner.run(
        Call(argv=["/usr/bin/python3", "-c", MANY]), Authority(limits=LimitsAsked(memory_bytes=400 * MIB))
    )
    assert oracle.stdout == b"[0, 0, 0]\n", "each alone is within either bound"
    assert (await runner.run(Call(bash="echo next"))).stdout == b"next\n"


@pytest.mark.root_only
async def test_a_full_tmp_counts_as_memory_and_ends_inside(runner: Runner) -> None:
    fill = "head -c 300000000 /dev/zero >/tmp/full; echo wrote $?"
    done = await runner.run(Call(bash=fill), Authority(limits=LimitsAsked(memory_bytes=80 * MIB)))
    assert b"wrote 0" not in done.stdout
    assert b"wrote 0" in (await runner.run(Call(bash=fill))).stdout


@pytest.mark.root_only
async def test_cpu_is_bounded_for_the_session_as_a_whole(runner: Runner) -> None:
    call = Call(argv=["/usr/bin/python3", "-c", BURN])
    bounded = await runner.run(call, Authority(limits=LimitsAsked(cpus=0.05)))
    free = await runner.run(call)
    assert float(bounded.stdout) < 0.1 < 0.2 < float(free.stdout), "and more is to be had, on a busy machine too"


@pytest.mark.root_only
async def test_a_session_has_a_group_with_all_its_processes_and_the_group_goes(served: Daemon, runner: Runner) -> None:
    limits = LimitsAsked(memory_bytes=200 * MIB, tasks=77, cpus=0.5)
    async with runner.session(Authority(limits=limits)) as session:
        mark = f"mark-{secrets.token_hex(6)}"
        entered = asyncio.ensure_future(runner.run_in(session.id, Call(bash=f"exec -a {mark} sleep 60")))
        made = groups(served)
        assert made
        assert number(made, "memory.max", "memory.limit_in_bytes") == 200 * MIB
        assert number(made, "pids.max") == 77
        await asyncio.to_thread(until, lambda: all(_has_all(group, mark) for group in made))
        entered.cancel()
    assert groups(served) == []
    assert all(place.stat().st_uid == serving_uid() for place in places(served))


@pytest.mark.root_only
async def test_nothing_of_it_is_shown_or_can_be_steered_from_inside(runner: Runner) -> None:
    look = "grep -c cgroup /proc/self/mountinfo; ls -d /sys/fs/cgroup; mount -t cgroup2 none /tmp"
    done = await runner.run(Call(bash=f"{look}; cat /proc/self/cgroup"))
    shown, *lines = done.stdout.decode().splitlines()
    assert shown == "0"
    assert b"/sys/fs/cgroup" in done.stderr
    assert not [line for line in lines if line.startswith("/sys")]


@pytest.mark.root_only
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["the gate", "the process between", "the runner"])
async def test_the_claim_is_undone_whoever_is_killed(victim: int) -> None:
    with daemon() as made:
        async with made.client() as runner:
            if (await runner.health()).bounds == "none":
                pytest.skip("no control groups")
            await runner.start_job(Call(bash="setsid sleep 600 & exec sleep 600"))
            claimed = places(made)
            assert claimed
            assert all(place.is_dir() for place in claimed)
            os.kill(made.processes()[victim], signal.SIGKILL)
        until(lambda: not any(place.exists() for place in claimed), 4)


@pytest.mark.root_only
async def test_a_clean_end_leaves_nothing() -> None:
    with daemon() as made:
        claimed = places(made)
        await asyncio.to_thread(made.stop)
        until(lambda: not any(place.exists() for place in claimed), 4)


@pytest.mark.ordinary_only
async def test_without_groups_the_runner_says_so_and_still_bounds_each_process(served: Daemon) -> None:
    async with served.client() as runner:
        if (await runner.health()).bounds != "none":
            pytest.skip("this user has control groups")
        script = "bytearray(200 << 20)"
        asked = Authority(limits=LimitsAsked(memory_bytes=100 * MIB))
        done = await runner.run(Call(argv=["/usr/bin/python3", "-c", script]), asked)
        assert b"MemoryError" in done.stderr
