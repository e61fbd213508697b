"""Signals to `wicketgate run` are the command's, exit codes are the command's, and the end leaves nothing running."""

import json
import signal
import subprocess
import time

import pytest

from tests.live.runs import (
    FRONT,
    PATIENCE,
    PROMPTLY,
    adopted,
    find,
    line,
    running,
    start,
    taking_signals,
    until,
    wicketgate,
)

pytestmark = pytest.mark.live
PASSED_ON = ("TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "ALRM")
# Each leaves a `sleep` behind in its own way; python3 is the system's.
WAYS_TO_STAY = {
    "in the background": "sleep 4321 & ",
    "with nohup": "nohup sleep 4321 >/dev/null 2>&1 & ",
    "in a session of its own": "setsid sleep 4321 & ",
    "forked twice": "(setsid sh -c '(sleep 4321 &) &' &) ",
    "stopped": "sleep 4321 & kill -STOP $! ",
    "deaf to every signal": "(trap '' TERM HUP INT QUIT USR1 USR2 ALRM PIPE; exec setsid sleep 4321) & ",
    "by vfork": '/usr/bin/python3 -c \'import subprocess as s; s.Popen(["sleep", "4321"], start_new_session=True)\' ',
    "writing to a closed pipe": "(trap '' PIPE; while :; do echo x; sleep 0.1; done | true; sleep 4321) & ",
}


@pytest.mark.parametrize("code", [0, 1, 2, 77, 124, 125, 126, 127, 128, 200, 255])
def test_the_commands_own_exit_code(code: int) -> None:
    assert wicketgate("--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "PIPE", "INT", "HUP", "ABRT", "RTMIN"])
def test_death_by_a_signal_is_128_and_its_number(name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    assert wicketgate("--", "bash", "-c", f"kill -{int(number)} $$; sleep 5").returncode == 128 + number


@pytest.mark.parametrize("name", PASSED_ON)
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["streams", "json"])
def test_a_signal_is_passed_to_the_command(name: str, words: tuple[str, ...]) -> None:
    with running(*words, "--", *taking_signals(1), stdout=subprocess.PIPE) as run:
        until(lambda: find(run.pid, "taker"))
        run.send_signal(getattr(signal, f"SIG{name}"))
        assert run.wait(PATIENCE) == 42


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_signal_that_the_command_does_not_handle_ends_it(name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    with running("--", "sh", "-c", "echo up; exec sleep 60", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert line(run.stdout) == "up"
        run.send_signal(number)
        assert run.wait(PATIENCE) == 128 + number


def test_a_signal_reaches_the_command_with_a_cable_and_the_broker_survives() -> None:
    words = ("--allow", "origin.example", "--", *taking_signals(1))
    with running(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert line(run.stdout) == "up"
        run.send_signal(signal.SIGTERM)
        _, told = run.communicate(timeout=PATIENCE)
        assert run.returncode == 42
        assert b"0 allowed, 0 denied" in told


@pytest.mark.parametrize("words", [(), ("--allow", "origin.example")], ids=["alone", "with a cable"])
@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_during_the_start_ends_the_start(words: tuple[str, ...], name: str) -> None:
    """At any moment, the run ends soon with the signal's number and leaves nothing (by delays over the whole start)."""
    number = getattr(signal, f"SIG{name}")
    before = time.monotonic()
    wicketgate(*words, "--", "true")
    whole_start = time.monotonic() - before
    with adopted() as left:
        for part in (0.3, 0.5, 0.75, 1.0):
            run = start(*words, "--", "sleep", "60", stderr=subprocess.PIPE)
            time.sleep(part * whole_start)
            run.send_signal(number)
            _, told = run.communicate(timeout=PATIENCE)
            if b"KeyboardInterrupt" in told:
                # The interpreter's own start was interrupted, before the first line of ours (on a busy machine).
                assert b"wicketgate/" not in told
            else:
                assert run.returncode in {128 + number, -number}, told
                assert b"Traceback" not in told
            until(lambda: not left(), PROMPTLY)


def test_ignored_signals_stay_ignored() -> None:
    shell = 'trap "" HUP INT; exec "$@"'
    script = "kill -HUP $$; kill -INT $$; grep SigIgn /proc/self/status; exit 5"
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *FRONT, "--", "sh", "-c", script], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 5
    assert int(done.stdout.split()[1], 16) & 0b11 == 0b11


def test_nothing_else_is_ignored_or_blocked() -> None:
    told = wicketgate("--", "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status").stdout.split()
    glibc_own = 0b11 << 31  # signals 32 and 33, which glibc may leave ignored in what it spawns
    assert [int(mask, 16) & ~glibc_own for mask in told[1::2]] == [0, 0]


def test_a_caller_that_ignores_the_end_of_its_children() -> None:
    shell = 'trap "" CHLD; exec "$@"'
    command = ["bash", "-c", shell, "sh", *FRONT, "--", "sh", "-c", "exit 9"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 9


@pytest.mark.parametrize("way", WAYS_TO_STAY)
def test_the_commands_end_leaves_nothing(way: str) -> None:
    with adopted() as left:
        assert wicketgate("--", "sh", "-c", f"{WAYS_TO_STAY[way]}\nsleep 0.2; exit 6").returncode == 6
        assert left() == []


@pytest.mark.parametrize("way", WAYS_TO_STAY)
def test_a_timeout_leaves_nothing(way: str) -> None:
    with adopted() as left:
        before = time.monotonic()
        done = wicketgate(
            "--timeout", "0.5", "--", "sh", "-c", f"trap '' TERM; {WAYS_TO_STAY[way]}\nsleep 4321; sleep 4321"
        )
        assert done.returncode == 124
        assert b"time limit" in done.stderr
        assert time.monotonic() - before < PATIENCE
        assert left() == []


def test_a_timeout_asks_first() -> None:
    done = wicketgate("--timeout", "3", "--json", "--", *taking_signals(1))
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["timed_out"]) == (124, 124, True)
    assert document["error"]["code"] == "timed_out"
    assert document["stdout"]["text"] == "up\ngot SIGTERM\n"


def test_a_timeout_of_a_year_is_none_for_now() -> None:
    assert wicketgate("--timeout", str(366 * 24 * 3600), "--", "sh", "-c", "sleep 0.1; exit 3").returncode == 3


def test_a_stopped_command_is_ended_by_the_timeout() -> None:
    assert wicketgate("--timeout", "0.5", "--", "sh", "-c", "kill -STOP $$; exit 5").returncode == 124


def test_the_command_cannot_stop_its_keeper() -> None:
    """Process 1 inside is ours: it cannot be killed, stopped or traced from inside."""
    done = wicketgate("--", "sh", "-c", "kill -KILL 1; kill -STOP 1; kill -TERM 1; kill -TERM -1; exit 4")
    assert done.returncode in {4, 128 + signal.SIGTERM}  # -1 is everybody but process 1, so the shell itself
