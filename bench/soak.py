"""The soak: churn of sandboxes through both real daemons for a while, and whether anything of them grows.

    scripts/bench --soak MINUTES        (or python -m bench.soak MINUTES)

Each cycle is every act of `bench.churn` once, side by side; when all is over and every process of it is gone, the
daemons are looked at (`bench.watch`). The first quarter fills caches and is not judged; of the rest each figure's trend
is, with its confidence (`bench.fits`). A figure leaks where even the lower bound of its growth is above what it may.
"""

import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.accounting import tree
from bench.churn import ACTS, NAMES, PLAIN, SPLICED, Act, Field
from bench.fits import Trend, trend
from bench.plots import format_figure, lines
from bench.processes import ROOT
from bench.watch import Figures, Watch
from broker.control.client import Broker
from tests.live.daemons import broker_daemon
from tests.live.runners import daemon
from tests.live.runs import adopted, until
from tests.origins.process import start_https

RESULTS: Final = ROOT / "bench" / "results"
WARM_SHARE: Final = 0.25  # of the time
AT_ONCE: Final = 4  # acts side by side
QUIET_SECONDS: Final = 10.0  # how long what has ended may take to be gone
STILL_SECONDS: Final = 0.3  # without a start or an end
FEWEST: Final = 8  # samples that a judgement needs
# What a figure may grow by over the judged part, by the last words of its name; None: it is told and not judged.
ALLOWED: Final[dict[str, float | None]] = {
    "descriptors": 3,
    "sockets": 3,
    "threads": 2,
    "children": 2,
    "mounts": 2,
    "processes": 2,
    "proportional MB": 3,
    "resident MB": 4,
    # The kernel frees one after a grace period, and counts objects that lie ready for use; others' are among them.
    "_namespace": 40,
    "files in temporary": 3,
    "files in runtime": 3,
    "files in state": 8,
}
ALLOWED_NAMESPACES: Final = 2
RULE: Final = """
[[rule]]
name = "{name}"
action = "allow"
hosts = ["{host}"]
ports = [{port}]
addresses = ["127.0.0.1/32"]
tls = "{tls}"
"""


