"""Scale: cost against the number of rules, of sandboxes and of records. Each curve is a list of points."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import audit, policy
from bench.measures import Sample
from bench.origins import Origins
from bench.processes import ROOT
from bench.results import Row
from broker.audit.directory import open_directory
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.log import AuditLog, SyncPolicy
from broker.audit.questions import Filter, search

RULES: Final = (100, 1_000, 10_000, 100_000)
SESSIONS: Final = (5, 25, 50, 100, 200)  # the first few load what the others find loaded
RECORDS: Final = (1_000, 10_000, 100_000)
SESSION_SECONDS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """`series`: by name the values (or None) at each of `x`."""

    key: str
    title: str
    x_title: str
    y_title: str
    x: tuple[float, ...]
    series: dict[str, tuple[float, ...]]

    def as_document(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "x_title": self.x_title,
            "y_title": self.y_title,
            "x": list(self.x),
            "series": {name: list(values) for name, values in self.series.items()},
        }


def measure_rules(counts: Sequence[int] = RULES) -> tuple[list[Curve], dict[str, Row]]:
    """Verdict and load time; and the rows that the goal compares: ten rules and the most."""
    found = [policy.compare("exact", count, weigh=False) for count in counts]
    few = f"{policy.SMALL} rules"

    def column(key: str) -> tuple[float, ...]:
        return tuple(float(str(row[key])) for row in found)

    verdicts = {"allowed": column("allow_us_large"), "denied": column("deny_us_large")}
    ten = {"allowed, 10 rules": column("allow_us_10")}
    curves = [
        Curve(
            key="rules",
            title="Time of a verdict by the size of the policy",
            x_title="rules",
            y_title="µs",
            x=tuple(map(float, counts)),
            series=verdicts | ten,
        ),
        Curve(
            key="rules-load",
            title="Time to load a policy",
            x_title="rules",
            y_title="s",
            x=tuple(map(float, counts)),
            series={"load": column("load_s")},
        ),
    ]
    rows = {
        few: Row(samples=[Sample(value=column("allow_us_10")[-1], cpu=None)]),
        f"{counts[-1]:,} rules": Row(samples=[Sample(value=column("allow_us_large")[-1], cpu=None)]),
    }
    return curves, rows


def measure_sessions(origins: Origins, counts: Sequence[int] = SESSIONS) -> list[Curve]:
    """Start, memory and request time with that many live sandboxes. Raises RuntimeError, TimeoutExpired."""
    words = [str(origins.cacert), str(origins.https), *map(str, counts)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.sessions", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=SESSION_SECONDS,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    points = json.loads(done.stdout)
    asked = (
        ("start_ms", "ms", "Time to make and attach one more bridge"),
        ("memory_mb", "MB", "Memory of the broker"),
        ("request_us", "µs", "Time of an inspected kept-alive request"),
    )
    return [
        Curve(
            key=f"sessions-{key}",
            title=title,
            x_title="live sandboxes, each with a grant",
            y_title=unit,
            x=tuple(point["sessions"] for point in points),
            series={"Wicketgate": tuple(point[key] for point in points)},
        )
        for key, unit, title in asked
    ]


def measure_log(counts: Sequence[int] = RECORDS) -> list[Curve]:
    """What a reviewer waits for: an index of the log, and answers from it."""
    asked = {
        "newest 50": Filter(),
        "one host's refusals": Filter(host="host5.pkg.example.net", verdict="deny"),
        "text that is nowhere": Filter(text="no such text"),
    }
    index_ms: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in asked}
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place) / "log"
            with AuditLog.open(directory, sync=SyncPolicy.NEVER) as log:
                for number in range(1, count + 1):
                    log.append(audit.decision(number))
            with AuditIndex.open(open_directory(directory, reading=True), directory / INDEX_NAME) as index:
                index_ms.append(_milliseconds(index.refresh))
                for name, wanted in asked.items():
                    times[name].append(_milliseconds(lambda w=wanted: search(index, w)))
    x = tuple(map(float, counts))
    questions = {name: tuple(values) for name, values in times.items()}
    what = {"x_title": "records", "y_title": "ms", "x": x}
    return [
        Curve(key="log", title="Time to answer a question about the log", series=questions, **what),  # type: ignore[arg-type]
        Curve(key="log-index", title="Time to build the log's index", series={"build": tuple(index_ms)}, **what),  # type: ignore[arg-type]
    ]


def _milliseconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3
