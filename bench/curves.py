"""Scale: cost against the number of rules, sandboxes, tunnels and records, and how each cost has to grow.

Each curve is a list of points and a promise. Where a busy machine would move a time, the process's own CPU stands
beside it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench import audit, policy
from bench.fits import FLAT, growth
from bench.measures import Sample
from bench.origins import Origins
from bench.processes import ROOT
from bench.results import Row
from broker.audit.checking import verify_directory
from broker.audit.directory import open_directory
from broker.audit.following import Follower
from broker.audit.index import INDEX_NAME, AuditIndex
from broker.audit.log import AuditLog, SyncPolicy
from broker.audit.signing import load_public_keys

RULES: Final = (10, 100, 1_000, 10_000, 100_000)
SESSIONS: Final = (5, 50, 100, 200, 500, 1_000)  # the first few load what the others find loaded
SANDBOXES: Final = (10, 50, 100, 250, 500, 1_000)
TUNNELS: Final = (100, 500, 1_000, 2_000, 4_000)
RECORDS: Final = (10_000, 100_000, 300_000, 1_000_000)
SESSION_SECONDS: Final = 900
TUNNEL_MB: Final = 0.004
_FLAT: Final[dict[str, Any]] = {"flat": True}
_LINEAR: Final[dict[str, Any]] = {}
INTERACTIVE: Final = 1_000.0  # milliseconds that somebody who asks waits for
REPEATS: Final = 3
WHOLE: Final = ("summary of everything",)  # reads all there is, and may take as long as there is


SHOWN: Final = ("a session", "a host, refused", "text that is nowhere", "a domain")  # of the answers, in the plot


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """`series`: by name the values at each of `x`.

    Each must be flat where `flat` says so, stay below `most` at the end where that is given and it is not one of
    `WHOLE`, grow by no more than `each` for one more of x, between any neighbours, where that is given, and else grow
    no faster than n·log n. `shown`: the series to plot, all where it is empty.
    """

    key: str
    title: str
    x_title: str
    y_title: str
    x: tuple[float, ...]
    series: dict[str, tuple[float, ...]]
    flat: bool = False
    most: float | None = None
    each: float | None = None
    shown: tuple[str, ...] = ()

    def promises(self) -> list[dict[str, Any]]:
        """What was promised of each series and what was found, as the goals of a result's document."""
        found = []
        for name, values in self.series.items():
            grown = growth(self.x, values)
            about = {"title": self.title if len(self.series) == 1 else f"{self.title}: {name}", "ours": "Wicketgate"}
            what = f"{self.x[0]:,.0f} … {self.x[-1]:,.0f} {self.x_title}"
            if self.flat:
                goal = f"≤ {FLAT:g} x the first, {what}"
                found.append({**about, "goal": goal, "ratio": grown.ratio, "reached": grown.is_flat})
            elif self.most is not None and name not in WHOLE:
                goal = f"≤ {self.most:,.0f} {self.y_title} at {self.x[-1]:,.0f} {self.x_title}"
                found.append({**about, "goal": goal, "ratio": values[-1], "reached": values[-1] <= self.most})
            elif self.each is not None:
                goal = f"≤ {self.each:g} {self.y_title} for one more, {what}"
                steepest = max(
                    (b - a) / (n - m) for (m, n), (a, b) in zip(pairwise(self.x), pairwise(values), strict=True)
                )
                found.append({**about, "goal": goal, "ratio": steepest, "reached": steepest <= self.each})
            else:
                goal = f"at most as n·log n (n^{grown.allowed:.2f}), {what}"
                found.append({**about, "goal": goal, "ratio": grown.exponent, "reached": grown.is_within})
        return found

    def as_document(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "x_title": self.x_title,
            "y_title": self.y_title,
            "x": list(self.x),
            "series": {name: list(values) for name, values in self.series.items()},
            "shown": list(self.shown or self.series),
            "promises": self.promises(),
        }


