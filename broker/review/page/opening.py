"""Opens the index for one question, in the thread that asks it, without waiting for whoever else has it.

Where no file can be made (a full disk, a place that is only read) the index is in memory; that is kept for the thread's
next question, since making it reads the whole log.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.audit.index import AuditIndex

PATIENCE: Final = 2.0  # seconds for a lock; somebody else may have it for minutes, reading a long log


class Opener:
    """The index of one directory (a descriptor) at a path."""

    def __init__(self, directory: int, path: Path | None) -> None:
        self._directory = directory
        self._path = path
        self._kept = threading.local()

    @contextlib.contextmanager
    def opened(self) -> Iterator[AuditIndex]:
        """Open the index. Its `refresh` raises `sqlite3.OperationalError` where somebody else is at work on it."""
        with contextlib.ExitStack() as stack:
            index = stack.enter_context(AuditIndex.open(self._directory, self._path))
            index.database.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")
            if _has_file(index.database):
                self._keep(None, contextlib.ExitStack())
            elif self._kept_database is None:
                self._keep(index.database, stack.pop_all())
            if self._kept_database is not None:
                index = stack.enter_context(_Borrowed(self._directory, self._kept_database).used())
            yield index

    @property
    def _kept_database(self) -> sqlite3.Connection | None:
        return getattr(self._kept, "database", None)

    def _keep(self, database: sqlite3.Connection | None, until: contextlib.ExitStack) -> None:
        before = getattr(self._kept, "until", None)
        if before is not None:
            before.close()
        self._kept.database, self._kept.until = database, until


class _Borrowed(AuditIndex):
    """An index on a connection that is not its own; it only closes the log's files."""

    @contextlib.contextmanager
    def used(self) -> Iterator[AuditIndex]:
        self.database.set_progress_handler(None, 0)
        try:
            yield self
        finally:
            self._close_files()


def _has_file(database: sqlite3.Connection) -> bool:
    return any(place for _, _, place in database.execute("PRAGMA database_list"))
