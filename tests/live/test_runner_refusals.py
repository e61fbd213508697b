"""Fail closed, in the daemon: each thing that a sandbox needs is taken away from a real runner.

Every route refuses with the stable code and a sentence, nothing is executed, nothing weaker is built, and the daemon
goes on and serves the next call.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.live.daemons import broker_daemon
from tests.live.runners import Daemon, daemon, serving_uid
from tests.live.runs import NEXT, children, name, until
from tests.tree import ROOT
from wicketgate.runner.client import Authority, Call, Completed, RunnerError

pytestmark = pytest.mark.live
PYTHON = sys.executable
# /usr/bin is empty for the runner alone; what else it needs is elsewhere.
WITHOUT = "mount -t tmpfs none /usr/bin"
INSTEAD = "mount --bind {place}/bwrap /usr/bin/bwrap"
NOT_LINUX = (
    "import sys, types; import sandbox.host; sandbox.host.sys = types.SimpleNamespace(platform='darwin');"
    "from wicketgate.cli import main; sys.exit(main(sys.argv[1:]))"
)


def in_a_mount_namespace(script: str) -> tuple[str, ...]:
    """A prefix that changes what the runner sees of the file system, and then is the runner. Only root has one."""
    return ("/usr/bin/unshare", "--mount", "/bin/sh", "-c", f'{script} && exec "$@"', "sh")


def bwrap(place: Path, owner: int, mode: int) -> None:
    """Another bubblewrap, in the wrong hands."""
    shutil.copy("/usr/bin/bwrap", place / "bwrap")
    os.chown(place / "bwrap", owner, 0)
    (place / "bwrap").chmod(mode)


@contextmanager
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="wicketgate-launcher-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


async def refused_everywhere(made: Daemon, authority: Authority) -> set[tuple[str, int, str]]:
    """Try each route; what each was refused with. Raises where one was not, or something was executed."""
    mark = made.directory / "mark"
    script = Call(bash=f"touch ran; echo ran >{mark}")
    found = set()
    async with made.client() as runner:
        for ask in (
            lambda: runner.run(script, authority),
            lambda: runner.open_session(authority),
            lambda: runner.start_job(script, authority),
            lambda: runner.open_terminal(authority=authority),
        ):
            with pytest.raises(RunnerError) as refused:
                await ask()
            found.add((refused.value.code, refused.value.status, refused.value.detail))
        assert await runner.sessions() == []
        assert await runner.terminals() == []
        assert not [job for job in await runner.jobs() if job.state == "running"]
        health = await runner.health()
        assert (health.sessions, health.jobs_running, health.terminals) == (0, 0, 0)
        assert made.process is not None
        assert made.process.poll() is None, "the daemon goes on"
    assert not mark.exists()
    assert "Traceback" not in made.log
    return found


def health(made: Daemon) -> "subprocess.CompletedProcess[str]":
    """What a health check asks."""
    words = [PYTHON, "-m", "wicketgate", "health", "--runner", str(made.socket)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


CASES = [
    ("no bwrap", None, WITHOUT, "no_bwrap", "bubblewrap is not usable at /usr/bin/bwrap"),
    ("writable by everybody", (0, 0o757), INSTEAD, "untrusted_bwrap", "can be written by others than root"),
    ("writable by a group", (0, 0o775), INSTEAD, "untrusted_bwrap", "can be written by others than root"),
    ("set-uid", (0, 0o4755), INSTEAD, "untrusted_bwrap", "is set-id"),
    ("set-gid", (0, 0o2755), INSTEAD, "untrusted_bwrap", "is set-id"),
    ("another user's", (1234, 0o755), INSTEAD, "untrusted_bwrap", "is owned by user 1234, not by root"),
]


def check(found: set[tuple[str, int, str]], code: str, words: str) -> None:
    assert len(found) == 1, "one answer on every route"
    ((told, status, detail),) = found
    assert (told, status) == (code, 503)
    assert words in detail
    assert detail.count(". ") >= 1, "a cause and a cure"


@pytest.mark.root_only
@pytest.mark.parametrize(
    ("launcher", "script", "code", "words"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
async def test_a_launcher_that_is_missing_or_cannot_be_trusted(
    launcher: tuple[int, int] | None, script: str, code: str, words: str
) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(place())
        if launcher is not None:
            bwrap(other, *launcher)
        prefix = in_a_mount_namespace(script.format(place=other))
        made = stack.enter_context(daemon(prefix=prefix))
        check(await refused_everywhere(made, Authority(workspace=str(made.workspace()))), code, words)
        async with made.client() as runner:
            assert (await runner.health()).refused == code
            assert await runner.check_workspace(str(made.workspace())), "what needs no sandbox works"
        assert words in made.log, "and whoever started it can read it"
        ill = health(made)
        assert ill.returncode == 1
        assert words in ill.stderr


@pytest.mark.root_only
async def test_the_oracle_a_good_launcher_in_the_same_place_is_used() -> None:
    with place() as other, ExitStack() as stack:
        bwrap(other, 0, 0o755)
        prefix = in_a_mount_namespace(INSTEAD.format(place=other))
        made = stack.enter_context(daemon(prefix=prefix, extra="parked = 0"))  # nobody can write it while one waits
        async with made.client() as runner:
            assert (await runner.run(Call(bash="echo ran"))).stdout == b"ran\n"
            # It is changed in place while the runner serves: refused at the next call, and works when it is as it was.
            for mode in (0o4755, 0o777, 0o700):
                (other / "bwrap").chmod(mode)
                check(await refused_everywhere(made, Authority()), "untrusted_bwrap", "changed in place")
                assert (await runner.health()).refused == "untrusted_bwrap"
                assert (await asyncio.to_thread(health, made)).returncode == 1
            (other / "bwrap").chmod(0o755)
            assert (await runner.health()).refused is None
            assert (await asyncio.to_thread(health, made)).returncode == 0
            assert (await runner.run(Call(bash="echo ran"))).stdout == b"ran\n"
            with (other / "bwrap").open("r+b") as file:
                file.seek(5000)
                file.write(b"x")
            check(await refused_everywhere(made, Authority()), "untrusted_bwrap", "changed in place")
            # An upgrade replaces it: what was trusted is used on, by its descriptor.
    with place() as other, ExitStack() as stack:
        bwrap(other, 0, 0o755)
        made = stack.enter_context(daemon(prefix=in_a_mount_namespace(INSTEAD.format(place=other))))
        (other / "bwrap").unlink()
        async with made.client() as runner:
            assert (await runner.run(Call(bash="echo ran"))).stdout == b"ran\n"


async def test_no_user_namespaces() -> None:
    with daemon(prefix=(PYTHON, "-m", "tests.live.without_namespaces")) as made:
        found = await refused_everywhere(made, Authority(workspace=str(made.workspace())))
        check(found, "no_user_namespaces", "The kernel refuses a user namespace")
        async with made.client() as runner:
            assert (await runner.health()).refused == "no_user_namespaces"


async def test_not_linux() -> None:
    with daemon(program=("-c", NOT_LINUX)) as made:
        check(await refused_everywhere(made, Authority()), "not_linux", "runs on Linux only, not on darwin")


# ---- the broker ------------------------------------------------------------------------------------------------------


async def test_the_broker_is_gone_was_never_there_or_is_another() -> None:
    with tempfile.TemporaryDirectory(prefix="wicketgate-attach-") as directory:
        Path(directory).chmod(0o755)
        attach = Path(directory) / "attach.sock"
        with daemon(extra=f'attach = "{attach}"') as made:
            brokered = Authority(network="brokered", workspace=str(made.workspace()))
            check(await refused_everywhere(made, brokered), "broker_gone", "cannot be reached")
            attach.write_text("no socket")
            check(await refused_everywhere(made, brokered), "broker_gone", "cannot be reached")
            attach.unlink()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.bind(str(attach))
                attach.chmod(0o777)
                check(await refused_everywhere(made, brokered), "broker_gone", "cannot be reached")  # nobody listens
            attach.unlink()
            async with made.client() as runner:
                assert (await runner.run(Call(bash="echo alone"))).stdout == b"alone\n", "who needs none has all"


RULE = '[[rule]]\nname = "r"\naction = "allow"\nhosts = ["origin.example"]\nports = [443]\n'


@pytest.mark.root_only
async def test_the_trust_kit_cannot_be_made() -> None:
    """The system's roots are gone for the runner alone: what the broker signs could be trusted, and nothing else."""
    hide = "for each in /etc/ssl /etc/pki; do if [ -d $each ]; then mount -t tmpfs none $each; fi; done"
    with broker_daemon(RULE) as broker:
        with daemon(extra=f'attach = "{broker.attach}"', prefix=in_a_mount_namespace(hide)) as made:
            brokered = Authority(network="brokered", workspace=str(made.workspace()))
            check(await refused_everywhere(made, brokered), "no_trust_bundle", "missing trust bundle")
            assert broker.ask("GET", "/v1/sessions")[1]["sessions"] == [], "no lease is left at the broker"
            async with made.client() as runner:
                assert (await runner.run(Call(bash="echo alone"))).stdout == b"alone\n"
        with daemon(extra=f'attach = "{broker.attach}"') as made:
            async with made.client() as runner:
                done = await runner.run(Call(bash="echo ran"), Authority(network="brokered"))
                assert done.stdout == b"ran\n", "the oracle: with the roots in place it starts"


