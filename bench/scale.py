"""Many live sandboxes, for real: sessions with grants through both daemons, and what each more costs.

    python -m bench.scale [COUNT...]          prints JSON: for each count its figures, and then what was wrong

At each count: how long the next session takes to open, and the processor time that this costs the runner; how long a
kept-alive inspected request takes inside the newest one, and what it costs the broker; a short command in it; what both
daemons and the sandboxes hold. Every session makes a request of its own, and the log must have exactly that one, under
exactly its session, call and grant. In the end all are closed, and nothing of them may be left.

The runner parks nothing: each session is built, so that one start is like the next.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.accounting import cost_of, tree
from bench.soak import QUIET_SECONDS, RULE, quiet, wait_still
from bench.watch import Watch
from broker.control.client import Broker
from tests.live.daemons import Daemon as BrokerDaemon
from tests.live.daemons import broker_daemon
from tests.live.runners import Daemon as RunnerDaemon
from tests.live.runners import daemon
from tests.live.runs import adopted
from tests.origins.process import start_https
from wicketgate.runner.client import Authority, Call, Runner

COUNTS: Final = (1, 10, 50, 100, 250, 500, 1_000)
NAME: Final = "inspected.example"
STARTS: Final = 9  # timed at each count, of which the median counts
COMMANDS: Final = 9
REQUESTS: Final = 200
ASKS: Final = 4  # times that REQUESTS are made at each count, of which the quietest counts
AT_ONCE: Final = 8  # sessions that are opened, used or closed side by side where no time is taken
WARM_UP: Final = 3
MEGABYTE: Final = 1e6
# What a figure may be above what it was before all sessions; of different namespaces nothing.
LEFT: Final = {"descriptors": 2, "sockets": 2, "threads": 2, "children": 0, "processes": 0}
# Asks over one connection, and says the median time of an answer in microseconds.
ASK: Final = """
import http.client, ssl, statistics, sys, time
name, port, path, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
connection = http.client.HTTPSConnection(name, port, timeout=60, context=ssl.create_default_context())
times = []
for _ in range(count + 20):
    begin = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    times.append(time.perf_counter() - begin)
