"""The keeper of a run or of a runner: what it does when the rest is killed, in which order, and what it never has."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.audit.location import default_state_dir
from sandbox.protect import hold, survey, sweep
from tests.live.runs import (
    KEEPER,
    PATIENCE,
    PROMPTLY,
    adopted,
    children,
    descendants,
    find,
    inside,
    line,
    name,
    recorded,
    running,
    start,
    status,
    until,
)

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
WAITS = ("--", "sh", "-c", "echo up; exec sleep 4321")


def state_directory() -> Path:
    return default_state_dir(os.environ, os.geteuid())


def ready(workspace: Path, *command: str) -> "subprocess.Popen[bytes]":
    run = start("--workspace", str(workspace), *(command or WAITS), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert line(run.stdout) == "up"
    return run


def keeper_of(run: "subprocess.Popen[bytes]") -> int:
    found = find(run.pid, KEEPER)
    assert found is not None
    return found


def test_what_a_killed_run_held_is_given_up(workspace: Path) -> None:
    with adopted() as left:
        run = ready(workspace)
        assert (workspace / ".git").is_dir()
        run.kill()
        run.communicate(timeout=PROMPTLY)  # nobody has its pipes any more, the keeper neither
        until(lambda: not left(), PROMPTLY)
        assert list(workspace.iterdir()) == []
        assert not recorded(state_directory(), workspace).exists()


def test_what_the_payload_of_a_killed_run_planted_is_made_harmless(workspace: Path) -> None:
    script = "mkdir sub && cd sub && git init -q && git config core.fsmonitor 'touch /tmp/planted' && touch ../.bashrc"
    with adopted() as left:
        run = ready(workspace, "--", "sh", "-c", f"{script}; echo up; exec sleep 4321")
        run.kill()
        run.communicate(timeout=PROMPTLY)
        until(lambda: not left(), PROMPTLY)
    assert "fsmonitor" not in (workspace / "sub/.git/config").read_text()
    assert "fsmonitor" in (workspace / "sub/.git/config.wicketgate-set-aside").read_text()
    assert {path.name for path in workspace.iterdir()} == {"sub", ".bashrc.wicketgate-set-aside"}


def test_a_run_ends_with_its_keeper_and_cleans_up_itself(workspace: Path) -> None:
    with adopted() as left:
        run = ready(workspace)
        os.kill(keeper_of(run), signal.SIGKILL)
        _, told = run.communicate(timeout=PATIENCE)
        assert run.returncode == 125
        assert b"cleans up after a kill has gone" in told
        assert not left()
        assert list(workspace.iterdir()) == []


def test_a_whole_process_group_is_killed(workspace: Path) -> None:
    with adopted() as left:
        run = start(
            "--workspace", str(workspace), *WAITS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
        assert line(run.stdout) == "up"
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=PROMPTLY)
        until(lambda: not left(), PROMPTLY)
        assert list(workspace.iterdir()) == []


def test_the_names_stay_held_for_another_run(workspace: Path) -> None:
    with adopted() as left:
        first, second = ready(workspace), ready(workspace)
        before = keeper_of(second)
        first.kill()
        first.communicate(timeout=PROMPTLY)
        until(lambda: left() == [second.pid], PROMPTLY)
        assert (workspace / ".git").is_dir()
        held = inside("mkdir .envrc/x 2>/dev/null; echo x > .vscode; ls -A", "--workspace", str(workspace))
        assert ".envrc" in held
        assert keeper_of(second) == before
        second.kill()
        second.communicate(timeout=PROMPTLY)
        until(lambda: not left(), PROMPTLY)
        assert list(workspace.iterdir()) == []


def test_a_keeper_has_nothing_of_the_run_and_hears_no_signal(workspace: Path) -> None:
    with running("--workspace", str(workspace), *WAITS, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert line(run.stdout) == "up"
        keeper = keeper_of(run)
        until(lambda: name(keeper) == KEEPER)
        if os.geteuid():  # its user's other processes cannot look into it
            with pytest.raises(PermissionError):
                os.listdir(f"/proc/{keeper}/fd")
        else:
            found = {os.readlink(f"/proc/{keeper}/fd/{fd}") for fd in os.listdir(f"/proc/{keeper}/fd")}
            known = {"/dev/null", str(workspace), str(recorded(state_directory(), workspace).with_suffix(""))}
            assert {
                one for one in found if not one.startswith(("socket:", "anon_inode:[pidfd]", "anon_inode:[eventpoll]"))
            } == known
            assert sum(one.startswith("socket:") for one in found) == 1
        assert os.getsid(keeper) == keeper
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            assert int(status(keeper)["SigBlk"], 16) & 1 << number - 1
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=PATIENCE)
        assert not Path(f"/proc/{keeper}").exists(), "the run ended before its keeper"


def test_a_run_without_a_workspace_has_none() -> None:
    with running(*WAITS, stdout=subprocess.PIPE) as run:
        assert line(run.stdout) == "up"
        until(lambda: {name(pid) for pid in descendants(run.pid)} == {"bwrap", "sleep"})


def test_a_keeper_is_killed_as_soon_as_it_is_there(workspace: Path) -> None:
    with adopted() as left:
        for _ in range(5):
            run = start("--workspace", str(workspace), *WAITS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            keeper = until(lambda: find(run.pid, KEEPER))  # noqa: B023  called at once
            os.kill(keeper, signal.SIGKILL)
            _, told = run.communicate(timeout=PATIENCE)
            assert run.returncode == 125, told
            until(lambda: not left(), PROMPTLY)
            assert list(workspace.iterdir()) == []


# ---- a server of our own, to stop it where a run does not stop -------------------------------------------------------

SERVER = """
import os, sys
from pathlib import Path
from netns import handoff
from sandbox.protect import hold, start_keeper, survey
from sandbox.protect.keeper import ANNOUNCED
keeper = start_keeper()
root = os.open(sys.argv[1], os.O_RDONLY)
hold(root, survey(root), state=Path(sys.argv[2]), keep=keeper.take)
if len(sys.argv) > 3:
    handoff.send(keeper.connection, ANNOUNCED, [int(sys.argv[3])])
