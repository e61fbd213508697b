"""Prints the tables of a run and writes its JSON."""

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid

from bench.measures import Unit
from bench.results import Reached, Row

if TYPE_CHECKING:
    from bench.curves import Curve


def print_measure(console: Console, title: str, unit: Unit, rows: dict[str, Row], *, reference: str) -> None:
    """One table: the figure, what it cost, and the ratio to the reference peer."""
    grid = Grid(title=title, title_justify="left")
    grid.add_column("subject")
    cpu = "CPU µs per MB" if unit is Unit.MEGABYTES else "CPU µs each"
    for heading in (unit.value, "± rounds", f"÷ {reference}", cpu, f"CPU ÷ {reference}", "cores busy"):
        grid.add_column(heading, justify="right")
    base = rows.get(reference, Row())
    for name, row in rows.items():
        if row.trouble:
            grid.add_row(name, f"failed: {row.trouble[:90]}")
        elif row.value is not None:
            ratios = ratio(row.value, base.value), ratio(row.cpu, base.cpu)
            grid.add_row(name, figure(row.value), percent(row.spread), ratios[0], figure(row.cpu), ratios[1], busy(row))
    console.print(grid)


def busy(row: Row) -> str:
    """The proxy's core and the load's. Where the second is full and the first is not, the rate is a lower bound."""
    if row.proxy_core is None or row.load_core is None:
        return ""
    bound = " (load-bound)" if row.is_load_bound else ""
    return f"{percent(row.proxy_core)} {percent(row.load_core)}{bound}"


def ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value is not None and base else ""


def figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def print_goals(console: Console, reached: list[Reached], titles: dict[str, str]) -> None:
    if not reached:
        return
    grid = Grid(title="Against the goals", title_justify="left")
    for heading in ("measure", "ours", "goal", "ratio", ""):
        grid.add_column(heading)
    for one in reached:
        grid.add_row(
            titles.get(one.goal.measure, one.goal.measure),
            one.ours,
            one.goal.words(one.peer),
            f"{figure(one.ratio)} (by {one.by})" if one.by else figure(one.ratio),
            "reached" if one.reached else "not reached",
        )
    console.print(grid)


def print_promises(console: Console, curves: "Sequence[Curve]") -> None:
    """How each cost grows, beside how it may."""
    if not curves:
        return
    grid = Grid(title="Scale", title_justify="left")
    for heading in ("cost", "promise", "here", ""):
        grid.add_column(heading)
    for one in [promise for curve in curves for promise in curve.promises()]:
        grid.add_row(one["title"], one["goal"], figure(one["ratio"]), "kept" if one["reached"] else "not kept")
    console.print(grid)


def write_document(directory: Path, document: dict[str, Any]) -> Path:
    """Write `<time>.json` and `latest.json`; the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    path = directory / f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(text, encoding="utf-8")
    (directory / "latest.json").write_text(text, encoding="utf-8")
    return path


def keep_curves(directory: Path, curves: "Iterable[Curve]", about: dict[str, Any]) -> Path:
    """Put curves of a run of their own into `curves.json`, in place of earlier ones, with what is known of the run."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "curves.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept |= {curve.key: curve.as_document() | {"about": about} for curve in curves}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
