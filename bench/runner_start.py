"""How long a command takes from a running runner, against bare bubblewrap: alone, in an open session, with a workspace.

One client, one connection, one command after the other; each turn runs every kind once, so that a busy machine slows
all of them alike. `python -m bench.runner_start [TURNS]` prints medians in milliseconds.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from bench.start_time import BWRAP, TRUE
from tests.live.runners import daemon
from wicketgate.runner.client import Authority, Call, Runner

type Start = Callable[[], Awaitable[object]]


async def bare() -> None:
    process = await asyncio.create_subprocess_exec(*BWRAP, TRUE, stdout=subprocess.DEVNULL)
    assert await process.wait() == 0


async def measure(runner: Runner, workspace: str, turns: int) -> dict[str, list[float]]:
    call = Call(argv=[TRUE])
    async with runner.session() as session:
        kinds: dict[str, Start] = {
            "bwrap": bare,
            "runner, a sandbox of its own": lambda: runner.run(call),
            "runner, with a workspace": lambda: runner.run(call, Authority(workspace=workspace)),
            "runner, in an open session": lambda: runner.run_in(session.id, call),
        }
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(turns + 3):
            for name, start in kinds.items():
                begin = time.perf_counter()
                await start()
                if turn >= 3:  # the first ones load what is loaded once
                    found[name].append((time.perf_counter() - begin) * 1e3)
    return found


async def main(turns: int) -> None:
    with daemon() as made:
        async with made.client() as runner:
            found = await measure(runner, str(made.workspace()), turns)
    for name, times in found.items():
        print(f"{name:<32} {statistics.median(times):7.2f} ms   (p90 {statistics.quantiles(times, n=10)[-1]:7.2f})")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
