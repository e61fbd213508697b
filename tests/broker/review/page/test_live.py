"""Streams: a number when something new matches, nothing else, and only so many at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from broker.audit.log import AuditLog
from broker.review.page.reader import Unanswered
from tests.broker.audit.logs import decision
from tests.broker.review.page.logs import Served, served

PATIENCE = 60.0


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Served]:
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(decision(1))
    async with served(tmp_path / "audit") as made:
        yield made


async def told(answer: aiohttp.ClientResponse) -> bytes:
    async with asyncio.timeout(PATIENCE):
        while not (line := await answer.content.readline()).startswith(b"data"):
            assert line
    return line.strip()


async def live_address(page: Served, path: str) -> str:
    _, text = await page.get(path)
    return page.base + text.partition('data-live="')[2].partition('"')[0].replace("&amp;", "&")


async def test_a_stream_tells_how_many_newer_records_match(page: Served, tmp_path: Path) -> None:
    address = await live_address(page, "/records?host=other.example")
    assert "host=other.example" in address
    async with page.client.get(address, headers=page.cookie) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        with AuditLog.open(tmp_path / "audit") as log:
            log.append(decision(2))  # another host
            log.append(decision(3, host="other.example"))
            log.append(decision(4, host="other.example"))
            log.flush()
            assert await told(answer) == b"data: 2"
            log.append(decision(5, host="other.example"))
            log.flush()
            assert await told(answer) == b"data: 3"


async def test_an_older_page_has_no_stream(page: Served) -> None:
    _, text = await page.get("/records?until=2030-01-01")
    assert "data-live" not in text
    _, text = await page.get("/?page=1.s")
    assert "data-live" not in text


async def test_there_are_only_so_many_streams(page: Served) -> None:
    address = await live_address(page, "/")
    kept = []
    for _ in range(24):
        answer = await page.client.get(address, headers=page.cookie)
        assert answer.status == 200
        kept.append(answer)
    status, text = await page.get(address.removeprefix(page.base))
    assert status == 503
    assert "too many live pages" in text
    assert (await page.get("/"))[0] == 200
    for answer in kept:
        answer.close()
    async with asyncio.timeout(PATIENCE):
        while True:
            async with page.client.get(address, headers=page.cookie) as answer:
                if answer.status == 200:
                    return


async def raw(page: Served, method: str, path: str) -> bytes:
    """All that comes back for one request, as it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nCookie: {page.cookie['Cookie']}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_bad_filter_is_told_before_the_stream_and_never_within_it(page: Served) -> None:
    answer = await raw(page, "GET", "/live?after=1&since=never")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_head_of_a_stream_has_no_body_and_ends(page: Served) -> None:
    head, _, body = (await raw(page, "HEAD", "/live?after=1")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Type: text/event-stream" in head
    assert body == b""
    assert page.server._streams._open == 0


async def test_a_stream_outlives_a_question_without_an_answer(
    page: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def refuse(_: object) -> int:
        asked.set()
        raise Unanswered("too many questions at once")

    address = await live_address(page, "/records")
    ask = page.server._reader.ask
    monkeypatch.setattr(page.server._reader, "ask", refuse)
    async with page.client.get(address, headers=page.cookie) as answer:
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
        monkeypatch.setattr(page.server._reader, "ask", ask)
        with AuditLog.open(tmp_path / "audit") as log:
            log.append(decision(2))
            log.flush()
            assert int((await told(answer)).removeprefix(b"data: ")) > 0


async def test_a_fault_within_a_stream_ends_it_and_begins_no_second_answer(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> int:
        raise RuntimeError("a fault")

    monkeypatch.setattr(page.server._reader, "ask", fail)
    answer = await raw(page, "GET", "/live?after=1")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"0\r\n\r\n")


async def test_streams_ask_one_after_the_other(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a reader with many live pages leaves threads to the pages of others."""
    go_on, most, now, came = asyncio.Event(), 0, 0, 0

    async def wait(_: object) -> int:
        nonlocal most, now, came
        now, came = now + 1, came + 1
        most = max(most, now)
        await go_on.wait()
        now -= 1
        return 0

    monkeypatch.setattr(page.server._reader, "ask", wait)
    kept = [await page.client.get(f"{page.base}/live?after=1", headers=page.cookie) for _ in range(5)]
    async with asyncio.timeout(PATIENCE):
        for answer in kept:
            assert (await answer.content.readline()).startswith(b"retry")
        go_on.set()
        while came < len(kept):
            await asyncio.sleep(0.01)
    assert most == 1
    for answer in kept:
        answer.close()
