import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.audit.directory import open_directory
from broker.audit.following import Follower
from broker.audit.log import AuditLog
from tests.broker.audit.logs import decision, files, write_log


@pytest.fixture
def descriptor(log: AuditLog, directory: Path) -> Iterator[int]:
    opened = open_directory(directory, reading=True)
    yield opened
    os.close(opened)


def test_only_what_is_new_is_given(log: AuditLog, descriptor: int) -> None:
    log.append(decision(1))
    log.flush()
    follower = Follower(descriptor)
    assert follower.poll() == []
    log.append(decision(2))
    log.append(decision(3))
    assert follower.poll() == []
    log.flush()
    assert [entry.call for entry in follower.poll()] == ["call-2", "call-3"]
    assert follower.poll() == []


def test_new_logs_rotation_and_renaming_are_followed(descriptor: int, directory: Path) -> None:
    follower = Follower(descriptor)
    write_log(directory, 30, max_bytes=2500)
    calls = [entry.call for entry in follower.poll() if entry.kind == "decision"]
    assert calls == [f"call-{number}" for number in range(1, 31)]
    assert follower.poll() == []


def test_half_a_line_waits_for_its_other_half(log: AuditLog, descriptor: int, directory: Path) -> None:
    follower = Follower(descriptor)
    log.append(decision(1))
    log.flush()
    file = files(directory)[0]
    content = file.read_bytes()
    os.truncate(file, len(content) - 10)
    assert follower.poll() == []
    with file.open("ab") as end:
        end.write(content[-10:])
    assert [entry.call for entry in follower.poll()] == ["call-1"]


def test_follow_ends_when_told(log: AuditLog, descriptor: int) -> None:
    follower = Follower(descriptor)
    turns = iter([False, False, True])

    def wait() -> bool:
        log.append(decision(1))
        log.flush()
        return next(turns)

    assert len(list(follower.follow(wait))) == 2


def test_what_comes_after_an_endless_line_is_given(descriptor: int, directory: Path) -> None:
    name = write_log(directory, 3)
    file = next(file for file in files(directory) if name in file.name)
    follower = Follower(descriptor)
    records = file.read_bytes()
    with file.open("ab") as end:
        end.truncate(len(records) + 5_000_000)
        end.seek(0, os.SEEK_END)
        assert not follower.poll()
        end.write(b"\n" + records)
    assert len(follower.poll()) == len(records.splitlines())


def test_noise_is_passed_over(descriptor: int, directory: Path) -> None:
    follower = Follower(descriptor)
    (directory / "20300101T000000Z-aaaaaaaaaaaa-000001.jsonl").write_bytes(b"noise\n{}\n")
    assert follower.poll() == []
