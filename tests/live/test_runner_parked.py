"""Parked sandboxes: the same as built ones, of one session alone, bounded, and gone with whatever is killed."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.release import WAITS
from tests.live.runners import Daemon, daemon, serving_uid
from tests.live.runs import NEXT, name, until
from tests.live.test_runner_routes import PROBE, ROUTES
from wicketgate.runner.client import Authority, Call, Runner, RunnerError
from wicketgate.runner.schema import LimitsAsked

pytestmark = pytest.mark.live
MOST = 3
RUNNER = 2  # of the daemon's processes
STARTER = 1  # a child of the runner's that is no sandbox; a further one may wait for the next sandbox
DESCRIPTORS = 250  # enough for the runner and what is parked; one that every start left would be too many


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon(extra=f"parked = {MOST}") as made:
        yield made


@pytest.fixture
async def runner(served: Daemon) -> AsyncIterator[Runner]:
    async with served.client() as client:
        await full(client)
        yield client


async def full(runner: Runner, count: int = MOST) -> None:
    """Wait until so many are parked."""
    async with asyncio.timeout(30):
        while (await runner.health()).parked < count:
            await asyncio.sleep(0.01)


async def released(runner: Runner) -> int:
    return (await runner.health()).released


async def warm(runner: Runner, call: Call, authority: Authority | None = None) -> Any:
    """Run a command in a sandbox that was parked."""
    await full(runner, 1)
    before = await released(runner)
    done = await runner.run(call, authority)
    assert await released(runner) == before + 1, "it was built, not released"
    return done


def parked_processes(made: Daemon) -> list[int]:
    """The outer bubblewraps of those that wait, as the machine sees them."""
    waits = b"\0".join(map(str.encode, WAITS)) + b"\0"
    return [one for one in children(made.processes()[RUNNER]) if command_line(waiting_program(one)) == waits]


def number_of_children(made: Daemon) -> int:
    """The runner's, but for the one that waits for the next sandbox."""
    return sum(name(pid) != NEXT for pid in children(made.processes()[RUNNER]))


def waiting_program(outer: int) -> int:
    """What waits in a sandbox; 0 where nothing has begun."""
    return next((inner for init in children(outer) for inner in children(init)), 0)


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


# ---- the same sandbox ------------------------------------------------------------------------------------------------


async def test_a_released_sandbox_is_the_same_as_a_built_one_on_every_route() -> None:
    reports: dict[tuple[str, int], bytes] = {}
    with daemon() as made:
        place = made.workspace()
        (place / "probe.py").write_text(PROBE.read_text())
        for most in (0, MOST):
            await asyncio.to_thread(made.stop)
            made.extra = f"parked = {most}"
            await asyncio.to_thread(made.start)
            async with made.client() as runner:
                for name, route in ROUTES.items():
                    (place / "report.json").unlink(missing_ok=True)
                    await full(runner, min(1, most))
                    await route(runner, Authority(workspace=str(place)))
                    reports[name, most] = await asyncio.to_thread((place / "report.json").read_bytes)
                assert await released(runner) == (len(ROUTES) if most else 0)
    assert len(set(reports.values())) == 1


async def test_without_a_workspace_too(served: Daemon, runner: Runner) -> None:
    probe = Call(bash="exec /usr/bin/python3 -I -", stdin=PROBE.read_text())
    found = await warm(runner, probe)
    assert found.code == 0, found.stderr
    before = await released(runner)
    built = await runner.run(Call(argv=["/usr/bin/../bin/bash", "-c", probe.bash or ""], stdin=probe.stdin))
    assert await released(runner) == before, "a path that is not plain is for a sandbox of its own"
    assert found.stdout == built.stdout


async def test_the_streams_and_the_code_are_the_commands_own(runner: Runner) -> None:
    done = await warm(runner, Call(bash="cat; echo no >&2; exit 7", stdin="in\n"))
    assert (done.code, done.stdout, done.stderr) == (7, b"in\n", b"no\n")
    assert (await warm(runner, Call(bash="kill -9 $$"))).code == 137
    assert (await warm(runner, Call(bash="cat"))).stdout == b"", "without input there is /dev/null"
    odd = 'it\'s "$(odd)" `as` \\ can\nbe \x7f\x01 ü'
    assert (await warm(runner, Call(argv=["printf", "%s", odd]))).stdout == odd.encode()
    job = await runner.start_job(Call(bash="echo a; echo b >&2"))
    assert (await runner.wait_job(job.id)).code == 0
    logs = [event async for event in runner.logs(job.id)]
    assert "".join(getattr(event, "text", None) or "" for event in logs) == "a\nb\n"


