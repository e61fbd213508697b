"""Stop means stop: on each route and by each way to end it, nothing of what was started is alive any more.

The payload tries what keeps processes alive elsewhere: two forks, sessions of their own, nohup, ignored signals, a
stopped process. The processes are looked for by their command line in the whole machine's /proc, so nothing can hide.
"""

import asyncio
import contextlib
import os
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.live.runners import Daemon, alive, daemon
from tests.live.runs import KEEPER, PATIENCE, PROMPTLY, adopted, children, leads_session, name, recorded, until
from wicketgate.runner.client import Authority, Call, Runner, RunnerError

pytestmark = [pytest.mark.live, pytest.mark.alone]
KINDS, ROUNDS = 5, 12
LIMIT = 2.0  # seconds: what is promised


def stubborn(mark: str) -> str:
    """A script that starts five kinds of process under this name and then waits as one of them."""
    return f"""
trap '' TERM INT HUP
(setsid bash -c '(exec -a {mark} sleep 9999 &) ' >/dev/null 2>&1 &)
nohup bash -c 'exec -a {mark} sleep 9999' >/dev/null 2>&1 &
setsid bash -c 'trap "" TERM INT HUP; exec -a {mark} sleep 9999' >/dev/null 2>&1 &
bash -c 'exec -a {mark} sleep 9999' >/dev/null 2>&1 & sleep 0.2; kill -STOP $!
exec -a {mark} sleep 9999
"""


async def started(mark: str) -> None:
    """Wait until all five are there."""
    assert await all_come(mark, PATIENCE), f"only {len(alive(mark))} were started"


async def all_come(mark: str, seconds: float) -> bool:
    """Whether all five are there within so many seconds."""
    deadline = time.monotonic() + seconds
    while len(alive(mark)) < KINDS:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def gone(mark: str) -> float:
    begin = time.monotonic()
    while alive(mark):
        assert time.monotonic() - begin < LIMIT, f"{len(alive(mark))} are alive after {LIMIT} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - begin


