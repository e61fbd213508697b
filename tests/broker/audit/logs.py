"""Logs for tests: records of one shape, and ways to read a directory."""

import os
from pathlib import Path

from broker.audit.checking import Report, verify_directory
from broker.audit.directory import open_directory
from broker.audit.log import AuditLog
from broker.audit.records import Event, Kind, Plane, Record, Verdict
from broker.audit.signing import load_public_keys
from broker.audit.verifier import Position
from broker.policy.reasons import Reason


def decision(number: int = 0, *, session: str = "s-1", host: str = "api.example.com", allow: bool = True) -> Record:
    return Record(
        kind=Kind.DECISION,
        session=session,
        call=f"call-{number}",
        grant="g-1",
        policy="p1",
        plane=Plane.INSPECT,
        wanted="198.18.0.1:443",
        method="GET",
        scheme="https",
        authority=f"{host}:443",
        path=f"/items/{number}?page={number}",
        verdict=Verdict.ALLOW if allow else Verdict.DENY,
        reason=Reason.RULE_ALLOW if allow else Reason.HOST_NOT_ALLOWED,
        rule="project-api" if allow else "",
    )


def session_start(session: str = "s-1") -> Record:
    return Record(kind=Kind.SESSION, event=Event.START, session=session)


def write_log(directory: Path, count: int, *, max_bytes: int = 1 << 30, sign: bool = True) -> str:
    """Write a whole log of `count` decisions and return its id."""
    log = AuditLog.open(directory, max_bytes=max_bytes)
    for number in range(1, count + 1):
        log.append(decision(number))
        log.flush()
    log.close(sign=sign)
    return log.name


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsonl"))


def lines(directory: Path) -> list[bytes]:
    return [line for file in files(directory) for line in file.read_bytes().splitlines()]


def verify(directory: Path, heads: tuple[Position, ...] = ()) -> Report:
    descriptor = open_directory(directory, reading=True)
    try:
        return verify_directory(descriptor, load_public_keys(descriptor), heads)
    finally:
        os.close(descriptor)


def faults(report: Report) -> list[str]:
    """`line:fault` of each finding, and the number of the file where there is more than one."""
    return [f"{finding.line}:{finding.fault}" for finding in report.findings]
