"""Background jobs: they belong to the runner and to no client; their output is bounded; their rights are kept."""

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.live.ptys import Pty
from tests.live.runners import Daemon, daemon
from wicketgate.runner.client import Authority, Call, Runner, RunnerError, data_of
from wicketgate.runner.schema import LimitsAsked, LogEnd, Output

pytestmark = pytest.mark.live


async def read(runner: Runner, job: str, *, offset: int = 0, follow: bool = False) -> tuple[bytes, LogEnd, int]:
    kept, end, cut = b"", None, 0
    async for event in runner.logs(job, offset=offset, follow=follow):
        if isinstance(event, Output):
            kept += data_of(event)
            cut += event.cut_bytes
        else:
            end = event
    assert end is not None
    return kept, end, cut


async def test_a_job_from_its_start_to_its_end(runner: Runner) -> None:
    job = await runner.start_job(Call(bash="echo out; echo err >&2; cat; exit 4", stdin="in\n"), name="the build")
    assert (job.state, job.name) == ("running", "the build")
    done = await runner.wait_job(job.id)
    assert (done.state, done.code, done.output_bytes) == ("ended", 4, 11)
    assert (await read(runner, job.id))[0] == b"out\nerr\nin\n"
    assert job.id in {one.id for one in await runner.jobs()}
    await runner.remove_job(job.id)
    with pytest.raises(RunnerError, match="unknown_id"):
        await runner.show_job(job.id)


async def test_following_ends_with_the_job(runner: Runner) -> None:
    job = await runner.start_job(Call(bash="for i in 1 2 3 4 5; do echo $i; sleep 0.1; done"))
    kept, end, _ = await read(runner, job.id, follow=True)
    assert (kept, end.state, end.offset) == (b"1\n2\n3\n4\n5\n", "ended", 10)
    assert (await read(runner, job.id, offset=4))[0] == b"3\n4\n5\n"


async def test_a_log_on_a_terminal_only_draws_and_in_a_pipe_is_what_was_written(served: Daemon, runner: Runner) -> None:
    written = b"\x1b[31mred\x1b[0m\x1b]52;c;ZXZpbA==\x07\x1b[6n\x1b[?1003h end\n"
    job = await runner.start_job(Call(argv=["printf", "%b", "".join(f"\\0{byte:o}" for byte in written)]))
    await runner.wait_job(job.id)
    words = [sys.executable, "-m", "wicketgate", "job", "logs", "--socket", str(served.socket), job.id]

    def person() -> None:
        with Pty(words) as pty:
            assert pty.end() == 0
            assert b"\x1b[31mred\x1b[0m" in pty.shown
            assert b"52;c" not in pty.shown
            assert b"\x1b[6n" not in pty.shown
            assert pty.shown.endswith(b"\x1b[?1003l")

    await asyncio.to_thread(person)
    piped = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True)
    assert piped.stdout == written


async def test_a_job_outlives_its_client(served: Daemon) -> None:
    async with served.client() as one:
        job = await one.start_job(Call(bash="sleep 1; echo later"))
    async with served.client() as other:
        assert (await other.wait_job(job.id)).state == "ended"
        assert (await read(other, job.id))[0] == b"later\n"


async def test_beginning_and_end_of_a_flood_are_kept_and_the_cut_is_told(runner: Runner) -> None:
    authority = Authority(limits=LimitsAsked(output_bytes=120_000))
    job = await runner.start_job(Call(bash="seq 1 300000"), authority)
    done = await runner.wait_job(job.id)
    whole = "".join(f"{number}\n" for number in range(1, 300_001)).encode()
    kept, end, cut = await read(runner, job.id)
    assert done.output_bytes == len(whole) == end.offset
    assert len(kept) <= 120_000
    assert cut == done.dropped_bytes == len(whole) - len(kept)
    assert kept.startswith(whole[:60_000])
    assert kept.endswith(whole[-20_000:]), "how it ended is what one wants to know"


async def test_waiting_has_an_end(runner: Runner) -> None:
    job = await runner.start_job(Call(bash="sleep 60"))
    assert (await runner.wait_job(job.id, seconds=0.1)).state == "running"
    with pytest.raises(RunnerError, match="busy"):
        await runner.remove_job(job.id)
    stopped = await runner.stop_job(job.id)
    assert stopped.state == "stopped"
    assert (await runner.stop_job(job.id)).state == "stopped"


async def test_what_is_written_is_the_servers_alone(served: Daemon, runner: Runner) -> None:
    job = await runner.start_job(Call(bash="echo secret"))
    await runner.wait_job(job.id)
    place = served.state / "jobs" / job.id
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    files = list(place.iterdir())
    assert len(files) == 2
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def no_records(identity: str, record: str) -> Iterator[str]:
    """What cannot be taken for the record of a job; ITSELF is the one in whose place it lies."""
    yield from ("", "{", "[]", "null", "7", '"x"', "{}", "[" * 100_000, '{"version": 2}', record)
    whole = json.loads(record) | {"id": "ITSELF"}
    for name, value in (
        *(("id", f"../jobs/{identity}"), ("id", 7), ("state", "running away"), ("argv", "words"), ("argv", [1])),
        *(("started_at", "noon"), ("started_at", 1e300), ("started_at", -1), ("ended_at", float("nan"))),
        *(("code", "0"), ("rights", {}), ("rights", None), ("rights", whole["rights"] | {"more": 1})),
        *(("set_aside", [{}]), ("name", None), ("output_bytes", 0.5)),
    ):
        yield json.dumps(whole | {name: value})
    for name in ("id", "argv", "started_at", "rights", "version"):
        yield json.dumps({key: value for key, value in whole.items() if key != name})


