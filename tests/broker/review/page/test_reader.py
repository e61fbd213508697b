"""Questions are bounded in number and time, and one that takes long holds no other up."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.audit.directory import open_directory
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.log import AuditLog
from broker.audit.questions import Filter, search
from broker.review.page import opening
from broker.review.page import reader as module
from broker.review.page.reader import Reader, Unanswered
from broker.review.page.rendering import NOTICE
from tests.broker.audit.logs import decision


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    with AuditLog.open(tmp_path / "audit") as log:
        for number in range(10):
            log.append(decision(number))
    descriptor = open_directory(tmp_path / "audit", reading=True)
    made = Reader(descriptor, tmp_path / "audit" / INDEX_NAME)
    yield made
    made.close()
    os.close(descriptor)


def records(index: AuditIndex) -> int:
    return len(search(index, Filter(kind="decision"), limit=100).entries)


async def test_one_that_waits_holds_no_other_up(reader: Reader) -> None:
    go_on = threading.Event()
    slow = [asyncio.create_task(reader.ask(lambda _: go_on.wait(60))) for _ in range(2)]
    assert await reader.ask(records) == 10
    go_on.set()
    assert await asyncio.gather(*slow) == [True, True]


async def test_a_question_without_end_is_ended(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.1)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"
    with pytest.raises(Unanswered, match="no answer within"):
        await reader.ask(lambda index: index.database.execute(endless).fetchone())
    assert await reader.ask(records) == 10


async def test_too_many_at_once_are_refused(reader: Reader) -> None:
    go_on = threading.Event()
    waiting = [asyncio.create_task(reader.ask(lambda _: go_on.wait(60))) for _ in range(module._MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Unanswered, match="too many"):
        await reader.ask(records)
    go_on.set()
    await asyncio.gather(*waiting)
    assert await reader.ask(records) == 10


async def test_an_index_that_is_deleted_is_made_again(reader: Reader, tmp_path: Path) -> None:
    assert await reader.ask(records) == 10
    for file in (tmp_path / "audit").glob(f"{INDEX_NAME}*"):
        file.unlink()
    assert await reader.ask(records) == 10
    assert (tmp_path / "audit" / INDEX_NAME).exists()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PATIENCE", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_an_index_that_another_process_holds_is_asked_as_it_is(reader: Reader, tmp_path: Path) -> None:
    """Waiting for it, as long as a first reading of a long log takes, would hold everybody up."""
    assert await reader.ask(told) == (10, "")
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(decision(10))
    other = sqlite3.connect(tmp_path / "audit" / INDEX_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(20):
        count, notice = await reader.ask(told)
    assert count == 10
    assert "database is locked" in notice
    other.execute("ROLLBACK")
    other.close()
    assert await reader.ask(told) == (11, "")


async def test_where_no_index_can_be_kept_the_log_is_not_read_anew_for_each_question(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)  # the end of one question is no end of the next
    place = tmp_path / "audit" / INDEX_NAME
    place.symlink_to(tmp_path / "elsewhere")
    refresh, taken = AuditIndex.refresh, list[int]()

    def counted(index: AuditIndex, until: float) -> int:
        taken.append(refresh(index, until))
        return taken[-1]

    monkeypatch.setattr(AuditIndex, "refresh", counted)
    for _ in range(12):
        assert await reader.ask(records) == 10
        await asyncio.sleep(0.06)
    assert len(taken) == 12
    assert taken.count(10) <= module.THREADS
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(decision(10))
    assert await reader.ask(records) == 11
    place.unlink()
    assert await reader.ask(records) == 11
    assert place.is_file()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kept", [True, False])
async def test_a_long_backlog_is_no_wait_and_is_taken_in_behind_the_answer(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    if not kept:
        (tmp_path / "audit" / INDEX_NAME).symlink_to(tmp_path / "elsewhere")
    reader.prepare().result()
    with AuditLog.open(tmp_path / "audit") as log:
        for number in range(10, 30):
            log.append(decision(number))
    monkeypatch.setattr(module, "PORTION", 0.0)
    count, notice = await reader.ask(told)
    assert count < 30
    assert "may be missing" in notice
    async with asyncio.timeout(20):
        while notice:
            count, notice = await reader.ask(told)
    assert count == 30


async def test_taking_in_a_backlog_holds_no_end_up(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.prepare().result()
    (file,) = (tmp_path / "audit").glob("*.jsonl")
    content = file.read_bytes()
    with file.open("ab") as log:
        for _ in range(4000):
            log.write(content)
    monkeypatch.setattr(module, "PORTION", 0.0)
    _, notice = await reader.ask(told)
    reader.close()
    reader._pool.shutdown(wait=True)
    assert "may be missing" in notice
    descriptor = open_directory(tmp_path / "audit", reading=True)
    with AuditIndex.open(descriptor, tmp_path / "audit" / INDEX_NAME) as index:
        assert index.database.execute("SELECT COUNT(*) FROM records").fetchone()[0] < 100
    os.close(descriptor)


def told(index: AuditIndex) -> tuple[int, str]:
    return records(index), NOTICE.get()
