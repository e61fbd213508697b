"""How long a command takes that is asked of a running runner, against bare bubblewrap: built for it, or parked before.

One client, one connection, one command after the other; each turn runs every kind once, so that a busy machine slows
all of them alike. Two runners are asked: one that parks nothing, and one that has sandboxes parked at each sample. The
API's own way, from the request to the news that the command has ended and its sandbox is undone, is in every figure but
bubblewrap's. `python -m bench.runner_start [TURNS]` prints medians in milliseconds.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Final

from bench.measures import Sample
from bench.results import Row
from bench.start_time import BWRAP, TRUE
from tests.live.daemons import broker_daemon
from tests.live.runners import Daemon, daemon
from wicketgate.runner.client import Authority, Call, Runner, RunnerError

RULES: Final = '[[rule]]\nname = "one"\naction = "allow"\nhosts = ["origin.example"]\nports = [443]\n'
PARKED: Final = 6
SETTLED: Final = 0.05  # seconds after the last one was parked: the sample has the processors for itself
WARM_UP: Final = 3  # turns that load what is loaded once
CLIENT: Final = "wicketgate run --runner"

type Start = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The two runners and how many sandboxes the second has parked when it is asked."""

    building: Runner
    parking: Runner
    socket: str
    most: int

    async def ready(self) -> None:
        """Wait until everything is parked."""
        while (await self.parking.health()).parked < self.most:
            await asyncio.sleep(0.01)
        await asyncio.sleep(SETTLED)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if await process.wait() != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")


def _kinds(asked: _Asked, workspaces: tuple[str, str], session: str) -> dict[str, Start]:
    call, cabled = Call(argv=[TRUE]), Authority(network="brokered")
    shown, other = (Authority(workspace=place) for place in workspaces)
    client = (sys.executable, "-m", "wicketgate", "run", "--runner", asked.socket, "--", TRUE)
    return {
        "bwrap": lambda: _run(*BWRAP, TRUE),
        "built": lambda: asked.building.run(call),
        "built, with a workspace": lambda: asked.building.run(call, shown),
        "built, with a bridge": lambda: asked.building.run(call, cabled),
        "in an open session": lambda: asked.building.run_in(session, call),
        "parked": lambda: asked.parking.run(call),
        "parked, with a workspace": lambda: asked.parking.run(call, other),
        "parked, with a bridge": lambda: asked.parking.run(call, cabled),
        CLIENT: lambda: _run(*client),
    }


async def _measure(building: Daemon, parking: Daemon, turns: int) -> dict[str, Row]:
    async with AsyncExitStack() as stack:
        runners = [await stack.enter_async_context(one.client()) for one in (building, parking)]
        asked = _Asked(building=runners[0], parking=runners[1], socket=str(parking.socket), most=PARKED)
        session = await stack.enter_async_context(asked.building.session())
        kinds = _kinds(asked, (str(building.workspace()), str(parking.workspace())), session.id)
        rows = {name: Row() for name in kinds}
        for turn in range(turns + WARM_UP):
            for name, start in kinds.items():
                if not rows[name].failure:
                    await _sample(rows[name], start, asked, keep=turn >= WARM_UP)
    return rows


async def _sample(row: Row, start: Start, asked: _Asked, *, keep: bool) -> None:
    await asked.ready()
    begin = time.perf_counter()
    try:
        await start()
    except (RunnerError, RuntimeError) as error:
        row.failure = str(error)
        return
    if keep:
        row.samples.append(Sample(value=(time.perf_counter() - begin) * 1e6, cpu=None))


def measure_runner_starts(turns: int) -> dict[str, Row]:
    """Rows in microseconds."""
    with ExitStack() as stack:
        broker = stack.enter_context(broker_daemon(RULES))
        made = [
            stack.enter_context(daemon(extra=f'attach = "{broker.attach}"\nparked = {most}')) for most in (0, PARKED)
        ]
        return asyncio.run(_measure(made[0], made[1], turns))


def main() -> None:
    rows = measure_runner_starts(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    for name, row in rows.items():
        times = [sample.value / 1e3 for sample in row.samples]
        print(
            f"{name:<28} {row.trouble}"
            if len(times) < 2
            else f"{name:<28} {statistics.median(times):7.2f} ms   (least {min(times):7.2f},"
            f" p90 {statistics.quantiles(times, n=10)[-1]:7.2f})"
        )


if __name__ == "__main__":
    main()
