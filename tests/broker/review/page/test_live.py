"""Streams: a number when something new matches, nothing else, and only so many at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from broker.audit.log import AuditLog
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
