"""The figures of a run: medians over rounds, ratios within the run, our place against each goal. No I/O."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.measures import MEASURES, Sample, Unit

if TYPE_CHECKING:
    from bench.curves import Curve


FULL: Final = 0.93  # share of a core's time from which it is the bottleneck


def _median(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known else None


@dataclass(slots=True, kw_only=True)
class Row:
    """One subject's samples for one measure, or what kept it from having any."""

    samples: list[Sample] = field(default_factory=list)
    failure: str = ""  # no rate is worth printing
    missing: str = ""  # why a round has no sample

    @property
    def trouble(self) -> str:
        """Why there is no figure; empty where there is one."""
        return self.failure or ("" if self.samples else self.missing)

    @property
    def value(self) -> float | None:
        return _median(sample.value for sample in self.samples)

    @property
    def cpu(self) -> float | None:
        return _median(sample.cpu for sample in self.samples)

    @property
    def spread(self) -> float | None:
        """Half the range of the rounds against the median: what a ratio is worth."""
        values = [sample.value for sample in self.samples]
        middle = self.value
        return (max(values) - min(values)) / 2 / middle if middle else None

    @property
    def is_load_bound(self) -> bool:
        """Whether client and origin had no more to give while the proxy had: then the rate is theirs."""
        if self.cpu is None or self.proxy_core is None or self.load_core is None:
            return False
        return self.load_core > FULL > self.proxy_core

    @property
    def proxy_core(self) -> float | None:
        return _median(sample.proxy_core for sample in self.samples)

    @property
    def load_core(self) -> float | None:
        return _median(sample.load_core for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What one measure of ours has to reach, against every peer named that took part; without peers, a plain figure.

    `ours`: the one row of ours that it is about; every one where it is empty.
    """

    measure: str
    peers: tuple[str, ...]
    factor: float
    of: str = "value"  # or "cpu"
    at_most: bool = False
    ours: str = ""

    def words(self, peer: str) -> str:
        sign = "≤" if self.at_most else "≥"
        if not peer:
            return f"{sign} {self.factor:,.0f}"
        return f"{sign} {self.factor:g} x {'CPU of ' if self.of == 'cpu' else ''}{peer}"

    def is_reached_by(self, ratio: float) -> bool:
        return ratio <= self.factor if self.at_most else ratio >= self.factor


GOALS: Final = (
    Goal(measure="new", peers=("Squid", "tinyproxy"), factor=1.3),
    Goal(measure="kept", peers=("Squid",), factor=1.0),
    Goal(measure="bulk-8", peers=("Squid", "sandbox-runtime"), factor=1.5),
    Goal(measure="bulk-8", peers=("Squid",), factor=0.6, of="cpu", at_most=True),
    Goal(measure="bulk-tls", peers=("Squid",), factor=0.95),
    Goal(measure="wait-kept", peers=("Squid",), factor=1.1, at_most=True),
    Goal(measure="wait-new", peers=("Squid",), factor=1.1, at_most=True),
    Goal(measure="memory", peers=(), factor=4, at_most=True),
    Goal(measure="inspect-kept", peers=("Squid ssl_bump",), factor=1.1),
    Goal(measure="inspect-kept", peers=("mitmdump",), factor=15),
    Goal(measure="inspect-kept", peers=("sandbox-runtime, TLS terminated",), factor=4),
    Goal(measure="inspect-kept", peers=("Wicketgate, inspect, no log",), factor=0.85),
    Goal(measure="inspect-new", peers=("Squid ssl_bump",), factor=5),
    Goal(measure="inspect-new", peers=("mitmdump", "sandbox-runtime, TLS terminated"), factor=10),
    Goal(measure="inspect-bulk-1", peers=("Squid ssl_bump",), factor=2.3),
    Goal(measure="inspect-bulk-8", peers=("Squid ssl_bump",), factor=2.3),
    Goal(measure="inspect-wait-kept", peers=("Squid ssl_bump",), factor=0.8, at_most=True),
    Goal(measure="inspect-wait-new", peers=("Squid ssl_bump",), factor=0.8, at_most=True),
    Goal(measure="inspect-memory", peers=(), factor=40, at_most=True),
    Goal(measure="idle-broker", peers=(), factor=40, at_most=True),
    Goal(measure="rules", peers=("10 rules",), factor=2, at_most=True),
    Goal(measure="workers", ours="wicketgate broker, 2 workers", peers=("wicketgate broker, 1 worker",), factor=1.7),
    Goal(measure="start", peers=(), factor=250_000, at_most=True),
    Goal(measure="runner-start", ours="built", peers=("bwrap",), factor=1.15, at_most=True),
    Goal(measure="runner-start", ours="parked", peers=("bwrap",), factor=1.15, at_most=True),
    Goal(measure="runner-start", ours="parked", peers=(), factor=3_000, at_most=True),
    Goal(measure="runner-start", ours="built, with a bridge", peers=("bwrap",), factor=1.3, at_most=True),
    Goal(measure="runner-start", ours="parked, with a bridge", peers=("bwrap",), factor=1.3, at_most=True),
    Goal(measure="runner-start", ours="wicketgate run --runner", peers=(), factor=40_000, at_most=True),
)

Table = dict[str, dict[str, Row]]  # measure key, subject name


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    goal: Goal
    ours: str
    peer: str
    ratio: float
    reached: bool
    by: str = ""  # what was compared instead of the rate, where the load was the bottleneck


def judge(table: Table, ours: Iterable[str]) -> list[Reached]:
    """Every goal for every pair of ours and a peer that both have the figure."""
    found = []
    for goal in GOALS:
        rows = table.get(goal.measure, {})
        for name in (one for one in ours if goal.ours in ("", one)):
            for peer in goal.peers or ("",):
                ratio, by = _compare(goal, rows.get(name), rows.get(peer), alone=not peer)
                if ratio:
                    reached = goal.is_reached_by(ratio)
                    found.append(Reached(goal=goal, ours=name, peer=peer, ratio=ratio, reached=reached, by=by))
    return found


def _compare(goal: Goal, mine: Row | None, theirs: Row | None, *, alone: bool) -> tuple[float | None, str]:
    """The ratio, and what it is of where that is not the figure itself.

    Two rates of which one is the load's own say nothing of the proxies: then it is how often their CPU would do it.
    """
    if mine is None or (theirs is None and not alone):
        return None, ""
    if theirs is None:
        return mine.value, ""
    if goal.of == "value" and not goal.at_most and (mine.is_load_bound or theirs.is_load_bound):
        return _ratio(theirs.cpu, mine.cpu), "CPU"
    return _ratio(getattr(mine, goal.of), getattr(theirs, goal.of)), ""


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def as_document(
    table: Table,
    titles: Mapping[str, str],
    about: dict[str, Any],
    reached: Iterable[Reached] = (),
    curves: "Iterable[Curve]" = (),
) -> dict[str, Any]:
    """The run as one JSON document: every sample, so that anything else can be computed from it."""
    units = {measure.key: measure.unit.value for measure in MEASURES} | {"workers": Unit.REQUESTS_PER_CPU.value}
    return {
        "about": about,
        "goals": [
            {
                "title": titles.get(one.goal.measure, one.goal.measure),
                "ours": one.ours,
                "goal": one.goal.words(one.peer),
                "ratio": one.ratio,
                "reached": one.reached,
                "by": one.by,
            }
            for one in reached
        ],
        "measures": {
            key: {
                "title": titles.get(key, key),
                "unit": units.get(key, "µs"),
                "subjects": {name: _row_document(row) for name, row in rows.items()},
            }
            for key, rows in table.items()
        },
        "curves": {curve.key: curve.as_document() for curve in curves},
    }


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "median": row.value,
        "cpu_microseconds": row.cpu,
        "proxy_core_busy": row.proxy_core,
        "load_core_busy": row.load_core,
        "rounds": [sample.value for sample in row.samples],
        "failure": row.trouble or None,
    }