async def test_a_timeout_and_a_vanished_client_end_it(served: Daemon, runner: Runner) -> None:
    mark = f"mark-{secrets.token_hex(6)}"
    done = await warm(runner, Call(bash=f"(setsid sleep 1{mark[5:9]} &) ; exec -a {mark} sleep 999", timeout=0.3))
    assert (done.code, done.timed_out) == (124, True)


# ---- nothing of another session --------------------------------------------------------------------------------------

LEAVE = """
echo {mark} > /tmp/left; echo {mark} > ~/left; echo {mark} > /dev/shm/left; echo {mark} > /run/left
export LEFT={mark}; (exec -a {mark} setsid sleep 300 >/dev/null 2>&1 &)
/usr/bin/python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("\\0{mark}")'
echo {mark}
"""
LOOK = """
ls -A /tmp /var/tmp /run ~ /dev/shm; env; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'
ls -l /proc/[0-9]*/fd; cat /proc/self/mountinfo /proc/net/unix /proc/keys /proc/sysvipc/*; ls /proc
"""


async def test_a_session_sees_nothing_of_those_before_it_and_beside_it(served: Daemon, runner: Runner) -> None:
    mark, other = f"mark-{secrets.token_hex(6)}", f"mark-{secrets.token_hex(6)}"
    async with runner.session() as beside:
        assert (await runner.run_in(beside.id, Call(bash=LEAVE.format(mark=mark)))).code == 0
        for _ in range(2 * MOST):  # more than were parked when it began
            done = await warm(runner, Call(bash=LEAVE.format(mark=other), stdin=other))
            assert done.stdout.strip() == other.encode(), done.stderr
            look = await warm(runner, Call(bash=LOOK), Authority(workspace=str(served.workspace("looked"))))
            assert mark.encode() not in look.stdout + look.stderr
            assert other.encode() not in look.stdout + look.stderr


async def test_two_parked_sandboxes_share_no_namespace_and_no_descriptor(served: Daemon, runner: Runner) -> None:
    await full(runner)
    waiting = parked_processes(served)
    assert len(waiting) == MOST
    inner = [children(one)[0] for one in waiting]
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        names = {os.readlink(f"/proc/{one}/ns/{kind}") for one in inner}
        assert len(names) == MOST, kind
    pipes = [
        {os.readlink(place) for place in Path(f"/proc/{one}/fd").iterdir() if os.readlink(place).startswith("pipe:")}
        for one in inner
    ]
    assert all(pipes)
    assert sum(map(len, pipes)) == len(set().union(*pipes)), "a pipe leads into two sandboxes"


async def test_what_waits_has_given_everything_up(served: Daemon, runner: Runner) -> None:
    await full(runner)
    for one in parked_processes(served):
        for pid in (children(one)[0], waiting_program(one)):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines)
            assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
            assert status["NoNewPrivs"] == "1"
            assert int(status["Uid"].split()[0]) == serving_uid()
        assert status["Seccomp"] == "2", "the shell that waits is filtered as its command will be"


# ---- the authority is applied at the release -------------------------------------------------------------------------


async def test_other_limits_are_not_served_by_what_was_parked(runner: Runner) -> None:
    await full(runner)
    before = await released(runner)
    small = Authority(limits=LimitsAsked(tmp_bytes=4 << 20, descriptors=100))
    ask = Call(bash="ulimit -n; df -B1 --output=size /tmp | tail -1")
    assert (await runner.run(ask, small)).stdout.split() == [b"100", str(4 << 20).encode()]
    assert await released(runner) == before
    async with asyncio.timeout(30):
        while (done := await runner.run(ask, small)) and await released(runner) == before:
            await asyncio.sleep(0.01)
    assert done.stdout.split() == [b"100", str(4 << 20).encode()], "and when they are parked they hold as well"
    usual = await warm(runner, ask)
    assert usual.stdout.split()[0] != b"100"


