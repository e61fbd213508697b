"""The runner's foreground calls and sessions: what comes back, what is bounded, what is shared."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from tests.live.runners import Daemon
from wicketgate.runner.client import Authority, Call, Runner, RunnerError
from wicketgate.runner.schema import Ended, LimitsAsked, Output, Started

pytestmark = pytest.mark.live


async def test_bash_python_and_arguments(runner: Runner) -> None:
    bash = await runner.run(Call(bash="echo out; echo err >&2; exit 3"))
    assert (bash.code, bash.stdout, bash.stderr, bash.timed_out) == (3, b"out\n", b"err\n", False)
    python = await runner.run(Call(python="import sys; print(sys.version_info[0]); sys.exit(5)"))
    assert (python.code, python.stdout) == (5, b"3\n")
    words = await runner.run(Call(argv=["printf", "%s|", "a b", "$HOME", "ü"]))
    assert words.stdout == "a b|$HOME|ü|".encode()


async def test_a_signal_is_told_as_a_shell_tells_it(runner: Runner) -> None:
    assert (await runner.run(Call(bash="kill -SEGV $$"))).code == 128 + signal.SIGSEGV


async def test_standard_input_is_fed_and_closed(runner: Runner) -> None:
    text = "ä" * 700_000
    done = await runner.run(Call(bash="cat", stdin=text))
    assert done.stdout == text.encode()
    assert (await runner.run(Call(bash="cat; echo end"))).stdout == b"end\n"
    assert (await runner.run(Call(bash="exit 0", stdin=text))).code == 0, "a command that does not read is no error"


async def test_output_comes_while_the_command_runs(runner: Runner) -> None:
    events = runner.stream(Call(bash="echo first; read -t 30 < <(sleep 30); echo never"))
    assert isinstance(await anext(events), Started)
    first = await anext(events)
    assert isinstance(first, Output)
    assert first.text == "first\n"
    await events.aclose()  # type: ignore[attr-defined]


async def test_bytes_that_are_no_text_come_back_whole(runner: Runner) -> None:
    every = await runner.run(Call(python="import os; os.write(1, bytes(range(256)) * 300)"))
    assert every.stdout == bytes(range(256)) * 300
    cut = "import os, time\nfor byte in '€ü𝄞'.encode():\n os.write(1, bytes([byte])); time.sleep(0.02)"
    texts = [event.text async for event in runner.stream(Call(python=cut)) if isinstance(event, Output)]
    assert "".join(text for text in texts if text is not None) == "€ü𝄞", "no character is cut in two"


async def test_output_is_bounded_and_the_cut_is_told(runner: Runner) -> None:
    authority = Authority(limits=LimitsAsked(output_bytes=100_000))
    done = await runner.run(Call(bash="head -c 5000000 /dev/zero | tr '\\0' x; echo end >&2"), authority)
    assert done.code == 0, "a flood is thrown away, it does not hang the command"
    assert len(done.stdout) + len(done.stderr) == 100_000
    assert done.dropped_bytes == 5_000_004 - 100_000


async def test_a_timeout_of_the_call_can_only_shorten_the_authoritys(runner: Runner) -> None:
    short = await runner.run(Call(bash="sleep 60", timeout=0.3), Authority(timeout=30))
    assert (short.code, short.timed_out) == (124, True)
    bounded = await runner.run(Call(bash="sleep 60", timeout=60), Authority(timeout=0.3))
    assert bounded.timed_out


async def test_a_command_may_end_politely_at_its_timeout(runner: Runner) -> None:
    done = await runner.run(Call(bash="trap 'echo bye; exit 0' TERM; sleep 60 & wait", timeout=0.3))
    assert (done.code, done.timed_out, done.stdout) == (124, True, b"bye\n")


async def test_many_at_once(runner: Runner) -> None:
    done = await asyncio.gather(*(runner.run(Call(bash=f"echo {number}")) for number in range(24)))
    assert [one.stdout for one in done] == [b"%d\n" % number for number in range(24)]


async def test_the_working_directory_lies_below_the_workspace(served: Daemon, runner: Runner) -> None:
    place = served.workspace()
    await runner.run(Call(bash="mkdir -p a/b; ln -sfn / out"), Authority(workspace=str(place)))
    inside = await runner.run(Call(bash="pwd", directory="a/b"), Authority(workspace=str(place)))
    assert inside.stdout.decode().strip() == str(place / "a" / "b")
    for wrong in ("..", "a/../..", "/etc", "a/b/.."):
        with pytest.raises(RunnerError) as refused:
            await runner.run(Call(bash="pwd", directory=wrong), Authority(workspace=str(place)))
        assert refused.value.status == 400
    led_out = await runner.run(Call(bash="pwd -P; ls", directory="out"), Authority(workspace=str(place)))
    assert b"home" in led_out.stdout, "a link leads to the sandbox's own root, not to the host's"
    assert b"root" not in led_out.stdout


async def test_what_is_made_in_the_workspace_is_the_serving_users(served: Daemon, runner: Runner) -> None:
    place = served.workspace()
    await runner.run(Call(bash="echo x > made; mkdir made.d"), Authority(workspace=str(place)))
    assert (place / "made").stat().st_uid == place.stat().st_uid
    assert not {".git", ".vscode", ".envrc"} & {path.name for path in place.iterdir()}, "no litter"


async def test_many_on_one_workspace(served: Daemon, runner: Runner) -> None:
    authority = Authority(workspace=str(served.workspace("shared")))
    for _ in range(3):
        done = await asyncio.gather(
            *(runner.run(Call(bash=f"sleep 0.{number}; echo {number} > f{number}"), authority) for number in range(8))
        )
        assert [one.code for one in done] == [0] * 8
    assert {path.name for path in served.workspace("shared").iterdir()} == {f"f{number}" for number in range(8)}


async def test_what_could_run_outside_is_set_aside_and_told(served: Daemon, runner: Runner) -> None:
    place = served.workspace("planted")
    done = await runner.run(
        Call(bash="mkdir -p sub/.vscode && echo {} > sub/.vscode/tasks.json"), Authority(workspace=str(place))
    )
    assert any("sub/.vscode" in line for line in done.set_aside)
    assert not (place / "sub" / ".vscode").exists()


@pytest.mark.parametrize(
    "typed", ["/", "/etc", "/usr/local", "/home", "/root", "relative", "", "/nonexistent/x", "/tmp"]
)
async def test_a_refused_workspace_runs_nothing(runner: Runner, typed: str) -> None:
    with pytest.raises(RunnerError) as refused:
        await runner.run(Call(bash="echo ran"), Authority(workspace=typed))
    assert (refused.value.code, refused.value.status) == ("bad_workspace", 400)
    assert refused.value.problem.reason


async def test_the_runners_own_places_are_no_workspace(served: Daemon, runner: Runner) -> None:
    for place in (served.state, served.directory, served.socket.parent):
        with pytest.raises(RunnerError, match="bad_workspace"):
            await runner.run(Call(bash="true"), Authority(workspace=str(place)))


async def test_no_network_without_a_broker_and_never_by_default(runner: Runner) -> None:
    look = "cat /proc/net/dev | tail -n +3 | cut -d: -f1; ip addr 2>/dev/null | grep -c inet || true"
    assert b"eth" not in (await runner.run(Call(bash=look))).stdout
    with pytest.raises(RunnerError) as refused:
        await runner.run(Call(bash="echo ran"), Authority(network="brokered"))
    assert (refused.value.code, refused.value.status) == ("broker_gone", 503)


async def test_a_command_that_does_not_exist(runner: Runner) -> None:
    nowhere = await runner.run(Call(argv=["./nope"]))
    assert nowhere.code == 127
    assert b"nope" in nowhere.stderr
    with pytest.raises(RunnerError) as refused:
        await runner.run(Call(argv=["no-such-command"]))
    assert (refused.value.code, refused.value.status) == ("command_not_found", 400)


# ---- sessions -------------------------------------------------------------------------------------------------------


async def test_calls_of_a_session_share_one_sandbox(runner: Runner) -> None:
    async with runner.session() as session:
        first = "echo hello > /tmp/note; echo x > ~/kept; (sleep 300 & echo $! > /tmp/pid); mkfifo /run/f"
        assert (await runner.run_in(session.id, Call(bash=first))).code == 0
        second = "cat /tmp/note ~/kept; kill -0 $(cat /tmp/pid) && echo lives; test -p /run/f && echo fifo"
        assert (await runner.run_in(session.id, Call(bash=second))).stdout == b"hello\nx\nlives\nfifo\n"
    with pytest.raises(RunnerError, match="unknown_id"):
        await runner.run_in(session.id, Call(bash="true"))


async def test_a_session_that_is_over_may_be_left(runner: Runner) -> None:
    async with runner.session() as session:
        both = await asyncio.gather(
            runner.close_session(session.id), runner.close_session(session.id), return_exceptions=True
        )
        assert {getattr(one, "code", "closed") for one in both} <= {"closed", "unknown_id"}


async def test_sessions_share_nothing(runner: Runner) -> None:
    async with runner.session() as one, runner.session() as other:
        await runner.run_in(one.id, Call(bash="echo secret > /tmp/note; echo secret > /dev/shm/note; sleep 300 &"))
        seen = await runner.run_in(other.id, Call(bash="ls /tmp /dev/shm; pgrep -c sleep"))
        assert seen.stdout == b"/dev/shm:\n\n/tmp:\n1\n", "its own first process only"


async def test_a_timeout_ends_the_call_and_leaves_the_session(runner: Runner) -> None:
    async with runner.session() as session:
        await runner.run_in(session.id, Call(bash="exec -a before-it sleep 300 >/dev/null 2>&1 &"))
        script = "(setsid bash -c '(exec -a planted sleep 300 &)' &); exec sleep 300"
        done = await runner.run_in(session.id, Call(bash=script, timeout=0.4))
        assert done.timed_out
        left = await runner.run_in(session.id, Call(bash="pgrep -f 'planted|before-it' -a"))
        assert b"before-it" in left.stdout, "what an earlier call left is not this call's"
        assert b"planted" not in left.stdout


async def test_a_call_that_ends_leaves_its_background_in_peace(runner: Runner) -> None:
    async with runner.session() as session:
        noisy = "(while echo noise; do echo >>/tmp/rounds; sleep 0.05; done) & echo started"
        started = await runner.run_in(session.id, Call(bash=noisy))
        assert started.code == 0
        assert started.stdout.startswith((b"started", b"noise"))
        # It writes on into what nobody reads, a few times more.
        more = "begun=$(wc -l </tmp/rounds); until [ $(wc -l </tmp/rounds) -gt $((begun + 3)) ]; do sleep 0.02; done"
        assert (await runner.run_in(session.id, Call(bash=more, timeout=30))).code == 0


async def test_a_session_that_kills_itself_is_over(runner: Runner) -> None:
    session = await runner.open_session()
    await runner.run_in(session.id, Call(bash="kill -9 2; sleep 5"))
    with pytest.raises(RunnerError) as refused:
        await runner.run_in(session.id, Call(bash="true"))
    assert refused.value.code in {"unknown_id", "session_over"}


async def test_an_interpreter_line_cannot_reach_the_runners_program(served: Daemon, runner: Runner) -> None:
    """A script whose interpreter is /proc/self/exe would execute whatever executes it (CVE-2019-5736)."""
    place = served.workspace("exe")
    async with runner.session(Authority(workspace=str(place))) as session:
        await runner.run_in(session.id, Call(bash="printf '#!/proc/self/exe\\n' > trap; chmod +x trap"))
        done = await runner.run_in(session.id, Call(argv=["./trap", "--version"], timeout=1))
        assert b"ython" not in done.stdout + done.stderr
        assert done.timed_out, "it executes the program in between, again and again"


async def test_a_waiting_command_shows_nothing_of_the_runner(runner: Runner) -> None:
    """While commands join, others in the session try to read their memory, program and descriptors."""
    spy = """
