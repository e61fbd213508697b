"""What a session's payload, or the words of a call in it, may try against the runner and against its own end."""

import asyncio
import time

import pytest

from tests.live.runners import alive, daemon
from tests.live.runs import PATIENCE, PROMPTLY
from wicketgate.runner.client import Call, Runner, RunnerError

pytestmark = pytest.mark.live

# clone(2) with CLONE_PARENT: the child of a session's command would be the runner's.
SIBLING = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall({"x86_64": 56, "aarch64": 220}[platform.machine()], 0x8011, 0, 0, 0, 0) == 0:
    os._exit(0)
print(errno.errorcode[ctypes.get_errno()] if ctypes.get_errno() else "born")
"""
# Its first thread ends, which shows the whole process as dead in /proc; another one goes on.
HEADLESS = """
import ctypes, os, platform, sys, threading, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    threading.Thread(target=time.sleep, args=(600,)).start()
    print("up", flush=True)
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
time.sleep(600)
"""
# Stops whatever is born in the session, so that no command is ever executed.
STOPPER = """
import contextlib, os, signal
print("up", flush=True)
while True:
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGSTOP)
"""
# Names of directories are a model's to choose, and stand in what is told of a failure.
NAMES = ["no\nb", "no\npid 1", "no\npid 1\nfailed 2 execute", "no\r\u2028b", "no\udcff", "n" * 4096]


async def answers(runner: Runner) -> float:
    """How long the runner takes to answer somebody else."""
    begin = time.monotonic()
    await asyncio.wait_for(runner.health(), PROMPTLY)
    return time.monotonic() - begin


async def test_no_command_has_a_child_that_is_the_runners_own() -> None:
    with daemon() as served:
        async with served.client() as runner:
            opened = await runner.open_session()
            assert (await runner.run_in(opened.id, Call(python=SIBLING))).stdout == b"EPERM\n"
            await asyncio.wait_for(runner.close_session(opened.id), PROMPTLY)


async def test_a_process_whose_first_thread_has_ended_is_ended_with_its_call() -> None:
    with daemon() as served:
        async with served.client() as runner, runner.session() as opened:
            done = await runner.run_in(opened.id, Call(argv=["/usr/bin/python3", "-c", HEADLESS, "x"], timeout=2))
            assert (done.code, done.stdout) == (124, b"up\n")
            left = await runner.run_in(opened.id, Call(bash="ls -d /proc/[0-9]*/task/*"))
            assert [row for row in left.stdout.decode().split() if row.split("/")[2] not in row.split("/")[4]] == []
            assert not done.session_ended


async def test_a_session_that_stops_its_commands_stops_nothing_else() -> None:
    with daemon() as served:
        async with served.client() as runner, served.client() as other:
            opened = await runner.open_session()
            up = asyncio.Event()
            stopping = asyncio.create_task(
                runner.run_in(opened.id, Call(python=STOPPER, timeout=600), on_output=lambda _: up.set())
            )
            await asyncio.wait_for(up.wait(), PATIENCE)
            calls = [asyncio.create_task(runner.run_in(opened.id, Call(bash="true", timeout=1))) for _ in range(12)]
            while not all(call.done() for call in calls):
                await answers(other)
                assert (await other.run(Call(bash="echo fine"))).stdout == b"fine\n"
            refused = [str(call.exception()) for call in calls if call.exception() is not None]
            assert refused, "all of them were executed"
            assert all("have kept the command from beginning" in why for why in refused), refused
            await asyncio.wait_for(runner.close_session(opened.id), PROMPTLY)
            await asyncio.wait([stopping])


async def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    with daemon() as served:
        async with served.client() as runner:
            opened = await runner.open_session()
            up = asyncio.Event()
            stopping = asyncio.create_task(
                runner.run_in(opened.id, Call(python=STOPPER, timeout=600), on_output=lambda _: up.set())
            )
            await asyncio.wait_for(up.wait(), PATIENCE)
            calls = [asyncio.create_task(runner.run_in(opened.id, Call(bash="true"))) for _ in range(12)]
            await asyncio.wait(calls, timeout=0.5)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert (await runner.run(Call(bash="echo fine"))).stdout == b"fine\n"
            await asyncio.wait_for(runner.close_session(opened.id), PROMPTLY)
            await asyncio.wait([stopping])
            assert alive(STOPPER[:40]) == []


@pytest.mark.parametrize("name", NAMES)
async def test_the_name_of_a_directory_is_told_as_one(name: str) -> None:
    with daemon() as served:
        async with served.client() as runner, runner.session() as opened:
            if "\udcff" in name:
                with pytest.raises(UnicodeEncodeError):
                    await runner.run_in(opened.id, Call(bash="true", directory=name))
                return
            with pytest.raises(RunnerError) as refused:
                await asyncio.wait_for(runner.run_in(opened.id, Call(bash="true", directory=name)), PROMPTLY)
            assert refused.value.code == "bad_call"
            assert "cannot be entered in the sandbox" in refused.value.detail
            assert (await runner.run_in(opened.id, Call(bash="echo fine"))).stdout == b"fine\n"


async def test_the_end_of_a_first_call_is_not_that_of_its_session() -> None:
    with daemon(extra="parked = 0") as served:
        async with served.client() as runner:
            for _ in range(25):
                async with runner.session() as opened:
                    done = await runner.run_in(opened.id, Call(argv=["/usr/bin/sleep", "600"], timeout=0.001))
                    assert done.timed_out
                    assert (await runner.run_in(opened.id, Call(bash="echo fine"))).stdout == b"fine\n"