async def test_a_workspace_is_shown_to_its_session_alone(served: Daemon, runner: Runner) -> None:
    mine, other = served.workspace("mine"), served.workspace("other")
    (other / "secret").write_text("other's")
    done = await warm(runner, Call(bash=f"touch made; cat {other}/secret; pwd"), Authority(workspace=str(mine)))
    assert done.stdout == f"{mine}\n".encode()
    assert (mine / "made").exists()
    without = await warm(runner, Call(bash=f"ls {mine} {other}; ls -d /tmp/*"))
    assert without.stdout == b""


async def test_what_is_protected_is_protected_and_no_litter_waits(served: Daemon, runner: Runner) -> None:
    place = served.workspace("guarded")
    await full(runner)
    assert list(place.iterdir()) == [], "nothing is held while sandboxes wait"
    script = "mkdir -p .git/hooks; echo bad > .git/hooks/pre-commit; echo x > .vscode/tasks.json; echo $?"
    done = await warm(runner, Call(bash=script), Authority(workspace=str(place)))
    assert done.stdout == b"1\n"
    assert list(place.iterdir()) == []


async def test_a_refused_workspace_releases_nothing(served: Daemon, runner: Runner) -> None:
    before = await released(runner)
    with pytest.raises(RunnerError):
        await runner.run(Call(bash="true"), Authority(workspace="/etc"))
    assert await released(runner) == before


async def test_full_access_is_never_parked(served: Daemon, runner: Runner) -> None:
    before = await released(runner)
    with pytest.raises(RunnerError, match="full_access"):
        await runner.run(Call(bash="true"), Authority(mode="full-access"))
    assert await released(runner) == before


# ---- bounds and ends -------------------------------------------------------------------------------------------------


async def test_a_parked_sandbox_that_was_killed_is_noticed_and_never_served(served: Daemon, runner: Runner) -> None:
    for which in (lambda one: one, lambda one: children(one)[0], waiting_program):
        await full(runner)
        victims = parked_processes(served)
        for one in victims:
            os.kill(which(one), signal.SIGKILL)
        done = await runner.run(Call(bash="echo fine"))
        assert (done.code, done.stdout) == (0, b"fine\n")
        assert not set(victims) & set(parked_processes(served))


async def test_never_more_than_allowed_and_each_serves_once(served: Daemon, runner: Runner) -> None:
    await full(runner)
    done = await asyncio.gather(
        *(runner.run(Call(bash="echo $$-$RANDOM-$(cat /proc/sys/kernel/random/uuid)")) for _ in range(40))
    )
    assert len({one.stdout for one in done}) == len({one.session for one in done}) == 40
    assert (await runner.health()).parked <= MOST
    await full(runner)
    assert len(parked_processes(served)) == MOST
    assert number_of_children(served) == MOST + STARTER, "something of an ended session is left"


async def test_a_killed_runner_leaves_none() -> None:
    with daemon(extra=f"parked = {MOST}") as made:
        async with made.client() as runner:
            await full(runner)
        waiting = parked_processes(made)
        assert len(waiting) == MOST
        os.kill(made.processes()[RUNNER], signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in waiting))


async def test_a_stopped_runner_leaves_none_and_says_nothing() -> None:
    with daemon(extra=f"parked = {MOST}") as made:
        async with made.client() as runner:
            await full(runner)
        waiting = parked_processes(made)
        assert made.stop() == 0
        assert not any(Path(f"/proc/{one}").exists() for one in waiting)


async def test_many_starts_leave_nothing_behind() -> None:
    async def once(runner: Runner) -> None:
        assert (await runner.run(Call(argv=["/usr/bin/true"]))).code == 0

    with daemon(extra=f"parked = {MOST}", prefix=("prlimit", f"--nofile={DESCRIPTORS}")) as made:
        async with made.client() as runner:
            await full(runner)
            for _ in range(50):
                await asyncio.gather(*(once(runner) for _ in range(5)))
            await full(runner)
            assert number_of_children(made) == MOST + STARTER
