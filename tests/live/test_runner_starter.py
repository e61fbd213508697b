"""The process that forks for the runner: as a program of its own and as a copy, and what its end means."""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.runners import Daemon, alive, daemon
from tests.live.runs import NEXT, STARTER, children, name, until
from wicketgate.runner.client import Call, RunnerError

pytestmark = pytest.mark.live

RUNNER = 2  # of the daemon's processes
# An interpreter that cannot be executed again stands for one that the serving user may not read.
AS_A_COPY = ("-c", "import sys; sys.executable = '/nonexistent'; from wicketgate.__main__ import main; main()")
RIGHTS = Call(
    bash="grep -E '^(Cap|NoNewPrivs|Seccomp:|SigBlk|SigIgn)' /proc/self/status; ls /proc/self/fd; ulimit -a; umask"
)


def named(made: Daemon) -> set[int]:
    return {pid for pid in children(made.processes()[RUNNER]) if name(pid) == STARTER}


def memory(pid: int) -> int:
    """Kilobytes that are its own or a copy of its parent's."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0])


async def test_a_command_is_the_same_from_a_program_and_from_a_copy() -> None:
    reports = []
    for program in (("-m", "wicketgate"), AS_A_COPY):
        with daemon(extra="parked = 0", program=program) as made:
            async with made.client() as runner, runner.session() as session:
                done = await runner.run(RIGHTS)
                entered = await runner.run_in(session.id, RIGHTS)
                assert done.code == entered.code == 0
                assert b"CapEff:\t0000000000000000" in done.stdout
                assert b"CapBnd:\t0000000000000000" in entered.stdout
                assert b"CapAmb:\t0000000000000000" in entered.stdout
                with pytest.raises(RunnerError, match="command_not_found"):
                    await runner.run_in(session.id, Call(argv=["/usr/bin/no-such"]))
            reports.append((done.stdout, entered.stdout))
            is_copy = memory(made.starter()) > memory(made.processes()[RUNNER]) * 2 // 3
            assert is_copy or program != AS_A_COPY
    assert reports[0] == reports[1]


@pytest.mark.parametrize("victim", [Daemon.starter, lambda made: made.processes()[RUNNER]])
async def test_none_of_the_two_goes_on_without_the_other(victim: Callable[[Daemon], int]) -> None:
    mark = f"mark-{secrets.token_hex(6)}"
    with daemon(extra="parked = 2") as made:
        async with made.client() as runner:
            running = asyncio.create_task(runner.run(Call(bash=f"exec -a {mark} sleep 999")))
            await asyncio.to_thread(until, lambda: alive(mark))
            both = [made.processes()[RUNNER], made.starter()]
            os.kill(victim(made), signal.SIGKILL)
            with pytest.raises(RunnerError):
                await running
        assert made.process is not None
        await asyncio.to_thread(made.process.wait, 20)
        until(lambda: not alive(mark) and not any(Path(f"/proc/{pid}").exists() for pid in both))


@pytest.mark.root_only
async def test_what_waits_in_a_session_serves_one_call_and_ends_with_it() -> None:
    with daemon(extra="parked = 0") as made:
        async with made.client() as runner:
            if (await runner.health()).bounds == "none":
                pytest.skip("nothing waits where there are no control groups")
            ours = {made.starter()}
            async with runner.session() as session:
                served: set[int] = set()
                for number in range(3):
                    waits = await asyncio.to_thread(until, lambda: in_session(made, ours | served))
                    assert (await runner.run_in(session.id, Call(bash=f"exit {number}"))).code == number
                    served.add(waits)
                waits = await asyncio.to_thread(until, lambda: in_session(made, ours | served))
                os.kill(waits, signal.SIGKILL)
                await asyncio.to_thread(until, lambda: Path(f"/proc/{waits}/stat").read_text().split()[2] == "Z")
                assert (await runner.run_in(session.id, Call(bash="exit 9"))).code == 9
            assert named(made) == ours
            assert set(children(made.processes()[RUNNER])) - waiting(made) == ours


async def test_what_waits_for_the_next_sandbox_serves_that_one_and_may_be_killed() -> None:
    with daemon(extra="parked = 0") as made:
        async with made.client() as runner:
            (first,) = await asyncio.to_thread(until, lambda: waiting(made))
            async with runner.session(), runner.session():
                assert name(first) == "bwrap", "it became the first of the two"
            (second,) = await asyncio.to_thread(until, lambda: waiting(made))
            os.kill(second, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: Path(f"/proc/{second}/stat").read_text().split()[2] == "Z")
            assert (await runner.run(Call(bash="exit 9"))).code == 9
            (third,) = await asyncio.to_thread(until, lambda: waiting(made))
            assert {first, second, third} & set(children(made.processes()[RUNNER])) == {third}
    await asyncio.to_thread(until, lambda: not Path(f"/proc/{third}").exists())


async def test_what_waits_for_the_next_sandbox_can_nothing_that_the_starter_cannot() -> None:
    with daemon(extra="parked = 0") as made:
        (pid,) = await asyncio.to_thread(until, lambda: waiting(made))
        assert rights(pid) == rights(made.starter())
        if os.geteuid() != 0:  # it shows nothing more to its own user, as the starter itself
            for of in (pid, made.starter()):
                with pytest.raises(PermissionError):
                    os.listdir(f"/proc/{of}/fd")
            return
        held = {str(place.readlink()) for place in Path(f"/proc/{pid}/fd").iterdir() if int(place.name) > 2}
        assert len(held) == 1
        assert held.pop().startswith("socket:"), "its own channel, and nothing of the runner's"
        assert Path(f"/proc/{pid}/environ").read_bytes() == Path(f"/proc/{made.starter()}/environ").read_bytes()


def in_session(made: Daemon, others: set[int]) -> int | None:
    """Who waits in the one session. What waits for the next sandbox is like it at first: that one is there already."""
    found = named(made) - others
    return found.pop() if waiting(made) and len(found) == 1 else None


def waiting(made: Daemon) -> set[int]:
    """Who waits for the next sandbox."""
    return {pid for pid in children(made.processes()[RUNNER]) if name(pid) == NEXT}


def rights(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("Uid", "Gid", "Groups", "Cap", "NoNewPrivs"))]