@dataclass(slots=True)
class Soak:
    """What was seen: seconds and figures of each sample, failures of acts, and how many acts there were."""

    times: list[float] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    acts: Counter[str] = field(default_factory=Counter)
    unquiet: int = 0  # cycles after which something was still alive
    warm: int = 0  # samples of the part that is not judged

    def add(self, at: float, figures: Figures) -> None:
        self.times.append(at)
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)

    def verdicts(self) -> list["Verdict"]:
        """One for each figure that every sample has."""
        count = len(self.times)
        whole = {name: values for name, values in self.figures.items() if len(values) == count}
        if count - self.warm < FEWEST:
            return []
        return [
            Verdict(
                name=name,
                allowed=allowance(name),
                trend=trend(self.times[self.warm :], values[self.warm :]),
                last=values[-1],
            )
            for name, values in sorted(whole.items())
        ]

    @property
    def troubles(self) -> list[str]:
        """Why this soak is not clean; empty where it is."""
        found = [f"{one.name} grows by {format_figure(one.trend.growth)}" for one in self.verdicts() if one.leaks]
        if not self.verdicts():
            found.append(f"only {len(self.times)} samples: too few to judge")
        if self.unquiet:
            found.append(f"after {self.unquiet} cycles something was still alive")
        return found + self.failures[:20]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a figure grows over the judged part by more than it may."""

    name: str
    allowed: float | None
    trend: Trend
    last: float

    @property
    def leaks(self) -> bool:
        return self.allowed is not None and self.trend.low > self.allowed


def allowance(name: str) -> float | None:
    if name.startswith("namespaces: "):
        return ALLOWED_NAMESPACES
    return next((allowed for ending, allowed in ALLOWED.items() if name.endswith(ending)), None)


@contextmanager
def daemons(directory: Path) -> Iterator[tuple[Watch, dict[str, Any]]]:
    """Both daemons, an origin, and a watch over them. What they leave in the temporary directory is seen there."""
    temporary = directory / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    with ExitStack() as started:
        certificates = directory / "origin"
        certificates.mkdir()
        origin = started.enter_context(start_https(certificates, names=NAMES))
        ports = {name: origin.http if name == PLAIN else origin.https for name in NAMES}
        rules = "".join(
            RULE.format(
                name=host.partition(".")[0], host=host, port=port, tls="splice" if host == SPLICED else "inspect"
            )
            for host, port in ports.items()
        )
        resolve = "".join(f'"{host}:{port}" = ["127.0.0.1"]\n' for host, port in ports.items())
        extra = f'cacert = ["{origin.cacert}"]\n[grants]\nretention_seconds = 60\n[resolve]\n{resolve}'
        started.enter_context(_temporary_directory(temporary))
        broker = started.enter_context(broker_daemon(rules, extra=extra))
        runner = started.enter_context(daemon(extra=f'attach = "{broker.attach}"'))
        assert broker.process is not None
        assert runner.process is not None
        places = {
            "temporary": temporary,
            "runtime of the broker": broker.directory / "run",
            "runtime of the runner": runner.directory / "run",
            "state of the runner": runner.state,
            "the log": broker.directory / "state" / "audit",
        }
        wait_still()
        watch = Watch({"broker": broker.process.pid, "runner": runner.process.pid}, places)
        yield watch, {"broker": broker, "runner": runner, "origin": origin}


def wait_still() -> None:
    """Until nothing has started or ended for a moment: a fork on its way to another program is no daemon."""
    seen, since = tree(os.getpid()), time.monotonic()

    def is_still() -> bool:
        nonlocal seen, since
        if (now := tree(os.getpid())) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > STILL_SECONDS

    until(is_still)


@contextmanager
def _temporary_directory(place: Path) -> Iterator[None]:
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"], tempfile.tempdir = str(place), None
    try:
        yield
    finally:
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


async def _cycle(place: Field, seen: Soak, acts: Sequence[Act]) -> None:
    """Every act once, so many side by side."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(act: Act) -> None:
        async with at_once:
            seen.acts[act.__name__] += 1
            try:
                await act(place)
            except Exception as error:  # noqa: BLE001  counted, and the soak goes on
                seen.failures.append(f"{act.__name__}: {type(error).__name__}: {error}"[:600])

    await asyncio.gather(*map(one, acts))