print(statistics.median(times[20:]) * 1e6)
"""
ASKED: Final = 20 + REQUESTS


class WrongError(Exception):
    """A session did not do what it was told to, or did it under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One live session and the grant and call that it was opened with."""

    number: int
    session: str
    call: str
    grant: str

    @property
    def path(self) -> str:
        return f"/echo/of-{self.number}"


@dataclass(slots=True, kw_only=True)
class Crowd:
    """The live sessions, and who serves them."""

    runner: Runner
    control: Broker
    runner_daemon: RunnerDaemon
    broker_daemon: BrokerDaemon
    port: int
    asks: int = ASKS
    members: list[Member] = field(default_factory=list)
    issued: int = 0

    async def add(self) -> float:
        """Open one more session; how many seconds that took, its grant not included."""
        number = self.issued
        self.issued += 1
        call = f"call-{number}"
        grant = await self.control.issue(allow=[f"{NAME}:{self.port}"], call=call, ttl=3600)
        begin = time.perf_counter()
        opened = await self.runner.open_session(Authority(network="brokered", grant=grant.id, call=call))
        taken = time.perf_counter() - begin
        self.members.append(Member(number=number, session=opened.id, call=call, grant=grant.id))
        return taken

    async def grow(self, count: int) -> tuple[float, float]:
        """Grow to `count`; the time of one of the last starts, and what it cost, in seconds."""
        few = max(0, count - len(self.members) - STARTS)
        await side_by_side([self.add() for _ in range(few)])
        before, times = self._runner_cpu(), list[float]()
        while len(self.members) < count:
            times.append(await self.add())
        if not times:
            raise WrongError(f"{len(self.members)} sessions are open already")
        return statistics.median(times), (self._runner_cpu() - before) / len(times)

    async def point(self, count: int) -> dict[str, float]:
        """Grow to `count` sessions; the figures there."""
        start, start_cpu = await self.grow(count)
        newest = self.members[-1]
        request, request_cpu = await self._request_time(newest)
        command, command_cpu = await self._command_time(newest)
        return {
            "count": count,
            "start_ms": start * 1e3,
            "start_cpu_ms": start_cpu * 1e3,
            "request_us": request,
            "request_cpu_us": request_cpu * 1e6,
            "command_ms": command * 1e3,
            "command_cpu_ms": command_cpu * 1e3,
            **self._memory(),
        }

    async def use(self) -> None:
        """One request from each session. Raises WrongError."""
        await side_by_side([self._ask(member) for member in self.members])

    async def close(self) -> float:
        """Close all; how many seconds each took."""
        begin = time.perf_counter()
        await side_by_side([self._close(member) for member in self.members])
        return (time.perf_counter() - begin) / max(1, len(self.members))

    def check(self, lines: Iterable[dict[str, Any]]) -> None:
        """Whether each request is on record once, under its own session, call and grant. Raises WrongError."""
        expected = {(one.path, one.session, one.call, one.grant, "allow") for one in self.members}
        found = [
            (line["path"], line["session"], line["call"], line["grant"], line["verdict"])
            for line in lines
            if line["kind"] == "decision" and line.get("path", "").startswith("/echo/of-")
        ]
        if sorted(found) != sorted(expected):
            raise WrongError(f"{len(set(found) ^ expected)} of {len(expected)} requests are not on record as made")

    async def _ask(self, member: Member) -> None:
        ask = f"curl -sS -m 60 -o /dev/null -w '%{{http_code}}' https://{NAME}:{self.port}{member.path}"
        done = await self.runner.run_in(member.session, Call(bash=ask))
        if done.stdout != b"200":
            raise WrongError(f"session {member.number}: {done}")

    async def _close(self, member: Member) -> None:
        await self.runner.close_session(member.session)
        await self.control.revoke(member.grant)

    async def _request_time(self, member: Member) -> tuple[float, float]:
        """Microseconds of a request from that session, and the seconds that it costs the broker."""
        words = [NAME, str(self.port), "/bytes/100", str(REQUESTS)]
        call = Call(argv=["/usr/bin/python3", "-c", ASK, *words])
        times, spent = [], []
        for _ in range(self.asks):
            before = self._broker_cpu()
            done = await self.runner.run_in(member.session, call)
            if done.code != 0:
                raise WrongError(f"session {member.number}: {done}")
            times.append(float(done.stdout))
            spent.append((self._broker_cpu() - before) / ASKED)
        return min(times), min(spent)

    async def _command_time(self, member: Member) -> tuple[float, float]:
        before, times = self._runner_cpu(), []
        for _ in range(COMMANDS):
            begin = time.perf_counter()
            await self.runner.run_in(member.session, Call(argv=["/usr/bin/true"]))
            times.append(time.perf_counter() - begin)
        return statistics.median(times), (self._runner_cpu() - before) / COMMANDS

    def _broker_cpu(self) -> float:
        return cost_of(tree(pid_of(self.broker_daemon))).cpu

    def _runner_cpu(self) -> float:
        """Of the runner and of what it started and has waited for; the sandboxes that live do nothing."""
        return cost_of(tree(pid_of(self.runner_daemon))).cpu

    def _memory(self) -> dict[str, float]:
        broker = cost_of(tree(pid_of(self.broker_daemon))).memory
        own = set(self.runner_daemon.processes())
        everything = tree(pid_of(self.runner_daemon))
        return {
            "broker_mb": broker / MEGABYTE,
            "runner_mb": cost_of(own).memory / MEGABYTE,
            "sandboxes_mb": cost_of(everything - own).memory / MEGABYTE,
            "machine_mb": _used() / MEGABYTE,
        }


def pid_of(started: BrokerDaemon | RunnerDaemon) -> int:
    assert started.process is not None
    return started.process.pid


def _used() -> int:
    """Bytes of the whole machine that are not available any more, the kernel's own among them."""
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(rows[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - available) * 1024


async def side_by_side(work: Sequence[Any]) -> None:
    """All of it, so many at once."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(piece: Any) -> None:
        async with at_once:
            await piece

    await asyncio.gather(*map(one, work))


async def measure(counts: Sequence[int], *, asks: int = ASKS) -> dict[str, Any]:
    """Figures at each count, `close_ms` of each session in the end, and `left`: what was not there before.

    `asks`: how often the time of requests is taken. Raises WrongError.
    """
    with adopted() as left, tempfile.TemporaryDirectory(prefix="wicketgate-scale-") as place, ExitStack() as started:
        certificates = Path(place)
        certificates.chmod(0o755)
        origin = started.enter_context(start_https(certificates, names=(NAME,)))
        rule = RULE.format(name="inspected", host=NAME, port=origin.https, tls="inspect")
        resolve = f'[resolve]\n"{NAME}:{origin.https}" = ["127.0.0.1"]\n'
        broker = started.enter_context(broker_daemon(rule, extra=f'cacert = ["{origin.cacert}"]\n{resolve}'))
        runner = started.enter_context(daemon(extra=f'attach = "{broker.attach}"\nparked = 0'))
        async with _crowd(broker, runner, origin.https, asks) as crowd:
            await crowd.point(WARM_UP)  # loads what the others find loaded
            await crowd.close()
        wait_still()
        watch = Watch({"broker": pid_of(broker), "runner": pid_of(runner)}, {})
        before = watch.sample()
        async with _crowd(broker, runner, origin.https, asks) as crowd:
            points = [await crowd.point(count) for count in sorted(counts)]
            await crowd.use()
            crowd.check(broker.records())
            close = await crowd.close()
            open_sessions = [f"{one.id} is open" for one in await crowd.runner.sessions()]
            open_sessions += [f"{one.id} is attached" for one in await crowd.control.sessions()]
        await quiet(watch, left, QUIET_SECONDS)
        left_over = _left(before, watch.sample()) + open_sessions
    return {"points": points, "close_ms": close * 1e3, "left": left_over}


@asynccontextmanager
async def _crowd(broker: BrokerDaemon, runner: RunnerDaemon, port: int, asks: int) -> AsyncIterator[Crowd]:
    """Nobody yet; connections to both daemons for as long as it lasts."""
    async with runner.client() as client, Broker(broker.control) as control:
        yield Crowd(runner=client, control=control, runner_daemon=runner, broker_daemon=broker, port=port, asks=asks)


def _left(before: dict[str, float], after: dict[str, float]) -> list[str]:
    found = []
    for name, value in after.items():
        may = 0 if name.startswith("namespaces: ") else LEFT.get(name.rpartition(": ")[2])
        if may is not None and value - before.get(name, 0.0) > may:
            found.append(f"{name}: {before.get(name, 0.0):g} before, {value:g} now")
    return found


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or list(COUNTS)
    json.dump(asyncio.run(measure(counts)), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