# ---- workspaces ------------------------------------------------------------------------------------------------------


def removed(path: Path) -> None:
    path.rmdir()


def a_file(path: Path) -> None:
    path.rmdir()
    path.write_text("")


def a_fifo(path: Path) -> None:
    path.rmdir()
    os.mkfifo(path)


def a_link_out(path: Path) -> None:
    path.rmdir()
    path.symlink_to("/etc")


def closed_to_its_owner(path: Path) -> None:
    path.chmod(0o500)


def a_link_to_itself(path: Path) -> None:
    path.rmdir()
    path.symlink_to(path.name)


BREAKS: list[tuple[Callable[[Path], None], str]] = [
    (removed, "not_found"),
    (a_file, "not_a_directory"),
    (a_fifo, "not_a_directory"),
    (a_link_out, "system_root"),
    (a_link_to_itself, "symlink"),
    (closed_to_its_owner, "not_accessible"),
]


@pytest.mark.parametrize(("break_it", "reason"), BREAKS, ids=[row[0].__name__ for row in BREAKS])
async def test_a_workspace_that_breaks_after_it_was_chosen(
    served: Daemon, break_it: Callable[[Path], None], reason: str
) -> None:
    chosen = served.workspace(f"breaks-{break_it.__name__}")
    async with served.client() as runner:
        user = f"user-{break_it.__name__}"
        await runner.check_workspace(str(chosen), user=user)
        assert (await runner.run(Call(bash="pwd"), Authority(user=user))).stdout.decode() == f"{chosen}\n"
        break_it(chosen)
        for authority in (Authority(user=user), Authority(workspace=str(chosen))):
            for code, status, _ in await refused_everywhere(served, authority):
                assert (code, status) == ("bad_workspace", 400)
        with pytest.raises(RunnerError) as refused:
            await runner.run(Call(bash="true"), Authority(user=user))
        assert refused.value.problem.reason == reason
        assert (await runner.run(Call(bash="echo next"))).stdout == b"next\n"