def measure_rules(counts: Sequence[int] = RULES) -> tuple[list[Curve], dict[str, Row]]:
    """Verdict and load time; and the rows that the goal compares: ten rules and the most."""
    found = [policy.compare("exact", count, weigh=False) for count in counts]
    few = f"{policy.SMALL} rules"

    def column(key: str) -> tuple[float, ...]:
        return tuple(float(str(row[key])) for row in found)

    curves = [
        Curve(
            key="rules",
            title="Time of a verdict against that under ten rules, in turns",
            x_title="rules",
            y_title="x",
            x=tuple(map(float, counts)),
            series={"allowed": column("allow_ratio"), "denied": column("deny_ratio")},
            most=policy.GOAL,
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
    """Start, memory and request with that many live sandboxes. Raises RuntimeError, TimeoutExpired."""
    asked = (
        ("start_ms", "ms", "Time to make and attach one more bridge", _LINEAR),
        ("memory_mb", "MB", "Memory of the broker", _LINEAR),
        ("request_us", "µs", "Time of an inspected kept-alive request", _FLAT),
        ("request_cpu_us", "µs", "The broker's CPU for an inspected kept-alive request", _FLAT),
    )
    return _live("sessions", "live sandboxes, each with a grant", asked, origins, counts)


def measure_sandboxes(counts: Sequence[int] = SANDBOXES) -> list[Curve]:
    """The whole of it: that many real sessions through both daemons. Raises RuntimeError, TimeoutExpired."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.scale", *map(str, counts)],
        check=False,
        capture_output=True,
        text=True,
        timeout=SESSION_SECONDS,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    result = json.loads(done.stdout)
    if result["left"]:
        raise RuntimeError(f"after {counts[-1]:,} sandboxes something is left: {'; '.join(result['left'])}")
    points = result["points"]

    def curve(key: str, title: str, y_title: str, series: dict[str, str], *, flat: bool = False) -> Curve:
        return Curve(
            key=f"sandboxes-{key}",
            title=title,
            x_title="live sandboxes of a runner, each with a grant",
            y_title=y_title,
            x=tuple(point["count"] for point in points),
            series={name: tuple(point[what] for point in points) for name, what in series.items()},
            flat=flat,
        )

    return [
        curve("start", "To open one more session", "ms", {"time": "start_ms", "the runner's CPU": "start_cpu_ms"}),
        curve("command", "A command in a session", "ms", {"time": "command_ms", "the runner's CPU": "command_cpu_ms"}),
        curve("request", "The broker's CPU for a request", "µs", {"inspected": "request_cpu_us"}, flat=True),
        curve(
            "memory",
            "Memory",
            "MB",
            {"the broker": "broker_mb", "the runner": "runner_mb", "all sandboxes": "sandboxes_mb"},
        ),
    ]


def measure_tunnels(origins: Origins, counts: Sequence[int] = TUNNELS) -> list[Curve]:
    """Opening, memory and another connection's request with that many tunnels open. Raises as `measure_sessions`."""
    asked = (
        ("open_us", "µs", "Time to open one more tunnel", _FLAT),
        ("open_cpu_us", "µs", "The broker's CPU to open one more tunnel", _FLAT),
        # What the broker has got already takes the first of them, so no power of n tells anything.
        ("memory_mb", "MB", "Memory of the broker with open tunnels", {"each": TUNNEL_MB}),
        ("request_cpu_us", "µs", "The broker's CPU for a request beside open tunnels", _FLAT),
    )
    return _live("tunnels", "open tunnels of one sandbox", asked, origins, counts)


def _live(
    what: str,
    x_title: str,
    asked: Sequence[tuple[str, str, str, dict[str, Any]]],
    origins: Origins,
    counts: Sequence[int],
) -> list[Curve]:
    words = [str(origins.cacert), str(origins.https), str(origins.hold), what, *map(str, counts)]
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
    return [
        Curve(
            key=f"{what}-{key}",
            title=title,
            x_title=x_title,
            y_title=unit,
            x=tuple(point["count"] for point in points),
            series={"Wicketgate": tuple(point[key] for point in points)},
            **promise,
        )
        for key, unit, title, promise in asked
    ]


def measure_log(counts: Sequence[int] = RECORDS, *, directory: Path | None = None) -> list[Curve]:
    """What a reviewer waits for: the index of a log that grows, answers from it, a tail, and its verification.

    One log by the real writer, below `directory` or the usual temporary one; its index is made anew at each count.
    """
    times: dict[str, list[float]] = {}
    build: list[float] = []
    verify: list[float] = []
    with tempfile.TemporaryDirectory(dir=directory) as place:
        where = Path(place) / "log"
        with AuditLog.open(where, sync=SyncPolicy.NEVER) as log:
            written = 0
            for count in counts:
                for number in range(written + 1, count + 1):
                    log.append(audit.decision(number))
                    if number % audit.BATCH == 0:
                        log.flush()
                log.flush()
                written = count
                descriptor = open_directory(where, reading=True)
                path = Path(place) / INDEX_NAME
                with AuditIndex.open(descriptor, path) as index:
                    build.append(_milliseconds(index.refresh) / 1e3)
                    for name, question in audit.questions(count, log.name).items():
                        repeats = 1 if name in WHOLE else REPEATS
                        asked = [_milliseconds(partial(question, index)) for _ in range(repeats)]
                        times.setdefault(name, []).append(statistics.median(asked))
                times.setdefault("begin a tail", []).append(_milliseconds(partial(_begin_tail, descriptor)))
                verify.append(_milliseconds(partial(_verify, descriptor)) / 1e3)
                os.close(descriptor)
                for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                    path.with_name(name).unlink(missing_ok=True)
    what: dict[str, Any] = {"x_title": "records", "x": tuple(map(float, counts))}
    answers = {name: tuple(values) for name, values in times.items()}
    return [
        Curve(key="log", title="Time to answer", y_title="ms", series=answers, most=INTERACTIVE, shown=SHOWN, **what),
        Curve(
            key="log-index", title="Time to build the log's index", y_title="s", series={"build": tuple(build)}, **what
        ),
        Curve(key="log-verify", title="Time to verify the log", y_title="s", series={"verify": tuple(verify)}, **what),
    ]


def _begin_tail(directory: int) -> None:
    Follower(directory).poll()


def _verify(directory: int) -> None:
    assert verify_directory(directory, load_public_keys(directory)).ok


def _milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3
