"""What a command reads, writes and inherits is as without a sandbox, and nothing of the caller's comes beside it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.runs import FRONT, descendants, find, inside, running, until, wicketgate

pytestmark = pytest.mark.live
EVERY_BYTE = bytes(range(256)) * 257
MIB = 1 << 20
SECRET = "kept-from-the-payload-7f3a"
# PWD is set by bubblewrap with the directory.
ALLOWED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "TERM", "COLORTERM", "TZ", "PWD"}


def wicketgate_words(*words: str) -> tuple[str, ...]:
    return (*FRONT, *words)


@pytest.mark.smoke
def test_streams_are_byte_exact() -> None:
    done = wicketgate("--", "sh", "-c", "tee /dev/fd/2", input=EVERY_BYTE)
    assert (done.returncode, done.stdout, done.stderr) == (0, EVERY_BYTE, EVERY_BYTE)


def test_much_data_both_ways() -> None:
    data = os.urandom(MIB) * 48
    done = wicketgate("--", "cat", input=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_standard_input_from_a_file_is_the_file(tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(EVERY_BYTE)
    with source.open("rb") as file:
        file.seek(100)
        done = wicketgate("--", "head", "-c", "50", stdin=file)
        assert done.stdout == EVERY_BYTE[100:150]


def test_output_to_a_file_is_appended_where_the_caller_was(tmp_path: Path) -> None:
    target = tmp_path / "output"
    with target.open("wb") as file:
        file.write(b"before\n")
        file.flush()
        wicketgate("--", "echo", "after", capture_output=False, stdout=file)
    assert target.read_bytes() == b"before\nafter\n"


@pytest.mark.parametrize(
    ("redirection", "script", "expected"),
    [
        ("<&-", "cat; echo $?", "1\n"),
        ("<&-", "ls /proc/self/fd | tr '\\n' ' '", "0 1 2 3 "),
        ("</dev/null", "cat; echo $?", "0\n"),
        ("2>&-", "echo x >&2 || echo cannot", "cannot\n"),
    ],
)
def test_closed_descriptors_stay_unusable(redirection: str, script: str, expected: str) -> None:
    shell = f'"$@" {redirection}'
    command = ["sh", "-c", shell, "sh", *wicketgate_words("--", "sh", "-c", script)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.stdout.decode() == expected


def test_closed_standard_output_is_an_error_of_the_command_not_of_ours() -> None:
    command = ["sh", "-c", '"$@" >&-', "sh", *wicketgate_words("--", "sh", "-c", "echo x; echo $? >&2")]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.stderr.decode().splitlines()[-1] == "1"
    assert b"Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_the_writer() -> None:
    with running("--", "yes", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.read(4) == b"y\ny\n"
        run.stdout.close()
        assert run.wait(20) == 128 + 13
        run.stdout = None


def test_inherited_descriptors_do_not_reach_the_payload(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    opened = 'exec 3<"$0" 9<"$0" 77<"$0"; "$@"'
    listing = wicketgate_words("--", "sh", "-c", "for fd in /proc/[0-9]*/fd/*; do readlink $fd; done; ls /proc/self/fd")
    done = subprocess.run(
        ["bash", "-c", opened, str(tmp_path / "secret"), *listing], capture_output=True, check=False, timeout=60
    )
    assert b"secret" not in done.stdout
    assert done.stdout.decode().split()[-4:] == ["0", "1", "2", "3"]  # 3 is ls's own


@pytest.mark.parametrize("words", [(), ("--allow", "origin.example")], ids=["alone", "with a cable"])
def test_nothing_of_the_callers_environment_is_inside(words: tuple[str, ...]) -> None:
    environ = os.environ | {"API_TOKEN": SECRET, "LD_PRELOAD_X": SECRET, "LC_ALL": f"{SECRET} $(id)", "PYTHONPATH": ""}
    script = "env; cat /proc/*/environ /proc/*/cmdline; cat /proc/1/environ | wc -c"
    told = inside(script, *words, env=environ)
    assert SECRET not in told
    assert "wicketgate run" not in told.replace("\0", " ")
    assert told.split()[-1].endswith("0"), "process 1 has an environment"


def test_the_environment_is_a_closed_list() -> None:
    done = wicketgate("--", "env", env=os.environ | {"TERM": "xterm", "TZ": "UTC", "FOO": "bar", "PAGER": "x"})
    assert {row.split("=", 1)[0] for row in done.stdout.decode().splitlines()} <= ALLOWED


def test_arguments_do_not_show_the_mounts_or_variables_outside() -> None:
    with running("--", "sleep", "60") as run:
        until(lambda: find(run.pid, "sleep"))
        told = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in descendants(run.pid)]
        assert told
        assert not [word for words in told for word in words if word.startswith((b"--setenv", b"--ro-bind", b"HOME"))]


def test_limits_and_masks_are_sane() -> None:
    shell = 'umask 0; ulimit -c unlimited 2>/dev/null; exec nice -n 3 "$@"'
    script = "umask; ulimit -c; nice; ulimit -H -c"
    command = ["sh", "-c", shell, "sh", *wicketgate_words("--", "sh", "-c", script)]
    told = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode().split()
    assert told == ["0022", "0", "3", "0"]


def test_a_stricter_umask_is_kept() -> None:
    command = ["sh", "-c", 'umask 077; "$@"', "sh", *wicketgate_words("--", "sh", "-c", "umask")]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.strip() == b"0077"


ADD_KEY = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
SESSION_KEYRING, USER_KEYRING = -3, -4


def test_the_callers_keys_are_out_of_reach() -> None:
    """Neither their contents (the filter) nor their descriptions, which /proc shows to any process of the user."""
    program = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
for ring in ({SESSION_KEYRING}, {USER_KEYRING}):
    assert libc.syscall({ADD_KEY}, b"user", b"{SECRET}", b"x", ctypes.c_size_t(1), ring) > 0
assert "{SECRET}" in open("/proc/keys").read()
os.execv(sys.argv[1], sys.argv[1:])
"""
    look = wicketgate_words("--", "sh", "-c", "cat /proc/keys /proc/key-users; echo seen")
    done = subprocess.run([sys.executable, "-c", program, *look], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"seen\n"


def test_standard_streams_can_be_opened_by_name() -> None:
    done = wicketgate("--", "sh", "-c", "echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin", input=b"in\n")
    assert (done.stdout, done.stderr) == (b"out\nin\n", b"err\n")


def test_json_holds_both_streams_and_counts_what_it_dropped() -> None:
    done = wicketgate("--json", "--", "sh", "-c", "head -c 3145728 /dev/zero; echo err >&2; exit 9")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 9
    assert len(document["stdout"]["text"]) == MIB
    assert document["stdout"]["dropped_bytes"] == 2 * MIB
    assert document["stderr"]["text"] == "err\n"


def test_json_that_cannot_be_written_is_a_failure() -> None:
    with open("/dev/full", "wb") as full:
        assert wicketgate("--json", "--", "true", capture_output=False, stdout=full).returncode == 125