async def test_after_a_restart_of_the_runner() -> None:
    with daemon() as made:
        async with made.client() as runner:
            ended = await runner.start_job(Call(bash="echo kept; exit 3"), Authority(limits=LimitsAsked(tasks=99)))
            await runner.wait_job(ended.id)
            running = await runner.start_job(Call(bash="echo begun; sleep 600"))
            while not (await read(runner, running.id))[0]:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(made.stop, 9)
        # What a store says about rights counts for nothing more than it says plainly.
        record = made.state / "jobs" / ended.id / "job.json"
        document = json.loads(record.read_text())
        document["rights"] |= {"network": "open"}
        record.write_text(json.dumps(document))
        for number, content in enumerate(no_records(ended.id, record.read_text())):
            place = made.state / "jobs" / f"broken{number}"
            place.mkdir()
            (place / "job.json").write_text(content.replace("ITSELF", place.name))
        (made.state / "jobs" / running.id).chmod(0o500)  # as on a full disk: nothing can be noted
        await asyncio.to_thread(made.start)
        async with made.client() as runner:
            jobs = {one.id: one for one in await runner.jobs()}
            assert jobs.keys() == {ended.id, running.id}
            # Whichever comes first: the kernel, or the runner's own look at the process that was killed beside it.
            assert jobs[running.id].state in {"lost", "stopped"}
            assert (jobs[ended.id].state, jobs[ended.id].code) == ("ended", 3)
            assert jobs[ended.id].rights.network == "none"
            assert jobs[ended.id].rights.limits["tasks"] == 99
            assert (await read(runner, running.id))[0] == b"begun\n"
            assert (await read(runner, ended.id))[0] == b"kept\n"


async def test_the_rights_of_the_launch_are_kept(served: Daemon, runner: Runner) -> None:
    place = served.workspace("jobs-work")
    job = await runner.start_job(
        Call(bash="sleep 0.3; pwd"), Authority(workspace=str(place), call="call-7", timeout=50)
    )
    shown = (await runner.show_job(job.id)).rights
    assert (shown.workspace, shown.call, shown.timeout, shown.network) == (str(place), "call-7", 50, "none")
    await runner.wait_job(job.id)
    assert (await read(runner, job.id))[0].decode().strip() == str(place)


async def test_a_job_that_cannot_be_executed(runner: Runner) -> None:
    job = await runner.start_job(Call(argv=["./nope"]))
    assert (await runner.wait_job(job.id)).state == "failed"


async def test_a_job_that_ends_while_it_is_stopped_waited_for_and_removed(runner: Runner) -> None:
    for number in range(12):
        job = await runner.start_job(Call(bash="sleep 0.03; echo x"))
        await asyncio.sleep(0.006 * number)
        answers = await asyncio.gather(
            runner.stop_job(job.id),
            runner.stop_job(job.id),
            runner.wait_job(job.id),
            runner.remove_job(job.id),
            return_exceptions=True,
        )
        for one in answers:
            if isinstance(one, RunnerError):
                assert one.code in {"unknown_id", "busy"}, one
            else:
                assert not isinstance(one, BaseException), one
                assert one.state in {"ended", "stopped"}


async def test_a_job_that_is_removed_while_it_is_read_ends_the_reading_whole(runner: Runner) -> None:
    job = await runner.start_job(Call(bash="seq 1 800000"))
    await runner.wait_job(job.id)
    events = runner.logs(job.id)
    assert isinstance(await anext(events), Output)
    await runner.remove_job(job.id)
    rest = [event async for event in events]
    assert isinstance(rest[-1], LogEnd), "what is gone is cut, and the end is told"
    assert rest[-1].state == "ended"


async def test_a_job_whose_record_cannot_be_written_ends_all_the_same(served: Daemon, runner: Runner) -> None:
    """A full disk costs the record, not the job, nor those who follow it."""
    place = served.workspace("unwritten")
    script = "echo begun; until [ -e go ]; do sleep 0.02; done; echo over"
    job = await runner.start_job(Call(bash=script), Authority(workspace=str(place)))
    (served.state / "jobs" / job.id).chmod(0o500)
    (place / "go").touch()
    kept, end, _ = await asyncio.wait_for(read(runner, job.id, follow=True), 60)
    assert (kept, end.state) == (b"begun\nover\n", "ended")
    assert (await runner.stop_job(job.id)).state == "ended"
    (served.state / "jobs" / job.id).chmod(0o700)
