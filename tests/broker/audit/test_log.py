import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from broker.audit.errors import AuditUnavailable
from broker.audit.log import AuditLog, LogSettings, SyncPolicy
from broker.audit.records import Event, Kind, Record, Verdict
from broker.policy.reasons import Reason
from tests.broker.audit.logs import decision, faults, files, lines, session_start, verify, write_log


class Clock:
    """Time that stands still until told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_ids_are_given_at_once_and_lines_written_by_flush(log: AuditLog, directory: Path) -> None:
    first, second = log.append(session_start()), log.append(decision())
    assert (first, second) == (f"{log.name}-1", f"{log.name}-2")
    assert len(lines(directory)) == 1  # the line that opened the file
    log.flush()
    assert [json.loads(line)["id"] for line in lines(directory)] == [f"{log.name}.1", first, second]


def test_a_flush_is_one_write(directory: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from broker.audit.log import AuditLog\n"
        "log = AuditLog.open(Path(sys.argv[1]))\n"
        "ids = [log.append({'kind': 'session', 'event': 'start'}) for _ in range(50)]\n"
        "before = open('/proc/self/io').read(); log.flush(); after = open('/proc/self/io').read()\n"
        "print([int(text.split('syscw: ')[1].split()[0]) for text in (before, after)])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(directory)], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert after - before == 1


def test_each_line_says_when(log: AuditLog, directory: Path) -> None:
    log.append(decision())
    log.flush()
    for line in lines(directory):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", json.loads(line)["time"])


def test_times_are_written_to_the_microsecond(directory: Path) -> None:
    log = AuditLog.open(directory, settings=LogSettings(clock=lambda: 1_700_000_000_000_001_999))
    log.close(sign=False)
    assert json.loads(lines(directory)[0])["time"] == "2023-11-14T22:13:20.000001Z"


def test_files_are_ours_only(log: AuditLog, directory: Path) -> None:
    log.sync()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files(directory)} == {0o600}


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_log(tmp_path / "audit", 1)
    finally:
        os.umask(before)
    for path in (tmp_path / "audit").rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_counts(log: AuditLog) -> None:
    log.append(decision(allow=True))
    log.append(decision(allow=False))
    log.append(decision(allow=False))
    log.append(Record(kind=Kind.CLOSE, verdict=Verdict.FAILURE, reason=Reason.CONNECT_REFUSED))
    log.append(Record(kind=Kind.CLOSE, reason=Reason.FINISHED))
    assert (log.counts.allowed, log.counts.denied, log.counts.failures) == (1, 2, 1)
    log.append(decision(allow=True))
    log.append(Record(kind=Kind.CLOSE, verdict=Verdict.DENY, reason=Reason.ADDRESS_REFUSED))
    assert (log.counts.allowed, log.counts.denied, log.counts.failures) == (1, 3, 1)


def test_close_writes_a_signed_end(directory: Path) -> None:
    write_log(directory, 3)
    end = json.loads(lines(directory)[-1])
    assert (end["kind"], end["event"]) == ("checkpoint", "closed")
    assert end["signature"]
    assert verify(directory).ok
    assert [log.signed_through for log in verify(directory).logs] == [4]


def test_closing_twice_is_allowed_and_a_closed_log_takes_no_record(directory: Path) -> None:
    log = AuditLog.open(directory)
    log.close(sign=False)
    log.close()
    log.append(decision())
    with pytest.raises(AuditUnavailable):
        log.flush()


def test_rotation_carries_the_chain_across_files(directory: Path) -> None:
    write_log(directory, 60, max_bytes=4000)
    assert len(files(directory)) > 4
    assert all(file.stat().st_size < 6000 for file in files(directory))
    starts = [json.loads(file.read_bytes().splitlines()[0]) for file in files(directory)]
    ends = [json.loads(file.read_bytes().splitlines()[-1]) for file in files(directory)]
    assert [start["previous"] for start in starts[1:]] == [end["hash"] for end in ends[:-1]]
    assert [end["event"] for end in ends] == ["rotated"] * (len(ends) - 1) + ["closed"]
    report = verify(directory)
    assert report.ok
    assert report.logs[0].signed_through == report.logs[0].head.number


def test_a_forgotten_flush_does_not_hold_everything_in_memory(log: AuditLog, directory: Path) -> None:
    for number in range(2000):
        log.append(decision(number))
    assert len(lines(directory)) > 500


@pytest.mark.parametrize("policy", SyncPolicy)
def test_every_sync_policy_keeps_every_record(directory: Path, policy: SyncPolicy) -> None:
    with AuditLog.open(directory, sync=policy) as log:
        for number in range(20):
            log.append(decision(number))
            log.flush()
        log.sync()
    assert len(lines(directory)) == 22
    assert verify(directory).ok


async def test_an_event_loop_goes_on_during_a_sync(directory: Path) -> None:
    with AuditLog.open(directory, max_bytes=2000) as log:
        for number in range(30):
            log.append(decision(number))
            syncing = asyncio.create_task(log.sync_in_thread())
            log.append(decision(number))
            log.flush()  # rotates now and then, while the old file is being synced
            await syncing
    assert verify(directory).ok
    assert sum(b'"decision"' in line for line in lines(directory)) == 60


def test_sync_signs_when_a_checkpoint_is_due_and_there_is_something_to_sign(directory: Path) -> None:
    clock = Clock()
    log = AuditLog.open(directory, settings=LogSettings(monotonic=clock, checkpoint_seconds=60))

    def events() -> list[str]:
        return [json.loads(line).get("event", "") for line in lines(directory)]

    log.append(decision())
    log.sync()
    assert events() == ["opened", ""]
    clock.seconds += 61
    log.sync()
    assert events() == ["opened", "", "interval"]
    clock.seconds += 61
    log.sync()
    assert events() == ["opened", "", "interval"]
    log.append(decision())
    log.sync()
    assert events() == ["opened", "", "interval", "", "interval"]
    log.close()
    assert verify(directory).ok


@pytest.mark.parametrize(("kind", "imported"), [("session", 0), ("decision", 1)])
def test_cryptography_is_imported_only_to_sign_what_was_decided(directory: Path, kind: str, imported: int) -> None:
    script = (
        "import sys; from pathlib import Path; from broker.audit.log import AuditLog\n"
        "log = AuditLog.open(Path(sys.argv[1]))\n"
        "log.append({'kind': sys.argv[2], 'verdict': None if sys.argv[2] == 'session' else 'allow'}); log.flush()\n"
        "log.sync(); assert 'cryptography' not in sys.modules; log.close()\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(directory), kind], check=False).returncode == imported
    assert verify(directory).ok


def test_a_broken_key_does_not_stop_the_log(directory: Path) -> None:
    write_log(directory, 1)
    (directory / "keys" / "signing.pem").write_text("nonsense")
    write_log(directory, 1)
    end = json.loads(files(directory)[-1].read_bytes().splitlines()[-1])
    ends = [json.loads(file.read_bytes().splitlines()[-1]) for file in files(directory)]
    assert any("unsigned" in end.get("detail", "") for end in ends), end
    assert verify(directory).ok


def outage(log: AuditLog, clock: Clock) -> None:
    with pytest.raises(AuditUnavailable):
        log.flush()
    assert not log.available
    assert log.cause
    clock.seconds += 1


def test_a_removed_file_is_noticed_and_the_log_goes_on_in_another(directory: Path) -> None:
    clock = Clock()
    log = AuditLog.open(directory, settings=LogSettings(monotonic=clock))
    log.append(decision(1))
    log.flush()
    files(directory)[0].unlink()
    kept = log.append(decision(2))
    outage(log, clock)
    log.flush()
    assert log.available
    log.close()
    assert kept.encode() in b"".join(lines(directory))
    assert faults(verify(directory)) == ["0:missing_file"]


@pytest.mark.parametrize("harm", ["cut", "append"])
def test_a_file_changed_by_another_is_given_up(directory: Path, harm: str) -> None:
    clock = Clock()
    log = AuditLog.open(directory, settings=LogSettings(monotonic=clock))
    log.append(decision(1))
    log.flush()
    file = files(directory)[0]
    if harm == "cut":
        os.truncate(file, file.stat().st_size - 10)
    else:
        file.write_bytes(file.read_bytes() + b"{}\n")
    log.append(decision(2))
    outage(log, clock)
    log.flush()
    log.close()
    assert not verify(directory).ok
    assert any(b'"event":"gap"' in line for line in lines(directory))


def test_a_removed_directory_stops_egress_until_it_is_back(directory: Path, tmp_path: Path) -> None:
    clock = Clock()
    log = AuditLog.open(directory, settings=LogSettings(monotonic=clock))
    for path in files(directory):
        path.unlink()
    directory.rmdir()
    log.append(decision())
    outage(log, clock)
    outage(log, clock)
    with pytest.raises(AuditUnavailable):
        log.append(decision())
    with pytest.raises(AuditUnavailable):
        log.close()


def test_what_happened_during_an_outage_is_told(directory: Path) -> None:
    """Decisions are refused; what reports something that has happened is kept and written late, in order."""
    clock = Clock()
    log = AuditLog.open(directory, settings=LogSettings(monotonic=clock))
    files(directory)[0].unlink()
    log.append(decision(1))
    with pytest.raises(AuditUnavailable):
        log.flush()
    clock.seconds += 0.1
    for _ in range(3):
        with pytest.raises(AuditUnavailable):
            log.append(decision(2))
    log.append(Record(kind=Kind.CLOSE, reason=Reason.FINISHED, bytes_up=5))
    clock.seconds += 5
    log.append(decision(3))
    assert log.available
    log.flush()
    log.close()
    told = [json.loads(line) for line in lines(directory)]
    assert [line.get("event") or line["kind"] for line in told] == [
        "opened",
        "decision",
        "close",
        "gap",
        "decision",
        "closed",
    ]
    assert "for 5.1 s" in told[3]["detail"]
    assert "decisions refused: 3" in told[3]["detail"]
    assert "records written late: 2" in told[3]["detail"]


def test_the_backlog_is_bounded_and_what_is_dropped_is_counted(directory: Path) -> None:
    clock = Clock()
    log = AuditLog.open(directory, settings=LogSettings(monotonic=clock))
    files(directory)[0].unlink()
    log.append(decision(1))
    with pytest.raises(AuditUnavailable):
        log.flush()
    dropped = 0
    for _ in range(20_000):
        try:
            log.append(Record(kind=Kind.CLOSE, session="s" * 100, reason=Reason.FINISHED))
        except AuditUnavailable:
            dropped += 1
    assert 0 < dropped < 20_000
    clock.seconds += 1
    log.flush()
    log.close()
    gap = next(json.loads(line) for line in lines(directory) if b'"gap"' in line)
    assert f"records dropped: {dropped}" in gap["detail"]
    assert faults(verify(directory)) == ["0:missing_file"]


def test_events_are_told_by_name(log: AuditLog, directory: Path) -> None:
    log.append(Record(kind=Kind.POLICY, event=Event.RELOAD_FAILED, detail="line 3: unknown key 'host'"))
    log.append(Record(kind=Kind.GRANT, event=Event.EXHAUSTED, grant="g-1"))
    log.flush()
    assert [json.loads(line)["event"] for line in lines(directory)[1:]] == ["reload_failed", "exhausted"]