import glob, os
seen = set()
open('/tmp/looking', 'w').close()
while not os.path.exists('/tmp/over'):
    for path in glob.glob('/proc/[0-9]*/exe'):
        try:
            seen.add(os.readlink(path))
        except OSError:
            pass
    for path in glob.glob('/proc/[0-9]*/mem'):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            pass
print('\\n'.join(sorted(seen)))
"""
    async with runner.session() as session:
        watching = asyncio.ensure_future(runner.run_in(session.id, Call(python=spy)))
        await runner.run_in(session.id, Call(bash="until [ -e /tmp/looking ]; do sleep 0.02; done"))
        for _ in range(40):
            await runner.run_in(session.id, Call(argv=["/bin/true"]))
        await runner.run_in(session.id, Call(bash="touch /tmp/over"))
        programs = (await watching).stdout.decode().split()
    outside = [program for program in programs if not program.startswith("/usr/")]
    assert not outside
    assert os.path.realpath("/proc/self/exe") not in programs or programs == ["/usr/bin/python3"]


async def test_events_end_with_the_honest_end(runner: Runner) -> None:
    events = [event async for event in runner.stream(Call(bash="echo a"))]
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Ended)


def test_an_ordinary_command_line(served: Daemon) -> None:
    """The commands and the API are one thing: what one started the other shows."""
    environ = os.environ | {"WICKETGATE_RUNNER": str(served.socket)}

    def cli(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "wicketgate", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)

    job = cli("job", "start", "--name", "a job", "--", "bash", "-c", "echo hi; exit 4").stdout.strip()
    assert cli("job", "wait", job).returncode == 4
    assert cli("job", "logs", job).stdout == "hi\n"
    assert "a job" in cli("job", "list").stdout
    term = cli("term", "open").stdout.strip()
    assert cli("term", "run", term, "echo yes; (exit 6)").returncode == 6
    assert "yes" in cli("term", "read", term).stdout
    assert cli("term", "close", term).returncode == 0
    assert cli("workspace", "check", "/").returncode == 125
    assert cli("workspace", "check", str(served.workspace())).stdout.strip() == str(served.workspace())
    missing = cli("job", "list", "--socket", "/nonexistent.sock")
    assert (missing.returncode, missing.stdout) == (125, "")
