"""Run inside a user and mount namespace of its own: a log on a disk that really is full.

Prints one JSON document about what happened; the test beside it judges.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from broker.audit.errors import AuditUnavailable
from broker.audit.log import AuditLog, LogSettings, SyncPolicy
from broker.audit.records import Kind, Record
from broker.policy.reasons import Reason
from tests.broker.audit.logs import decision, faults, lines, verify

SIZE = 192 * 1024


def mount_small_disk(where: Path) -> None:
    where.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(where).encode(), b"tmpfs", 0, f"size={SIZE},mode=0700".encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def fill(log: AuditLog) -> tuple[list[str], str]:
    """Write until the disk is full; return the ids of what was flushed, and the cause that was given."""
    flushed: list[str] = []
    for number in range(100_000):
        batch = [log.append(decision(number)), log.append(decision(number))]
        try:
            log.flush()
        except AuditUnavailable as error:
            return flushed, str(error)
        flushed += batch
    raise AssertionError("the disk never filled")


def main(where: Path, policy: SyncPolicy) -> None:
    mount_small_disk(where)
    now = time.monotonic()
    log = AuditLog.open(where / "audit", settings=LogSettings(sync=policy, monotonic=lambda: now, max_bytes=50_000))
    ballast = where / "ballast"
    ballast.write_bytes(bytes(24 * 1024))
    flushed, cause = fill(log)
    story: dict[str, object] = {"flushed": len(flushed), "cause": cause, "available": log.available}
    on_disk = lines(where / "audit")
    story["all flushed are there"] = set(flushed) <= {json.loads(line).get("id") for line in on_disk}
    story["torn while full"] = not all(path.read_bytes().endswith(b"\n") for path in (where / "audit").glob("*.jsonl"))
    now += 1
    refused = 0
    for _ in range(5):
        try:
            log.append(decision())
        except AuditUnavailable:
            refused += 1
    kept = log.append(Record(kind=Kind.CLOSE, reason=Reason.FINISHED, bytes_down=7))
    story["refused while full"] = refused
    ballast.unlink()
    now += 1
    after = log.append(decision())
    log.flush()
    story["available again"] = log.available
    log.close()
    ids = {json.loads(line).get("id") for line in lines(where / "audit")}
    story["nothing is lost"] = {*flushed, kept, after} <= ids
    story["gap is told"] = sum(b'"event":"gap"' in line for line in lines(where / "audit"))
    story["faults"] = faults(verify(where / "audit"))
    print(json.dumps(story))


def main_full_from_the_start(where: Path) -> None:
    mount_small_disk(where)
    with (where / "ballast").open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(4096))
        except OSError:
            pass
    try:
        AuditLog.open(where / "audit")
    except AuditUnavailable as error:
        print(json.dumps({"cause": str(error), "left": [path.name for path in (where / "audit").glob("*")]}))


if __name__ == "__main__":
    if sys.argv[2] == "full":
        main_full_from_the_start(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), SyncPolicy(sys.argv[2]))
