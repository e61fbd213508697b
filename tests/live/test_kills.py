"""`kill -9` of any one of our processes at any moment: the run ends at once, and nothing is left."""

import os
import random
import re
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.live.runs import (
    KEEPER,
    PATIENCE,
    PROMPTLY,
    adopted,
    descendants,
    find,
    leads_session,
    line,
    name,
    recorded,
    running,
    start,
    until,
    wicketgate,
)

pytestmark = [pytest.mark.live, pytest.mark.alone]
ROUNDS = 30  # for each kind of run
CABLE = ("--allow", "origin.example")


def residue(places: tuple[Path, ...]) -> set[str]:
    """What could be left of a run outside of its processes: mounts, links of the host, sockets, temporary files."""
    found = {row.split(" ")[4] for row in Path("/proc/self/mountinfo").read_text().splitlines()}
    found |= {f"link {entry}" for entry in os.listdir("/sys/class/net") if re.match("gate|eth0@|veth", entry)}
    for place in places:
        for path in [*place.rglob("*")]:
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # another run has ended and given its log the final name
                continue
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or path.suffix in {".tmp", ".new", ".part"}:
                found.add(str(path))
    return found


@pytest.mark.parametrize(
    ("words", "shown"),
    [((), False), (CABLE, False), ((), True), (CABLE, True)],
    ids=["alone", "with a cable", "with a workspace", "with a cable and a workspace"],
)
def test_any_process_killed_at_any_moment(words: tuple[str, ...], shown: bool, tmp_path: Path) -> None:
    chance = random.Random(f"kill {words} {shown}")
    workspace = tmp_path / "closed" / "work"
    workspace.mkdir(parents=True)
    workspace.parent.chmod(0o700)
    (workspace / "file").touch()
    if shown:
        words = (*words, "--workspace", str(workspace))
    environ = os.environ | {"TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    state = Path("/var/lib/wicketgate") if os.geteuid() == 0 else tmp_path / "state"
    with adopted() as left:
        before = time.monotonic()
        wicketgate(*words, "--", "true", env=environ)
        whole_start = time.monotonic() - before
        places = (tmp_path, state) if state.is_dir() else (tmp_path,)
        clean = residue(places)
        victims: dict[str, int] = {}
        slowest = 0.0
        for number in range(ROUNDS):
            run = start(*words, "--", "sleep", "4321", env=environ, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0, whole_start * 1.3))
            # The command itself is not ours; everything before it is.
            ours = [run.pid, *(pid for pid in descendants(run.pid) if name(pid) != "sleep")]
            victim = chance.choice(ours)
            if shown and number % 5 == 0:
                victim = until(lambda: find(run.pid, KEEPER))  # noqa: B023  called at once
            elif number % 5 == 1:
                victim = run.pid
            label = "front" if victim == run.pid else name(victim)
            # One that is only there for a moment may have done its work already, and then nobody misses it.
            passing = label == "python" and not leads_session(victim)
            victims[label] = victims.get(label, 0) + 1
            killed = time.monotonic()
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                run.kill()
            until(lambda: run.poll() is not None or (passing and find(run.pid, "sleep")))  # noqa: B023  called at once
            if run.poll() is None:
                killed = time.monotonic()
                run.kill()
            code = run.wait(PATIENCE)
            assert code != 0, "a run whose process was killed claims success"
            until(lambda: not left(), PROMPTLY)
            slowest = max(slowest, time.monotonic() - killed)
            assert os.listdir(workspace) == ["file"], f"left after the death of {label}"
        print(f"\n{victims}; slowest end {slowest * 1000:.0f} ms after the kill")
        assert len(victims) >= 2, "the delays never met anything but one process"
        assert slowest < PROMPTLY
        assert not shown or {"front", KEEPER} <= victims.keys()
        assert residue(places) <= clean
        assert not recorded(state, workspace).exists()


def ready_run(words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    run = start(*words, "--", "sh", "-c", "echo up; exec sleep 4321", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert line(run.stdout) == "up"
    return run


def test_the_brokers_death_ends_the_command_and_says_so() -> None:
    with adopted() as left:
        run = ready_run(CABLE)
        broker = until(lambda: next((pid for pid in descendants(run.pid) if name(pid) not in {"bwrap", "sleep"}), 0))
        os.kill(broker, signal.SIGKILL)
        _, told = run.communicate(timeout=PATIENCE)
        assert run.returncode == 125
        assert b"the broker has gone" in told
        until(lambda: not left(), PROMPTLY)


def test_the_death_of_the_sandboxs_own_process_is_not_the_commands() -> None:
    with adopted() as left:
        run = ready_run(())
        outer = until(lambda: find(run.pid, "bwrap"))
        os.kill(outer, signal.SIGKILL)
        _, told = run.communicate(timeout=PATIENCE)
        assert run.returncode == 125
        assert b"killed from outside" in told
        until(lambda: not left(), PROMPTLY)


@pytest.mark.parametrize("words", [(), CABLE], ids=["alone", "with a cable"])
def test_a_stopped_front_that_is_killed_leaves_nothing(words: tuple[str, ...]) -> None:
    with adopted() as left:
        for delay in (0.1, 0.2, 0.3):
            run = start(*words, "--", "sleep", "4321", stderr=subprocess.DEVNULL)
            time.sleep(delay)
            run.send_signal(signal.SIGSTOP)
            time.sleep(0.1)  # what it has started goes on meanwhile: that is the point
            run.kill()
            run.wait(PATIENCE)
            until(lambda: not left(), PROMPTLY)


def test_after_the_brokers_death_there_is_no_network() -> None:
    """The command is stopped, so that it outlives the broker for a look: nothing answers in its namespace."""
    probe = (
        "import socket\ns = socket.socket()\ns.settimeout(3)\n"
        "try:\n s.connect(('192.0.2.1', 443)); print('open')\nexcept OSError:\n print('closed')"
    )
    with running(
        *CABLE, "--", "sh", "-c", "echo up; exec sleep 4321", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert line(run.stdout) == "up"
        sleeping = until(lambda: find(run.pid, "sleep"))
        broker = until(lambda: next((pid for pid in descendants(run.pid) if name(pid) not in {"bwrap", "sleep"}), 0))
        os.kill(run.pid, signal.SIGSTOP)
        enter = [
            "nsenter",
            f"--user=/proc/{run.pid}/ns/user",  # whose network namespace it is; the command's own is one below
            f"--net=/proc/{sleeping}/ns/net",
            "--preserve-credentials",
        ]
        enter = enter if os.geteuid() else ["nsenter", f"--net=/proc/{sleeping}/ns/net"]
        look = [*enter, "/usr/bin/python3", "-c", probe]

        def seen() -> bytes:
            done = subprocess.run(look, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert seen() == b"open\n"
        os.kill(broker, signal.SIGKILL)
        until(lambda: seen() == b"closed\n")