async def soak(
    *,
    seconds: float = math.inf,
    cycles: float = math.inf,
    period: float = 0.0,
    patience: float = QUIET_SECONDS,
    acts: Sequence[Act] = ACTS,
    report: Callable[[Soak], None] = lambda _: None,
) -> Soak:
    """Churn for so many seconds or cycles, a cycle begun every `period` seconds at most.

    What a cycle has ended may take `patience` seconds to be gone; `report` is told after each sample. Raises
    DaemonEndedError when a daemon goes away.
    """
    seen = Soak()
    with adopted() as left, tempfile.TemporaryDirectory(prefix="wicketgate-soak-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with daemons(directory) as (watch, started):
            runner, broker, origin = started["runner"], started["broker"], started["origin"]
            begin = time.monotonic()
            async with runner.client() as client, Broker(broker.control) as control:
                place = Field(
                    runner=client,
                    broker=control,
                    http=origin.http,
                    https=origin.https,
                    workspace=runner.workspace(),
                )
                while (now := time.monotonic() - begin) < seconds and len(seen.times) < cycles:
                    await _cycle(place, seen, acts)
                    seen.unquiet += not await quiet(watch, left, patience)
                    at = time.monotonic() - begin
                    settling = at < seconds * WARM_SHARE and len(seen.times) < cycles * WARM_SHARE
                    seen.add(at, watch.sample(settling=settling))
                    seen.warm += settling
                    report(seen)
                    await asyncio.sleep(max(0.0, now + period - (time.monotonic() - begin)))
    return seen


async def quiet(watch: Watch, left: Callable[[], object], patience: float) -> bool:
    """Wait until what was started is gone and what is parked is made; tell whether it is."""
    deadline = time.monotonic() + patience
    before, since = watch.processes(), time.monotonic()
    while time.monotonic() < deadline:
        left()  # takes leave of what came to us
        if (now := watch.processes()) != before:
            before, since = now, time.monotonic()
        if watch.is_quiet() and time.monotonic() - since > STILL_SECONDS:
            return True
        await asyncio.sleep(0.05)
    return watch.is_quiet()


def as_document(seen: Soak) -> dict[str, Any]:
    """All of it, for the page and for plots."""
    return {
        "seconds": seen.times[-1] if seen.times else 0.0,
        "acts": dict(seen.acts),
        "failures": len(seen.failures),
        "troubles": seen.troubles,
        "warm": seen.warm,
        "times": seen.times,
        "figures": seen.figures,
        "verdicts": [
            {
                "name": one.name,
                "level": one.trend.level,
                "growth": one.trend.growth,
                "low": one.trend.low,
                "high": one.trend.high,
                "allowed": one.allowed,
                "leaks": one.leaks,
            }
            for one in seen.verdicts()
        ],
    }


def pictures(document: dict[str, Any]) -> dict[str, str]:
    """SVG by name: what a reader looks at first."""
    minutes = [at / 60 for at in document["times"]]
    found = {}
    for what, unit in (("descriptors", "descriptors"), ("proportional MB", "MB"), ("threads", "threads")):
        series = {
            name.partition(":")[0]: values
            for name, values in document["figures"].items()
            if name.endswith(f": {what}") and len(values) == len(minutes)
        }
        if series:
            titles = {"x_title": "minutes of churn", "y_title": unit}
            found[f"soak-{what.split()[0]}"] = lines(f"Soak: {what}", minutes, series, **titles)
    namespaces = {
        name.partition(": ")[2]: values
        for name, values in document["figures"].items()
        if name.startswith("namespaces: ") and len(values) == len(minutes)
    }
    if namespaces:
        titles = {"x_title": "minutes of churn", "y_title": "namespaces"}
        found["soak-namespaces"] = lines("Soak: namespaces", minutes, namespaces, **titles)
    return found


def print_verdicts(seen: Soak) -> None:
    print(f"\n{'figure':<38}{'level':>10}{'growth':>10}{'99 % between':>22}{'allowed':>9}")
    for one in seen.verdicts():
        between = f"{one.trend.low:.3g} … {one.trend.high:.3g}"
        allowed = "" if one.allowed is None else f"{one.allowed:g}"
        word = "  LEAKS" if one.leaks else ""
        print(f"{one.name:<38}{one.trend.level:>10.4g}{one.trend.growth:>10.3g}{between:>22}{allowed:>9}{word}")
    print(f"\n{sum(seen.acts.values())} acts in {len(seen.times)} cycles, {len(seen.failures)} of them went wrong")
    print("\n".join(seen.troubles) or "clean: nothing grows")


def run(minutes: float, *, period: float = 6.0) -> int:
    """Soak, print, write the result and its plots; the exit status."""

    shown = 0

    def report(seen: Soak) -> None:
        nonlocal shown
        for failure in seen.failures[shown:]:
            print(f"{seen.times[-1] / 60:6.1f} min: {failure}", flush=True)
        shown = len(seen.failures)
        if len(seen.times) % 20 == 1:
            last = {
                name: values[-1] for name, values in seen.figures.items() if name.endswith(("descriptors", "al MB"))
            }
            told = ", ".join(f"{name} {value:.4g}" for name, value in last.items())
            print(f"{seen.times[-1] / 60:6.1f} min, {len(seen.failures)} failures: {told}", flush=True)

    seen = asyncio.run(soak(seconds=minutes * 60, period=period, report=report))
    print_verdicts(seen)
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = as_document(seen)
    (RESULTS / "soak.json").write_text(json.dumps(document) + "\n")
    for name, text in pictures(document).items():
        (RESULTS / f"{name}.svg").write_text(text)
    return 1 if seen.troubles else 0


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
