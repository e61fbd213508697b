"""Asks the index: in a bounded set of threads, each with its own connection, every question for a bounded time.

It reads the log and brings the index up to date; the index can always be rebuilt, so that is no way to change anything.
What came since the last question may be hours of a busy log: a question waits for a moment's share of it, and its
thread takes in the rest when it has answered.
"""

import asyncio
import contextlib
import math
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from broker.audit.errors import AuditError
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.review.page.opening import Opener
from broker.review.page.rendering import NOTICE

THREADS: Final = 3
_MOST_WAITING: Final = 32
SECONDS: Final = 8.0  # that a question may take
PORTION: Final = 2.0  # that it waits before for what is new to be taken in
_BEHIND: Final = (
    "The index is being brought up to date: what came last may be missing. Load the page anew after a while."
)
_STEPS: Final = 10_000  # of SQLite's machine between two looks at the clock: well below a millisecond


class Unanswered(AuditError):  # noqa: N818
    """A question has no answer now. The message says why and what to do."""


class Reader:
    """The log of one directory (a descriptor), with its index at a path."""

    def __init__(self, directory: int, index: Path | None) -> None:
        self._opener = Opener(directory, index)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="question")
        self._waiting = 0
        self._closing = False

    async def ask[T](self, question: Callable[[AuditIndex], T]) -> T:
        """Return what the question returns. Raises what it raises, and `Unanswered` for what is no fault of it."""
        if self._waiting >= _MOST_WAITING:
            raise Unanswered("too many questions at once; ask again")
        answer = Future[T]()
        self._pool.submit(self._settle, question, answer)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        answer.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._forget))
        return await asyncio.wrap_future(answer)

    def prepare(self) -> "Future[None]":
        """Bring the index up to date before anybody asks: the first time that may take minutes."""
        return self._pool.submit(self._answer, lambda _: None, math.inf)

    def close(self) -> None:
        """No further question. What is under way is ended: the process cannot end before its threads do."""
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self) -> None:
        self._waiting -= 1

    def _settle[T](self, question: Callable[[AuditIndex], T], answer: "Future[T]") -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            found = self._answer(question, time.monotonic() + PORTION)
        except BaseException as error:  # noqa: BLE001  as a pool settles its futures
            answer.set_exception(error)
        else:
            answer.set_result(found)
        if NOTICE.get() == _BEHIND:
            self._go_on()

    def _go_on(self) -> None:
        """Take in what the question did not wait for. Where that fails, the next one says why."""
        with contextlib.suppress(sqlite3.Error, OSError), self._opener.opened() as index:
            index.database.set_progress_handler(lambda: self._closing, _STEPS)
            index.refresh()

    def _answer[T](self, question: Callable[[AuditIndex], T], until: float) -> T:
        try:
            with self._opener.opened() as index:
                return self._bounded(index, question, until)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise Unanswered(f"no answer within {SECONDS:g} seconds; ask for less, a shorter time say") from error
            raise Unanswered(f"the index cannot be used now ({error}); ask again") from error
        except sqlite3.DatabaseError as error:
            raise Unanswered(f"the index is damaged ({error}); delete {INDEX_NAME}*, it is rebuilt") from error
        except msgspec.MsgspecError as error:
            raise Unanswered(
                "a line of the log was changed or damaged; `wicketgate audit verify` says which"
            ) from error
        except OSError as error:
            raise Unanswered(f"cannot read the log: {error.strerror}") from error

    def _bounded[T](self, index: AuditIndex, question: Callable[[AuditIndex], T], until: float) -> T:
        try:
            index.refresh(until)
            NOTICE.set(_BEHIND if index.behind else "")
        except sqlite3.OperationalError as error:  # a full disk, a lock that does not end: what is there is told
            NOTICE.set(f"The index could not be brought up to date ({error}): what came last may be missing.")
        deadline = time.monotonic() + SECONDS
        index.database.set_progress_handler(lambda: self._closing or time.monotonic() > deadline, _STEPS)
        return question(index)