# ---- limits of the machine -------------------------------------------------------------------------------------------


def limit(pid: int, name: str, soft: int) -> int:
    """Set a soft limit of the runner, as the user it runs as; the one before."""
    drop = {"user": serving_uid(), "group": serving_uid(), "extra_groups": []} if os.geteuid() == 0 else {}
    words = ["/usr/bin/prlimit", "--pid", str(pid), "--raw", "--noheadings", f"--{name}"]
    told = subprocess.run([*words[:-1], words[-1], "-o", "SOFT"], check=True, capture_output=True, **drop)  # type: ignore[call-overload]
    subprocess.run([*words[:3], f"--{name}={soft}:"], check=True, **drop)  # type: ignore[call-overload]
    return int(told.stdout)


def end_next(made: Daemon) -> None:
    """Kill what waits for the next sandbox, and would serve it without the runner's having to do anything."""
    waits = until(lambda: next((pid for pid in children(made.processes()[2]) if name(pid) == NEXT), 0))
    os.kill(waits, signal.SIGKILL)
    until(lambda: Path(f"/proc/{waits}/stat").read_text().split()[2] == "Z")


def descriptors(pid: int) -> int:
    """How many the runner has open. Only root may look: it shows nothing to its own user."""
    return len(os.listdir(f"/proc/{pid}/fd")) if os.geteuid() == 0 else 0


