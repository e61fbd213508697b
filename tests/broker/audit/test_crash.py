"""Writers that die: what they flushed stays, the next start repairs what they left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.audit.log import AuditLog
from tests.broker.audit.logs import decision, faults, files, lines, verify, write_log

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from broker.audit.log import AuditLog
log = AuditLog.open(Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
n = 0
while True:
    for _ in range(3):
        n += 1
        log.append({"kind": "decision", "session": sys.argv[3], "authority": "a.example:443", "verdict": "allow"})
    log.flush()
    print(n, flush=True)
"""
WRITE_SOME = """
import sys
from pathlib import Path
from broker.audit.log import AuditLog
with AuditLog.open(Path(sys.argv[1]), max_bytes=int(sys.argv[2])) as log:
    for n in range(200):
        log.append({"kind": "decision", "session": sys.argv[3], "authority": "a.example:443", "verdict": "allow"})
        if n % 3 == 0:
            log.flush()
"""


def start(script: str, directory: Path, max_bytes: int, session: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(directory), str(max_bytes), session]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_when_it_has_written(writer: subprocess.Popen[str], count: int) -> int:
    """SIGKILL the writer at some moment after `count` records; return how many it said were flushed."""
    assert writer.stdout is not None
    said = 0
    for line in writer.stdout:
        said = int(line)
        if said >= count:
            break
    writer.send_signal(signal.SIGKILL)
    rest = [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    return rest[-1] if rest else said


@pytest.mark.parametrize("max_bytes", [1 << 30, 3000])
def test_killed_writers_lose_nothing_that_was_flushed(directory: Path, max_bytes: int) -> None:
    for round_ in range(5):
        writer = start(WRITE_FOR_EVER, directory, max_bytes, f"s-{round_}")
        flushed = kill_when_it_has_written(writer, 40 + 17 * round_)
        written = sum(f'"s-{round_}"'.encode() in line for line in lines(directory))
        assert written >= flushed
    assert verify(directory).ok  # also before anybody has repaired it: a dead writer is not tampering
    write_log(directory, 1)
    report = verify(directory)
    assert report.ok
    assert not list(directory.glob("*.open.jsonl"))
    assert sum(b'"event":"recovered"' in line for line in lines(directory)) == 5


def abandoned(directory: Path, count: int = 3) -> Path:
    """A log whose writer vanished without closing: what a SIGKILL leaves."""
    log = AuditLog.open(directory)
    for number in range(count):
        log.append(decision(number))
    log.flush()
    log._release()
    return files(directory)[0]


def finished(file: Path) -> list[bytes]:
    """The lines of a log after its repair, which dropped `.open` from the name."""
    return file.with_name(file.name.replace(".open", "")).read_bytes().splitlines()


@pytest.mark.parametrize(
    "torn", [b"{", b'{"id":"', bytes(100), b"x" * 50_000, b'{"a":"\xff', bytes(200_000), b"x" * 3_000_000], ids=range(7)
)
def test_a_torn_line_is_moved_aside_and_the_chain_closed(directory: Path, torn: bytes) -> None:
    file = abandoned(directory)
    with file.open("ab") as end:
        end.write(torn)
    assert verify(directory).ok
    write_log(directory, 1)
    assert verify(directory).ok
    aside = list((directory / "torn").iterdir())
    assert [path.read_bytes() for path in aside] == [torn]
    closing = json.loads(finished(file)[-1])
    assert (closing["event"], closing["id"].endswith("-4")) == ("recovered", True)
    assert f"torn line of {len(torn)} bytes" in closing["detail"]


def test_a_log_with_more_behind_its_end_than_can_be_moved_is_left_alone(directory: Path) -> None:
    """A hole of a terabyte, say: its records stay where they are."""
    file = abandoned(directory)
    before = file.read_bytes()
    os.truncate(file, 1 << 40)
    write_log(directory, 1)
    with file.open("rb") as left:
        assert left.read(len(before)) == before


def test_half_of_the_last_line_is_repaired(directory: Path) -> None:
    file = abandoned(directory)
    os.truncate(file, file.stat().st_size - 30)
    write_log(directory, 1)
    assert verify(directory).ok
    assert json.loads(finished(file)[-1])["id"].endswith("-3")  # the number of the line that never was


def test_a_file_without_one_whole_line_goes_aside(directory: Path) -> None:
    file = abandoned(directory, 0)
    file.write_bytes(b'{"kind":"check')
    write_log(directory, 1)
    assert len(files(directory)) == 1
    assert verify(directory).ok
    assert [path.read_bytes() for path in (directory / "torn").iterdir()] == [b'{"kind":"check']


@pytest.mark.parametrize("left", [b"", b'{"kind":"check'])
def test_a_writer_that_died_between_two_files(directory: Path, left: bytes) -> None:
    """It had said that the log goes on in the next file, and had not begun that one."""
    write_log(directory, 30, max_bytes=2500)
    last = files(directory)[-1]
    last.write_bytes(left)
    last.rename(last.with_name(last.name.replace(".jsonl", ".open.jsonl")))
    assert verify(directory).ok
    write_log(directory, 1)
    assert [json.loads(line)["event"] for line in last.read_bytes().splitlines()] == ["opened", "recovered"]
    assert verify(directory).ok


def test_a_writer_that_died_before_it_said_so(directory: Path) -> None:
    """The next file was made, but nothing says yet that the log goes on in it."""
    file = abandoned(directory)
    following = file.with_name(file.name.replace("000001", "000002"))
    following.write_bytes(b"")
    assert verify(directory).ok
    write_log(directory, 1)
    assert not following.exists()
    assert json.loads(finished(file)[-1])["event"] == "recovered"
    assert verify(directory).ok


def test_repair_does_not_hide_tampering(directory: Path) -> None:
    file = abandoned(directory)
    file.write_bytes(file.read_bytes().replace(b"/items/1", b"/items/9"))
    write_log(directory, 1)
    assert faults(verify(directory)) == ["3:changed"]


def test_repair_does_not_vouch_for_a_broken_last_line(directory: Path) -> None:
    file = abandoned(directory)
    file.write_bytes(file.read_bytes()[:-70] + b"\n")
    write_log(directory, 1)
    assert not verify(directory).ok


def test_a_live_log_is_not_repaired(directory: Path) -> None:
    live = AuditLog.open(directory)
    live.append(decision(1))
    live.flush()
    write_log(directory, 1)
    live.append(decision(2))
    live.close()
    assert verify(directory).ok
    assert not any(b"recovered" in line for line in lines(directory))


def test_a_link_named_like_an_open_log_is_left_alone(directory: Path, tmp_path: Path) -> None:
    write_log(directory, 1)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (directory / "20200101T000000Z-aaaaaaaaaaaa-000001.open.jsonl").symlink_to(victim)
    write_log(directory, 1)
    assert victim.read_text() == "precious"


def test_a_fifo_named_like_an_open_log_blocks_nobody(directory: Path) -> None:
    write_log(directory, 1)
    os.mkfifo(directory / "20200101T000000Z-aaaaaaaaaaaa-000001.open.jsonl")
    write_log(directory, 1)
    assert faults(verify(directory)) == ["0:unreadable"]


def test_twenty_processes_write_into_one_directory(directory: Path) -> None:
    """Each has its own log: all records are there, each chain holds, and they share one key."""
    writers = [start(WRITE_SOME, directory, 20_000, f"s-{at}") for at in range(20)]
    assert [writer.wait(60) for writer in writers] == [0] * 20
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
    report = verify(directory)
    assert report.ok, report.findings
    assert len(report.logs) == 20
    assert all(log.signed_through == log.head.number for log in report.logs)
    assert sum(b'"kind":"decision"' in line for line in lines(directory)) == 20 * 200
    assert len(list((directory / "keys").glob("*.pub"))) == 1


def test_twenty_starts_repair_one_dead_log_once(directory: Path) -> None:
    abandoned(directory)
    writers = [start(WRITE_SOME, directory, 1 << 30, f"s-{at}") for at in range(8)]
    assert [writer.wait(60) for writer in writers] == [0] * 8
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
    assert sum(b'"event":"recovered"' in line for line in lines(directory)) == 1
    assert verify(directory).ok


def test_finished_files_are_not_looked_at(directory: Path) -> None:
    """A long history does not slow the start of a run, and what somebody did to a finished log stays to be found."""
    write_log(directory, 3)
    file = files(directory)[0]
    os.truncate(file, file.stat().st_size - 5)
    before = (file.read_bytes(), os.stat(file).st_mtime_ns)
    write_log(directory, 1)
    assert (file.read_bytes(), os.stat(file).st_mtime_ns) == before
    assert faults(verify(directory)) == ["5:torn", "4:truncated"]
