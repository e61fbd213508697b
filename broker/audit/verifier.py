"""Finds what was done to a log: changed, removed, moved or added lines, missing files and ends, forged signatures.

What can be found without any key: a line that was changed, removed, moved or put in, a file that is missing between
two others, a finished file whose end was cut. What needs more: whoever can write the files and recompute every hash
after the change is found by the next signed checkpoint, unless he has the signing key; a log that was removed or cut as
a whole (or a live one cut at its end) is found by comparing with heads that were noted elsewhere (`verify --against`).

Pure: lines come in as bytes, signatures are checked by a function that is passed in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from broker.audit.chain import GENESIS, Checkpoint, decode_checkpoint, link, record_number, signed_message, split_line
from broker.audit.gaps import Gaps
from broker.audit.lines import MAX_LINE

CheckSignature = Callable[[str, bytes, bytes], bool]
"""(key id, message, signature) → whether a trusted key of that id made it."""


class Fault(StrEnum):
    """What the verifier can say about a line or a file."""

    MALFORMED = "malformed"
    CHANGED = "changed"
    REMOVED = "removed"
    REORDERED = "reordered"
    INSERTED = "inserted"
    TRUNCATED = "truncated"
    TORN = "torn"
    FORGED = "forged"
    MISSING_FILE = "missing_file"
    MISSING_HEAD = "missing_head"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: where (line 0: the file as a whole) and what."""

    file: str
    line: int
    fault: Fault
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last place in a log that is known: `number` counts records, `head` is the hash there."""

    log: str
    number: int
    head: str


class _Head(msgspec.Struct):
    id: str
    time: str
    kind: str


_decode_head = msgspec.json.Decoder(_Head).decode


@dataclass(slots=True)
class LogVerifier:
    """Checks the files of one log in order. Feed every line, then read `findings`.

    Usage: for each file `start_file`, `feed` per line, `end_file`; then `finish`.
    """

    log: str
    check_signature: CheckSignature | None = None
    wanted_heads: dict[int, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    signed_through: int = 0
    beside: str = ""
    head: str = GENESIS
    number: int = 0
    _file: str = ""
    _line: int = 0
    _segment: int = 0
    _expected_segment: int = 1
    _last_event: str = ""
    _misplaced: bool = False
    _missing: Gaps = field(default_factory=Gaps)
    _seen_heads: set[int] = field(default_factory=set)

    def start_file(self, name: str, segment: int) -> None:
        """Begin with the file `name`, the `segment`-th of the log."""
        self._file, self._line, self._segment, self._last_event = name, 0, segment, ""
        if segment < self._expected_segment:
            self._find(0, Fault.INSERTED, f"file {segment} of log {self.log} is here a second time")
        for number in range(self._expected_segment, min(segment, self._expected_segment + 1000)):
            self._find(0, Fault.MISSING_FILE, f"file {number} of log {self.log} is missing before this one")
        if segment != self._expected_segment or self._misplaced:
            self.head, self.number = "", -1  # taken from the file's first line: one fault, one finding
        self._misplaced = False
        self._expected_segment = segment + 1

    def feed(self, line: bytes) -> None:
        """Check one line, without its newline."""
        self._line += 1
        parts = split_line(line) if len(line) <= MAX_LINE else None
        head = _read_head(line) if parts else None
        if parts is None or head is None:
            self._find(self._line, Fault.MALFORMED, "not a line of this log's format")
            return
        body, stated = parts
        self.records += 1
        in_place = (
            self._check_first(head, line, body, stated) if self._line == 1 else self._check_next(head, body, stated)
        )
        if head.kind == "checkpoint" and in_place:
            self._check_checkpoint(line)
        else:
            self._last_event = ""
        if in_place:
            self.head = stated
            self._check_wanted_head()

    def end_file(self, *, torn: int, open_end: bool, more_files: bool) -> None:
        """Finish a file: `torn` bytes follow its last newline; `open_end`: its writer has not finished it."""
        if torn:
            self._find(self._line + 1, Fault.TORN, f"{torn} bytes without a line end")
        if self._line == 0:
            if not open_end:  # else its writer died between making the file and its first line
                self._find(0, Fault.TRUNCATED, "the file has no line")
        elif not more_files and not open_end and self._last_event not in ("closed", "recovered"):
            what = "the next file is missing" if self._last_event == "rotated" else "the closing line is missing"
            self._find(self._line, Fault.TRUNCATED, what)

    def finish(self) -> list[Finding]:
        """Return all findings, in the order of the files."""
        for first, last, (file, line) in self._missing.runs():
            count = last - first + 1
            what = f"{count} record{'s' if count > 1 else ''} missing: {self.log}-{first}"
            self._add(file, line, Fault.REMOVED, what + (f" to {self.log}-{last}" if count > 1 else ""))
        for number in sorted(self.wanted_heads.keys() - self._seen_heads):
            self._add(self._file, 0, Fault.MISSING_HEAD, f"{self.log}-{number} was noted earlier and is not there")
        return self.findings

    def _check_first(self, head: _Head, line: bytes, body: bytes, stated: str) -> bool:
        opened = _try_checkpoint(line)
        if opened is None or opened.event != "opened" or not head.id.startswith(f"{self.log}."):
            # The line that opened the file is gone: what is here is judged as any other line.
            self._find(1, Fault.REMOVED, "the first line does not open this file")
            return self._check_next(head, body, stated)
        if head.id != f"{self.log}.{self._segment}":
            self._find(1, Fault.REORDERED, f"this is file {opened.segment} of log {self.log} under another's name")
            self.head, self._misplaced = "", True
        if self.head == "":
            self.head, self.number = opened.previous, opened.after
        if opened.previous != self.head:
            # A writer that lost its file goes on in a new one without a word, but never with another hash.
            lost = opened.after - self.number
            end = f"the last {lost} records of the file before are missing"
            self._find(
                1, *((Fault.TRUNCATED, end) if lost > 0 else (Fault.CHANGED, "does not continue the file before"))
            )
            self.number = max(self.number, opened.after)
        if link(opened.previous, body) != stated:
            self._find(1, Fault.CHANGED, "the line does not have the hash it states")
        self.beside = self.beside or opened.beside
        return True

    def _check_next(self, head: _Head, body: bytes, stated: str) -> bool:
        """Judge a line by its number and its hash; return whether the chain goes on from it."""
        number = record_number(head.id)
        if number is None or head.id != f"{self.log}-{number}":
            self._find(self._line, Fault.INSERTED, "the line belongs to another log or place")
            return False
        linked = self.head != "" and link(self.head, body) == stated
        expected = number if self.number < 0 else self.number + 1
        if number == expected:
            if not linked and self.head:
                self._find(self._line, Fault.CHANGED, "this line or the one before it was changed")
        elif number > expected:
            self._missing.add(expected, number - 1, self._here())
        elif self._missing.fill(number):
            self._find(self._line, Fault.REORDERED, f"{head.id} is out of order")
            return False
        else:
            self._find(self._line, Fault.INSERTED, f"{head.id} is here a second time")
            return False
        self.number = number
        return True

    def _check_checkpoint(self, line: bytes) -> None:
        checkpoint = _try_checkpoint(line)
        if checkpoint is None:
            self._find(self._line, Fault.MALFORMED, "not a checkpoint of this log's format")
            return
        self._last_event = checkpoint.event
        if not checkpoint.signature:
            return
        if checkpoint.head != self.head:
            self._find(self._line, Fault.FORGED, "the signed hash is not that of the line before it")
        elif self.check_signature is not None:
            self._check_signed(checkpoint, self.check_signature)

    def _check_signed(self, checkpoint: Checkpoint, check: CheckSignature) -> None:
        message = signed_message(checkpoint.id, checkpoint.head)
        if check(checkpoint.key, message, checkpoint.signature.encode()):
            self.signed_through = max(self.signed_through, self.number)
        else:
            self._find(self._line, Fault.FORGED, f"the signature is not by a trusted key (key {checkpoint.key[:16]})")

    def _check_wanted_head(self) -> None:
        wanted = self.wanted_heads.get(self.number)
        if wanted is None or self.number in self._seen_heads:
            return
        self._seen_heads.add(self.number)
        if wanted != self.head:
            self._find(self._line, Fault.FORGED, "differs from the head that was noted earlier")

    def _here(self) -> tuple[str, int]:
        return (self._file, self._line)

    def _find(self, line: int, fault: Fault, detail: str) -> None:
        self._add(self._file, line, fault, detail)

    def _add(self, file: str, line: int, fault: Fault, detail: str) -> None:
        self.findings.append(Finding(file=file, line=line, fault=fault, detail=detail))


def _read_head(line: bytes) -> _Head | None:
    try:
        return _decode_head(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _try_checkpoint(line: bytes) -> Checkpoint | None:
    try:
        return decode_checkpoint(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
