"""Verifies a whole directory: every log, every file, every line. Reads only; repairs nothing.

The report also holds the heads (the last number and hash of each log). Kept on another machine, they let a later run
find what no chain can show by itself: a log that was cut at its end or removed altogether.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from broker.audit.lines import read_lines
from broker.audit.segments import Segment, is_live, list_segments, open_segment, parse_segment
from broker.audit.signing import check_signature
from broker.audit.verifier import CheckSignature, Fault, Finding, LogVerifier, Position

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """One log: how much of it there is, how much of that a signature vouches for, where it ends.

    `beside` is the log that was the newest one when this one began.
    """

    log: str
    files: int
    records: int
    signed_through: int
    head: Position
    live: bool
    unfinished: bool
    beside: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All logs of a directory. `notes` are not faults: what a reader should know about the limits of this run.

    `absent` are logs that others name and that are not there: disposed of as old, or taken away.
    """

    logs: tuple[LogReport, ...]
    missing: tuple[Finding, ...] = ()
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every fault, in the order of the files."""
        return tuple(finding for log in self.logs for finding in log.findings) + self.missing

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def records(self) -> int:
        """How many lines were checked."""
        return sum(log.records for log in self.logs)


def verify_directory(directory: int, keys: "Mapping[str, Ed25519PublicKey]", heads: Iterable[Position] = ()) -> Report:
    """Check every log in `directory` (a descriptor) with these public keys, and against heads noted earlier."""
    noted: dict[str, dict[int, str]] = {}
    for head in heads:
        noted.setdefault(head.log, {})[head.number] = head.head

    def check(key_id: str, message: bytes, signature: bytes) -> bool:
        return check_signature(keys, key_id, message, signature)

    logs: list[LogReport] = []
    seen: set[str] = set()
    for _, group in groupby(
        list_segments(directory, any_type=True), key=lambda segment: (segment.started, segment.log)
    ):
        segments = list(group)
        log = segments[0].log
        logs.append(_verify_log(directory, segments, check, noted.get(log, {}), seen=log in seen))
        seen.add(log)
    missing = tuple(
        Finding(file="", line=0, fault=Fault.MISSING_HEAD, detail=f"log {log} was noted earlier and is not there")
        for log in sorted(noted.keys() - seen)
    )
    absent = tuple(dict.fromkeys(log.beside for log in logs if log.beside and log.beside not in seen))
    return Report(
        logs=tuple(logs), missing=missing, absent=absent, notes=(*_notes(logs, absent), *_strangers(directory))
    )


def _verify_log(
    directory: int, segments: list[Segment], check: CheckSignature, wanted: dict[int, str], *, seen: bool
) -> LogReport:
    verifier = LogVerifier(segments[0].log, check_signature=check, wanted_heads=wanted)
    live = False
    if seen:
        verifier.findings.append(
            Finding(file=segments[0].name, line=0, fault=Fault.INSERTED, detail="a second copy of this log")
        )
    for at, segment in enumerate(segments):
        try:
            live = _verify_file(directory, segment, verifier, is_last=at == len(segments) - 1)
        except OSError as error:
            what = error.strerror or str(error)
            verifier.findings.append(Finding(file=segment.name, line=0, fault=Fault.UNREADABLE, detail=what))
    findings = tuple(verifier.finish())
    return LogReport(
        log=verifier.log,
        files=len(segments),
        records=verifier.records,
        signed_through=verifier.signed_through,
        head=Position(log=verifier.log, number=max(verifier.number, 0), head=verifier.head),
        live=live,
        unfinished=segments[-1].is_open,
        beside=verifier.beside,
        findings=findings,
    )


def _verify_file(directory: int, segment: Segment, verifier: LogVerifier, *, is_last: bool) -> bool:
    """Check one file; return whether its writer is alive."""
    descriptor = open_segment(directory, segment)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        live = segment.is_open and is_live(descriptor)
        verifier.start_file(segment.name, segment.number)
        torn = 0
        for line in read_lines(descriptor):
            if line.ended:
                verifier.feed(line.text)
            else:
                torn = line.end - line.begin
        # An unfinished file may end in half a line: being written, or its writer died and the next start moves it.
        verifier.end_file(torn=0 if segment.is_open else torn, open_end=segment.is_open, more_files=not is_last)
    finally:
        os.close(descriptor)
    return live


def _strangers(directory: int) -> list[str]:
    """A note of each file that looks like a log's and is none by its name: a renamed one is not checked."""
    names = sorted(name for name in os.listdir(directory) if ".jsonl" in name.lower() and parse_segment(name) is None)
    return [f"{name!a} has not the name of a log's file and was not checked" for name in names]


def _notes(logs: list[LogReport], absent: tuple[str, ...]) -> tuple[str, ...]:
    unsigned = sum(max(0, log.head.number - log.signed_through) for log in logs)
    live = sum(log.live for log in logs)
    notes = []
    if unsigned:
        notes.append(
            f"{unsigned} record{'s are' if unsigned > 1 else ' is'} behind the last signed checkpoint of the log: "
            "changes there are found by the chain only"
        )
    if absent:
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        notes.append(
            f"not here any more, and named by the logs that began after them: {', '.join(absent[:_NAMED])}{more}; "
            "disposed of as old, or taken away"
        )
    unfinished = sum(not log.live and log.unfinished for log in logs)
    if unfinished:
        notes.append(
            f"{unfinished} log{'s have' if unfinished > 1 else ' has'} no writer and no end: it died, or the end was "
            "cut; the next start adds a line that says so"
        )
    if live:
        notes.append(f"{live} log{'s are' if live > 1 else ' is'} being written: a cut at the end cannot be seen yet")
    return tuple(notes)