class Route:
    """One way to run the script; each ends it in its own ways."""

    def __init__(self, runner: Runner, mark: str) -> None:
        self.runner, self.mark = runner, mark
        self.task: asyncio.Future[Any] | None = None

    async def run(self, seconds: float | None = None) -> None:
        self.task = asyncio.ensure_future(self.runner.run(Call(bash=stubborn(self.mark), timeout=seconds)))

    async def session(self, seconds: float | None = None) -> None:
        self.opened = await self.runner.open_session()
        call = Call(bash=stubborn(self.mark), timeout=seconds)
        self.task = asyncio.ensure_future(self.runner.run_in(self.opened.id, call))

    async def job(self, seconds: float | None = None) -> None:
        self.started = await self.runner.start_job(Call(bash=stubborn(self.mark), timeout=seconds))

    async def terminal(self, seconds: float | None = None) -> None:
        self.shell = await self.runner.open_terminal()
        script = f"bash -c '{stubborn(self.mark).replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'"
        self.task = asyncio.ensure_future(self.runner.run_in_terminal(self.shell.id, script, seconds=seconds or 3600))

    async def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def close_session(self) -> None:
        await self.runner.close_session(self.opened.id)

    async def stop_job(self) -> None:
        assert (await self.runner.stop_job(self.started.id)).state == "stopped"

    async def close_terminal(self) -> None:
        assert (await self.runner.close_terminal(self.shell.id)).state == "ended"

    async def settle(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


ENDS: list[tuple[str, Callable[[Route], Awaitable[None]], Callable[[Route], Awaitable[None]]]] = [
    ("a run is cancelled", Route.run, Route.cancel),
    ("a session's call is cancelled", Route.session, Route.cancel),
    ("a session is closed", Route.session, Route.close_session),
    ("a job is stopped", Route.job, Route.stop_job),
    ("a terminal is closed", Route.terminal, Route.close_terminal),
]


@pytest.mark.parametrize(("begin", "end"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
async def test_ended(
    served: Daemon, begin: Callable[[Route], Awaitable[None]], end: Callable[[Route], Awaitable[None]]
) -> None:
    async with served.client() as runner:
        route = Route(runner, f"stubborn-{secrets.token_hex(6)}")
        await begin(route)
        await started(route.mark)
        await end(route)
        await gone(route.mark)
        await route.settle()


@pytest.mark.parametrize("begin", [Route.run, Route.session, Route.job, Route.terminal], ids=lambda one: one.__name__)
async def test_timed_out(served: Daemon, begin: Callable[[Route, float], Awaitable[None]]) -> None:
    """Within the time all that is to be ended must have begun: a slow machine is given more of it."""
    async with served.client() as runner:
        for seconds in (2.5, 10, 40):
            route = Route(runner, f"stubborn-{secrets.token_hex(6)}")
            await begin(route, seconds)
            if in_time := await all_come(route.mark, seconds):
                break
            await route.settle()
        assert in_time
        if route.task is not None:
            assert getattr(await route.task, "timed_out", False)
        else:
            assert (await runner.wait_job(route.started.id, seconds=30)).state == "timed_out"
        await gone(route.mark)


VICTIMS = ("the gate", "the process between", "the runner", "the keeper")


def assert_clean(made: Daemon, workspace: Path, *kept: str) -> None:
    """Nothing outside of the processes is left: no directory in the workspace, no record of one, no socket."""
    assert {path.name for path in workspace.iterdir()} == set(kept)
    assert not recorded(made.state, workspace).exists()
    assert not made.socket.exists()


@pytest.mark.parametrize("victim", range(4), ids=VICTIMS)
async def test_any_process_of_the_runner_is_killed(victim: int) -> None:
    with adopted() as left, daemon() as made:
        place = made.workspace()
        authority = Authority(workspace=str(place))
        plants = "git init -q sub && git -C sub config core.fsmonitor 'touch /tmp/planted'; touch .bashrc; sleep 9999"
        async with made.client() as runner:
            routes = [Route(runner, f"stubborn-{secrets.token_hex(6)}") for _ in range(4)]
            for route, begin in zip(routes, (Route.run, Route.session, Route.job, Route.terminal), strict=True):
                await begin(route)
                await started(route.mark)
            await runner.start_job(Call(bash=plants), authority)
            await runner.open_session(authority)
            await runner.open_terminal(authority=authority)
            until((place / ".bashrc").exists)
            assert (place / ".git").is_dir(), "held"

            os.kill(made.processes()[victim], signal.SIGKILL)
            killed = time.monotonic()
            for route in routes:
                await gone(route.mark)
                await route.settle()
        assert made.process is not None
        assert made.process.wait(PATIENCE) != 0
        until(lambda: not left(), PROMPTLY)
        print(f"\n{VICTIMS[victim]}: all was over after {(time.monotonic() - killed) * 1000:.0f} ms")
        assert_clean(made, place, "sub", ".bashrc.wicketgate-set-aside")
        assert "fsmonitor" not in (place / "sub/.git/config").read_text()


async def test_a_runner_is_killed_at_any_moment() -> None:
    """Also while it starts, and while sandboxes are built, released and ended in a workspace of theirs."""
    chance = random.Random("a runner is killed")
    with daemon() as made, adopted() as left:
        place = made.workspace()
        authority = Authority(workspace=str(place))
        made.stop()
        began = time.monotonic()
        made.start()
        whole_start = time.monotonic() - began
        made.stop()
        for number in range(ROUNDS):
            label = VICTIMS[number % len(VICTIMS)]
            process = made.launch()
            busy = asyncio.create_task(keep_busy(made, authority))
            await asyncio.sleep(chance.uniform(0, whole_start * 2))
            os.kill(process.pid if number % len(VICTIMS) == 0 else until(partial(find_victim, process.pid, label)), 9)
            killed = time.monotonic()
            assert await asyncio.to_thread(process.wait, PATIENCE) != 0
            until(lambda: not left(), PROMPTLY)
            busy.cancel()
            await asyncio.gather(busy, return_exceptions=True)
            assert_clean(made, place)
            print(f"{label}: all was over after {(time.monotonic() - killed) * 1000:.0f} ms")
        made.process = None
        made.start()
        async with made.client() as runner:
            assert (await runner.run(Call(bash="echo fine"), authority)).stdout == b"fine\n"
        made.stop()
        assert_clean(made, place)


def test_a_signal_at_any_moment_of_the_start_ends_it() -> None:
    """Process 1 of a pid namespace loses what it has no handler for yet; a service manager asks only once."""
    chance = random.Random("a runner is told to end")
    with daemon() as made:
        made.stop()
        began = time.monotonic()
        made.start()
        whole_start = time.monotonic() - began
        made.stop()
        for number in range(ROUNDS):
            process = made.launch()
            if number % 2:
                time.sleep(chance.uniform(0, whole_start))
            else:
                until(partial(find_victim, process.pid, "the runner"))
            process.terminate()
            assert process.wait(PROMPTLY + whole_start) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        made.start()


def find_victim(gate: int, label: str) -> int | None:
    """One of the runner's processes as soon as it is there; the one between is in a session of its own by then."""
    inner = children(gate)
    between = [pid for pid in inner if name(pid) != KEEPER and leads_session(pid)]
    found = {
        "the keeper": [pid for pid in inner if name(pid) == KEEPER],
        "the process between": between,
        "the runner": [below for pid in between for below in children(pid)],
    }[label]
    return found[0] if found else None


async def keep_busy(made: Daemon, authority: Authority) -> None:
    """Start jobs, sessions and calls in the workspace, as long as somebody answers."""
    while True:
        with contextlib.suppress(RunnerError, OSError, aiohttp.ClientError):
            async with made.client() as runner:
                await runner.start_job(Call(bash="sleep 9999"), authority)
                session = await runner.open_session(authority)
                await runner.run_in(session.id, Call(bash="true"))
                await runner.close_session(session.id)
        await asyncio.sleep(0.01)


async def test_a_clean_end_ends_everything() -> None:
    with daemon() as made:
        async with made.client() as runner:
            routes = [Route(runner, f"stubborn-{secrets.token_hex(6)}") for _ in range(3)]
            for route, begin in zip(routes, (Route.session, Route.job, Route.terminal), strict=True):
                await begin(route)
                await started(route.mark)
            code = await asyncio.to_thread(made.stop)
            assert code == 0, made.log
            for route in routes:
                assert not alive(route.mark)
                await route.settle()


async def test_a_fork_bomb_ends_inside_and_the_next_call_works() -> None:
    with daemon(limits="tasks = 200") as made:
        async with made.client() as runner:
            mark = f"bomb-{secrets.token_hex(6)}"
            bomb = f"import os, sys, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.1)\n # {mark}"
            async with runner.session() as session:
                done = await runner.run_in(session.id, Call(python=bomb, timeout=2))
                assert done.timed_out
                await gone(mark)
            assert (await runner.run(Call(bash="echo fine"))).stdout == b"fine\n"


async def test_where_all_were_killed_the_next_runner_sweeps() -> None:
    with daemon() as made, adopted() as left:
        place = made.workspace()
        async with made.client() as runner:
            await runner.start_job(Call(bash="sleep 600"), Authority(workspace=str(place)))
            gate, *_, keeper = made.processes()
            os.kill(gate, signal.SIGSTOP)
            os.kill(keeper, signal.SIGKILL)
            await asyncio.to_thread(made.stop, signal.SIGKILL)
        until(lambda: not left(), PROMPTLY)
        assert (place / ".git").is_dir()
        assert recorded(made.state, place).exists()
        half = made.state / "jobs" / "0123456789abcdef"
        half.mkdir()
        await asyncio.to_thread(made.start)
        assert list(place.iterdir()) == []
        assert not recorded(made.state, place).exists()
        assert not half.exists(), "a job that was never begun"
        assert f"what a killed session left in {place} was taken away" in made.log
        made.stop()
