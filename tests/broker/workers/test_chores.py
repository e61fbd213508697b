"""What fails from time to time is shown until it works again, and goes on being tried."""

import asyncio
import contextlib

import pytest

from broker.audit.errors import AuditUnavailable
from broker.workers.chores import again


@pytest.mark.parametrize("error", [OSError("no disk"), RuntimeError("can't start new thread")])
async def test_a_failure_is_shown_until_it_works_again(error: Exception) -> None:
    troubles: dict[str, str] = {}
    outcomes: list[Exception | None] = [error, AuditUnavailable("said by the log itself"), None, error, None]
    seen: list[dict[str, str]] = []
    done = asyncio.Event()

    async def chore() -> None:
        seen.append(dict(troubles))
        if not outcomes:
            done.set()
            return
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    task = asyncio.create_task(again(0.0, chore, "sync_failed", troubles))
    async with asyncio.timeout(10):
        await done.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    shown = {"sync_failed": str(error)}
    assert seen == [{}, shown, shown, {}, shown, {}]


async def test_what_nobody_expected_ends_it() -> None:
    async def chore() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await again(0.0, chore, "sync_failed", {})