@pytest.mark.parametrize(
    "who", [lambda made: made.processes()[2], Daemon.starter], ids=["runner", "the one that forks"]
)
async def test_the_runner_has_no_descriptors_left(who: Callable[[Daemon], int]) -> None:
    with daemon(extra="parked = 0") as made:
        pid = who(made)
        seen = set()
        async with made.client() as runner:
            await runner.run(Call(bash="true"))  # what is opened once and kept is open then
            open_before = await asyncio.to_thread(descriptors, pid)
            for soft in (4, 6, 8, *range(10, 64, 4)):
                await asyncio.to_thread(end_next, made)
                before = await asyncio.to_thread(limit, pid, "nofile", soft)
                outcome = await asyncio.gather(runner.run(Call(bash="echo ran")), return_exceptions=True)
                await asyncio.to_thread(limit, pid, "nofile", before)
                match outcome[0]:
                    case RunnerError(code=code):
                        seen.add(code)
                    case Completed(stdout=stdout):
                        assert stdout == b"ran\n"
                assert (await runner.run(Call(bash="echo next"))).stdout == b"next\n"
            await asyncio.to_thread(end_next, made)
            await asyncio.to_thread(until, lambda: descriptors(pid) <= open_before + 1)  # the channel of what was ended
        assert seen
        assert seen <= {"exhausted", "sandbox_failed"}, seen
        assert "Traceback" not in made.log


async def test_the_runner_may_start_no_process() -> None:
    with daemon(extra="parked = 0") as made:
        pid = made.starter()
        async with made.client() as runner:
            await runner.health()
            await asyncio.to_thread(end_next, made)
            before = await asyncio.to_thread(limit, pid, "nproc", 1)
            for code, status, _ in await refused_everywhere(made, Authority()):
                assert (code, status) == ("exhausted", 503)
            await asyncio.to_thread(limit, pid, "nproc", before)
            assert (await runner.run(Call(bash="echo next"))).stdout == b"next\n"


# ---- races -----------------------------------------------------------------------------------------------------------

EXCHANGE = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
one, other = (word.encode() for word in sys.argv[1:])
end = time.monotonic() + 60
while time.monotonic() < end:
    assert libc.renameat2(-100, one, -100, other, 2) == 0  # RENAME_EXCHANGE: the name always names something
"""


@pytest.mark.parametrize("by", ["a link", "a directory"])
async def test_a_workspace_that_is_exchanged_all_the_time(served: Daemon, by: str) -> None:
    """It is the judged directory that is mounted, or nothing: never what was put in its place meanwhile."""
    chosen, other = served.workspace("exchanged"), served.directory / f"other-{by[2:]}"
    (chosen / "genuine").touch()
    hidden = served.workspace("hidden")
    (hidden / "secret").touch()
    if by == "a link":
        other.symlink_to(served.state)  # the runner's own, which the serving user could read and write
    else:
        os.rename(hidden, other)
        other.chmod(0o500)  # refused, where it is judged
    outcomes = set()
    racer = subprocess.Popen([PYTHON, "-c", EXCHANGE, str(chosen), str(other)])
    try:
        async with served.client() as runner:
            for _ in range(60):
                try:
                    done = await runner.run(Call(bash="ls; touch made"), Authority(workspace=str(chosen)))
                except RunnerError as refused:
                    if refused.code not in {"bad_workspace", "sandbox_failed"}:  # judged, or not there to be mounted
                        raise
                    outcomes.add(refused.problem.reason or "changed at the launch")
                else:
                    shown = done.stdout.split()
                    assert b"genuine" in shown, done
                    assert not {b"jobs", b"secret"} & set(shown), done
                    outcomes.add("ran")
    finally:
        racer.kill()
        racer.wait()
    assert len(outcomes) > 1, f"the exchange was never met: {outcomes}"
    assert not (served.state / "made").exists()
    assert {path.name for path in (chosen, other) if (path / "secret").exists() and (path / "made").exists()} == set()
    for path in (chosen, other):
        if path.is_symlink():
            path.unlink()
        else:
            path.chmod(0o700)
            shutil.rmtree(path)


async def test_what_bubblewrap_said_is_told_on_every_route() -> None:
    poorer = (PYTHON, str(Path(__file__).with_name("denied_calls.py")), "no-pivot-root")
    with daemon(prefix=poorer, extra="parked = 0") as made:
        (refusal,) = await refused_everywhere(made, Authority())
        assert refusal[:2] == ("sandbox_failed", 503)
        assert refusal[2].startswith(
            "bubblewrap could not build the sandbox: bwrap: pivot_root: Operation not permitted."
        )
