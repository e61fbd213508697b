"""How a log is kept, and what it counts. Value types only."""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from broker.audit.records import Kind, Record, Verdict

# Looked up once: a member of an Enum class costs more than the rest of a comparison.
_DECISION: Final = Kind.DECISION
_ALLOW: Final = Verdict.ALLOW
_FAILURE: Final = Verdict.FAILURE


class SyncPolicy(StrEnum):
    """When the kernel is told to put the log on the disk. A killed process loses nothing in any of them."""

    ALWAYS = "always"  # with every flush: survives a power cut, costs a disk write per turn
    INTERVAL = "interval"  # by the caller's timer, which calls `sync`
    NEVER = "never"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a log is kept. `clock` gives nanoseconds since the epoch, `monotonic` seconds."""

    sync: SyncPolicy = SyncPolicy.INTERVAL
    max_bytes: int = 64 * 1024 * 1024
    checkpoint_seconds: float = 60.0
    clock: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic


class Counts(msgspec.Struct):
    """Verdicts recorded since the log was opened, for a closing line. Not the truth: that is the log.

    A failure was allowed first and counts there, too; what was allowed and then refused after all counts as denied.
    """

    allowed: int = 0
    denied: int = 0
    failures: int = 0

    def add(self, record: Record) -> None:
        """Count a decision, or the refusal or failure that ended an allowed one."""
        verdict = record.verdict
        if verdict is _ALLOW:
            self.allowed += record.kind is _DECISION
        elif verdict is _FAILURE:
            self.failures += 1
        elif verdict is not None:
            self.denied += record.count or 1
            self.allowed -= record.kind is not _DECISION