print("held", flush=True)
input()
"""


@contextmanager
def server(workspace: Path, state: Path, *more: int) -> Iterator["subprocess.Popen[bytes]"]:
    state.mkdir(exist_ok=True)
    words = [sys.executable, "-c", SERVER, str(workspace), str(state), *map(str, more)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=more) as process:
        try:
            assert line(process.stdout) == "held"
            yield process
        finally:
            process.kill()


def test_nothing_is_given_up_before_the_sandbox_has_gone(workspace: Path, tmp_path: Path) -> None:
    """A pipe stands for the sandbox: it cannot be killed, and "has gone" when the test says so."""
    gone, alive = os.pipe()
    with adopted() as left, server(workspace, tmp_path / "state", gone) as process:
        os.close(gone)
        process.kill()
        process.wait()
        keeper = until(lambda: next((pid for pid in left() if name(pid) == KEEPER), 0))
        time.sleep(0.3)  # no condition to wait for: nothing may happen
        assert left() == [keeper]
        assert (workspace / ".git").is_dir()
        root = os.open(workspace, os.O_RDONLY)
        hold(root, survey(root), state=tmp_path / "state").release()  # whoever comes meanwhile is not the last one
        os.close(root)
        assert (workspace / ".git").is_dir()
        os.close(alive)
        until(lambda: not left(), PROMPTLY)
        assert list(workspace.iterdir()) == []


def test_a_sandbox_that_outlives_its_server_is_killed(workspace: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "4321"]) as sandbox:
        pidfd = os.pidfd_open(sandbox.pid)
        with server(workspace, tmp_path / "state", pidfd) as process:
            os.close(pidfd)
            process.kill()
        try:
            assert sandbox.wait(PROMPTLY) == -signal.SIGKILL
        finally:
            sandbox.kill()
        until(lambda: not list(workspace.iterdir()), PROMPTLY)


def test_where_both_are_killed_the_next_start_of_a_runner_sweeps(workspace: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with adopted() as left, server(workspace, state) as process:
        assert sweep(state) == ()
        assert (workspace / ".git").is_dir(), "what is in use is nobody's to sweep"
        os.kill(children(process.pid)[0], signal.SIGKILL)
        process.kill()
        process.wait()
        until(lambda: not left(), PROMPTLY)
    assert (workspace / ".git").is_dir()
    assert recorded(state, workspace).exists()
    (workspace / ".vscode").joinpath("mine").touch()
    assert sweep(state) == (str(workspace),)
    assert {path.name for path in workspace.iterdir()} == {".vscode"}
    assert not recorded(state, workspace).exists()
    assert sweep(state) == ()


def test_a_sweep_goes_to_no_other_directory(workspace: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with adopted() as left, server(workspace, state) as process:
        os.kill(children(process.pid)[0], signal.SIGKILL)
        process.kill()
        process.wait()
        until(lambda: not left(), PROMPTLY)
    moved = workspace.rename(workspace.with_name(f"{workspace.name}-moved"))
    (workspace / ".git").mkdir(parents=True)
    assert sweep(state) == ()
    assert (workspace / ".git").is_dir(), "another one has the path by now"
    shutil.rmtree(workspace)
    workspace.symlink_to(moved)
    assert sweep(state) == (), "a link is not followed"
    workspace.unlink()
    moved.rename(workspace)
    assert sweep(state) == (str(workspace),)
    assert list(workspace.iterdir()) == []
