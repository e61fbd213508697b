"""What the audit log costs: time per record, and how long questions take over a large log.

    python -m bench.audit [--records 1000000] [--directory DIR]

Prints microseconds per record for each part of the path (medians of interleaved rounds), then the time to build the
index, to search, to summarise and to verify. Needs about 700 bytes of disk a record, which it removes again.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from broker.audit.checking import verify_directory
from broker.audit.directory import open_directory
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.log import AuditLog, SyncPolicy
from broker.audit.neighbours import show
from broker.audit.questions import Filter, search, summarise
from broker.audit.records import Kind, Plane, Record, Verdict, encode_record
from broker.audit.signing import load_public_keys
from broker.policy.reasons import Reason

ROUNDS = 7
REPEATS = 4000
BATCH = 20  # records decided in one turn of a busy loop


def decision(number: int) -> Record:
    """A record as the gateway makes it: hosts, sessions and verdicts in the mixture of a real day."""
    allow = number % 10 != 0
    return Record(
        kind=Kind.DECISION,
        session=f"s-{number // 500:08x}",
        call=f"call_{number // 20:010x}",
        grant=f"g-{number // 100:08x}",
        policy="4f1c0a6f2d9be371",
        plane=Plane.INSPECT,
        wanted="198.18.0.5:443",
        method="GET",
        scheme="https",
        authority=f"host{number % 97}.pkg.example.net:443",
        path=f"/v1/projects/{number % 1000}/items?page={number}&limit=100",
        verdict=Verdict.ALLOW if allow else Verdict.DENY,
        reason=Reason.RULE_ALLOW if allow else Reason.HOST_NOT_ALLOWED,
        rule="project-api" if allow else "",
        dialled="93.184.216.34:443" if allow else "",
    )


def per_call(work: Callable[[], object], repeats: int) -> float:
    """Return microseconds of this process's CPU a call."""
    begun = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - begun) / repeats * 1e6


def measure_parts(directory: Path) -> None:
    """Print the cost of each part, rounds interleaved."""
    record = decision(1)
    body = encode_record(record)
    raw = msgspec.json.Encoder().encode
    logs = {policy: AuditLog.open(directory / policy, sync=policy) for policy in (SyncPolicy.NEVER, SyncPolicy.ALWAYS)}
    never, always = logs[SyncPolicy.NEVER], logs[SyncPolicy.ALWAYS]

    def batch(log: AuditLog, count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                log.append(record)
            log.flush()

        return run

    parts: list[tuple[str, Callable[[], object], int, int]] = [
        ("make the record", lambda: decision(1), 1, REPEATS),
        ("JSON alone (msgspec)", lambda: raw(record), 1, REPEATS),
        ("redact, bound and encode", lambda: encode_record(record), 1, REPEATS),
        ("SHA-256 of a line", lambda: sha256(body).hexdigest(), 1, REPEATS),
        (f"append, one flush for {BATCH}", batch(never, BATCH), BATCH, REPEATS // BATCH),
        ("append, a flush for each", batch(never, 1), 1, REPEATS),
        (f"append, one flush and fdatasync for {BATCH} (CPU)", batch(always, BATCH), BATCH, 20),
    ]
    times: dict[str, list[float]] = {name: [] for name, *_ in parts}
    for _ in range(ROUNDS):
        for name, work, records, repeats in parts:
            times[name].append(per_call(work, repeats) / records)
    print(f"microseconds of CPU a record, median of {ROUNDS} rounds ({len(body)} bytes of JSON)")
    for name, values in times.items():
        print(f"  {name:48} {statistics.median(values):7.2f}   (best {min(values):.2f})")
    for log in logs.values():
        log.close()


def timed(name: str, work: Callable[[], object]) -> None:
    """Print the wall time of one question."""
    begun = time.perf_counter()
    result = work()
    print(f"  {name:48} {(time.perf_counter() - begun) * 1000:10.1f} ms   {result}")


def questions(records: int, log: str) -> dict[str, Callable[[AuditIndex], str]]:
    """What a reviewer asks of a log of that many records by `decision`, by what it is called; each answers how much."""
    filters = {
        "newest 50": Filter(),
        "a session": Filter(session=f"s-{records // 1000:08x}"),
        "a tool call": Filter(call=f"call_{records // 40:010x}"),
        "a host": Filter(host="host5.pkg.example.net"),
        "a domain": Filter(host="example.net"),
        "refused": Filter(verdict="deny"),
        "a host, refused": Filter(host="host5.pkg.example.net", verdict="deny"),
        "a reason nobody was given": Filter(reason="name_mismatch"),
        "a rule that nobody has": Filter(rule="no-such-rule"),
        "a method that nobody used": Filter(method="DELETE"),
        "text that is there": Filter(text="projects/77/"),
        "text that is nowhere": Filter(text="no such text"),
    }

    def found(wanted: Filter) -> Callable[[AuditIndex], str]:
        return lambda index: f"{len(search(index, wanted).entries)} found"

    return {name: found(wanted) for name, wanted in filters.items()} | {
        "show one record": lambda index: f"linked: {show(index, f'{log}-{records // 2}').linked}",
        "summary of a session": lambda index: f"{len(summarise(index, Filter(session='s-00000001')))} rows",
        "summary of everything": lambda index: f"{len(summarise(index, Filter()))} rows",
    }


def measure_questions(directory: Path, records: int) -> None:
    """Print how long the questions take over a log of that many records."""
    begun = time.perf_counter()
    with AuditLog.open(directory, sync=SyncPolicy.NEVER) as log:
        for number in range(1, records + 1):
            log.append(decision(number))
            if number % BATCH == 0:
                log.flush()
    seconds = time.perf_counter() - begun
    size = sum(path.stat().st_size for path in directory.glob("*.jsonl"))
    print(
        f"\n{records} records, {size / 1e6:.0f} MB, written in {seconds:.1f} s "
        f"({seconds / records * 1e6:.1f} µs of wall time a record, making it included)"
    )
    descriptor = open_directory(directory, reading=True)
    with AuditIndex.open(descriptor, directory / INDEX_NAME) as index:
        timed("build the index", index.refresh)
        print(f"  {'size of the index':48} {(directory / INDEX_NAME).stat().st_size / 1e6:10.1f} MB")
        timed("refresh with nothing new", index.refresh)
        for name, question in questions(records, log.name).items():
            timed(name, lambda ask=question: ask(index))  # type: ignore[misc]
    timed("verify everything", lambda: verify_directory(descriptor, load_public_keys(descriptor)).ok)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="how many, at most 10 million")
    parser.add_argument("--directory", type=Path, help="where to write (default: the system's temporary directory)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        measure_parts(Path(directory))
        measure_questions(Path(directory) / "large", min(arguments.records, 10_000_000))


if __name__ == "__main__":
    main()
