"""Stop means stop: on each route and by each way to end it, nothing of what was started is alive after two seconds.

The payload tries what keeps processes alive elsewhere: two forks, sessions of their own, nohup, ignored signals, a
stopped process. The processes are looked for by their command line in the whole machine's /proc, so nothing can hide.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.live.runners import Daemon, alive, daemon
from tests.live.runs import until
from wicketgate.runner.client import Authority, Call, Runner

pytestmark = pytest.mark.live
LIMIT = 2.0  # seconds
KINDS = 5


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
    deadline = time.monotonic() + 15
    while len(alive(mark)) < KINDS:
        assert time.monotonic() < deadline, f"only {len(alive(mark))} were started"
        await asyncio.sleep(0.02)


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


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon() as made:
        yield made  # type: ignore[misc]


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
    async with served.client() as runner:
        route = Route(runner, f"stubborn-{secrets.token_hex(6)}")
        await begin(route, 2.5)
        await started(route.mark)
        if route.task is not None:
            assert getattr(await route.task, "timed_out", False)
        else:
            assert (await runner.wait_job(route.started.id, seconds=30)).state == "timed_out"
        await gone(route.mark)


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["the gate", "the process between", "the runner"])
async def test_any_process_of_the_runner_is_killed(victim: int) -> None:
    with daemon() as made:
        async with made.client() as runner:
            routes = [Route(runner, f"stubborn-{secrets.token_hex(6)}") for _ in range(4)]
            for route, begin in zip(routes, (Route.run, Route.session, Route.job, Route.terminal), strict=True):
                await begin(route)
                await started(route.mark)

            os.kill(made.processes()[victim], signal.SIGKILL)
            for route in routes:
                await gone(route.mark)
                await route.settle()
        assert made.process is not None
        until(lambda: made.process is not None and made.process.poll() is not None)
        assert made.process.poll() != 0


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


async def test_what_a_killed_runner_left_in_a_workspace_goes_with_the_next_session() -> None:
    with daemon() as made:
        place = made.workspace()
        authority = Authority(workspace=str(place))
        async with made.client() as runner:
            await runner.start_job(Call(bash="sleep 600"), authority)
            await asyncio.to_thread(made.stop, signal.SIGKILL)
        assert all(not any(path.iterdir()) for path in place.iterdir()), "empty directories at most"
        await asyncio.to_thread(made.start)
        async with made.client() as runner:
            assert (await runner.run(Call(bash="true"), authority)).code == 0
        assert list(place.iterdir()) == []
