"""The page of the documentation: tables, plots and our place against each goal, from the JSON of one run.

    python -m bench.page [RESULT.json]        writes docs/reference/performance.md and its plots
    python -m bench.page --soak               exchanges the soak on that page for the last one

A soak and curves that were runs of their own (`scripts/bench --soak`, `--curves`) are taken in from beside it. It
measures nothing, so what the page says is what a run has found.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.plots import bars, format_figure, lines
from bench.processes import ROOT
from bench.soak import pictures as soak_pictures

LATEST: Final = ROOT / "bench" / "results" / "latest.json"
SOAK: Final = LATEST.with_name("soak.json")  # of a run of its own
CURVES: Final = LATEST.with_name("curves.json")  # of runs of their own
PAGE: Final = ROOT / "docs" / "reference" / "performance.md"
OURS: Final = "Wicketgate"

INTRODUCTION: Final = """\
# Performance

Measured by `scripts/bench` (or `scripts/bench-debian`: on what the image ships) and written from its result by
`python -m bench.page`; nothing here is typed in by hand. The product runs as it ships (sandbox, bridge, policy, audit
log), the peers with the configuration that someone would write who only wants what is measured. Each proxy has a core
of its own; client and origin (nginx) share another one. Rounds are interleaved over the subjects, figures are medians.
**Only ratios within one run mean something**, and on a machine that does other work at the same time only the CPU of
the proxy itself does: the kernel counts it for each process.
"""


SOAK_HEADING: Final = "\n## Soak\n"

LOAD_BOUND: Final = """
*By CPU*: client and origin, which share one core, could give no more while a proxy could, so the rates are theirs. What
is compared is how many operations a second of each proxy's own CPU time is enough for. The rates are below, and the
ceiling of client and origin alone is the row *direct*.
"""


def write_page(document: dict[str, Any], page: Path = PAGE) -> list[Path]:
    """Write the page and its plots; the paths written."""
    plots = page.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    pictures = dict(_pictures(document))
    for name, text in pictures.items():
        (plots / f"{name}.svg").write_text(text, encoding="utf-8")
    page.write_text("\n".join(_lines(document, frozenset(pictures), plots.name)), encoding="utf-8")
    return [page, *(plots / f"{name}.svg" for name in pictures)]


def write_soak(soak: dict[str, Any], page: Path = PAGE) -> list[Path]:
    """Write another soak in the place of the page's, which is its last section; the paths written."""
    plots = page.with_suffix("")
    pictures = soak_pictures(soak)
    for name, text in pictures.items():
        (plots / f"{name}.svg").write_text(text, encoding="utf-8")
    others = page.read_text(encoding="utf-8").partition(f"\n{SOAK_HEADING}")[0]
    page.write_text("\n".join([others, *_soak(soak, list(pictures), plots.name)]), encoding="utf-8")
    return [page, *(plots / f"{name}.svg" for name in pictures)]


def _pictures(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, measure in document["measures"].items():
        found = measure["subjects"]
        values = {name: one["median"] for name, one in found.items() if one["median"] is not None}
        ours = frozenset(name for name in values if name.lower().startswith(OURS.lower()))
        if len(values) > 1:
            yield key, bars(measure["title"], values, unit=measure["unit"], ours=ours)
        cpu = {name: one["cpu_microseconds"] for name, one in found.items() if one["cpu_microseconds"]}
        if len(cpu) > 1 and measure["unit"] != "KB":
            each = "µs per MB" if measure["unit"] == "MB/s" else "µs each"
            yield f"{key}-cpu", bars(f"{measure['title']}: the proxy's own CPU", cpu, unit=each, ours=ours)
    for key, curve in document.get("curves", {}).items():
        titles = {"x_title": curve["x_title"], "y_title": curve["y_title"]}
        shown = {name: curve["series"][name] for name in curve.get("shown", curve["series"])}
        yield f"curve-{key}", lines(curve["title"], curve["x"], shown, **titles)
    yield from soak_pictures(document["soak"]).items() if "soak" in document else ()


def _lines(document: dict[str, Any], pictures: frozenset[str], folder: str) -> Iterator[str]:
    yield INTRODUCTION
    yield from _about(document["about"])
    yield from _goals(document)
    for key, measure in document["measures"].items():
        yield f"\n## {_sentence(measure['title'])}\n"
        yield from (f"![{name}]({folder}/{name}.svg)\n" for name in (key, f"{key}-cpu") if name in pictures)
        yield from _table(measure)
    curves, told = document.get("curves", {}), None
    if curves:
        yield "\n## Scale\n"
    for key, curve in curves.items():
        yield f"![{curve['title']}]({folder}/curve-{key}.svg)\n"
        if "about" in curve and curve["about"] != told:
            told = curve["about"]
            yield f"A run of its own, from here on: {_machine(told)}\n"
        yield from _promises(curve)
    if "soak" in document:
        yield from _soak(document["soak"], [name for name in pictures if name.startswith("soak-")], folder)


def _about(about: dict[str, Any]) -> Iterator[str]:
    yield f"- Machine: {_machine(about)}"
    yield f"- {about['rounds']} rounds of {about['seconds']:g} s."
    told = [f"{name} ({version})" for name, version in about["versions"].items() if version and OURS not in name]
    yield f"- Peers: {'; '.join(told)}."
    missing = [name for name, version in about["versions"].items() if version is None]
    if missing:
        yield f"- Not installed, so not measured: {', '.join(missing)}."


def _machine(about: dict[str, Any]) -> str:
    machine = about["machine"]
    load = ", ".join(f"{one:.1f}" for one in about["load_after"])
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; Python {about['python']}; "
        f"load average at the end (1, 5, 15 min) {load}."
    )


def _goals(document: dict[str, Any]) -> Iterator[str]:
    yield "\n## Against the goals\n"
    yield "| measure | ours | goal | here | |\n|---|---|---|---|---|"
    bound = False
    for one in document.get("goals", []):
        place = "reached" if one["reached"] else "**not reached**"
        by = f" (by {one['by']})" if one.get("by") else ""
        bound = bound or bool(by)
        yield f"| {one['title']} | {one['ours']} | {one['goal']} | {format_figure(one['ratio'])}{by} | {place} |"
    if bound:
        yield LOAD_BOUND


def _promises(curve: dict[str, Any]) -> Iterator[str]:
    """How the cost grows, beside how it may: an exponent, a ratio or a last value."""
    if not curve.get("promises"):
        return
    yield "| cost | promise | here | |\n|---|---|---|---|"
    for one in curve["promises"]:
        kept = "kept" if one["reached"] else "**not kept**"
        yield f"| {one['title']} | {one['goal']} | {format_figure(one['ratio'])} | {kept} |"
    yield ""


def _soak(soak: dict[str, Any], names: list[str], folder: str) -> Iterator[str]:
    """What churn did to both daemons, figure by figure."""
    yield SOAK_HEADING
    acts = f"{sum(soak['acts'].values()):,} acts in {len(soak['times'])} cycles"
    went = f"{acts}, {soak['failures']} of them went wrong"
    yield f"`scripts/bench --soak MINUTES`: {soak['seconds'] / 60:.0f} minutes of starts, requests, tunnels, jobs,"
    yield f"cancels and kills through both daemons; {went}. After each cycle everything"
    yield "is looked at from outside. The first quarter fills caches; of the rest a figure leaks where even the lower"
    yield "bound of its growth (Sen's slope, 99 %) is above what it may grow by.\n"
    yield from (f"![{name}]({folder}/{name}.svg)\n" for name in sorted(names))
    yield "| figure | level | growth | 99 % between | may grow by | |\n|---|---|---|---|---|---|"
    for one in soak["verdicts"]:
        if one["allowed"] is not None:
            between = f"{format_figure(one['low'])} … {format_figure(one['high'])}"
            word = "**leaks**" if one["leaks"] else "flat"
            level, growth = format_figure(one["level"]), format_figure(one["growth"])
            yield f"| {one['name']} | {level} | {growth} | {between} | {one['allowed']:g} | {word} |"


def _table(measure: dict[str, Any]) -> Iterator[str]:
    cpu = "CPU µs per MB" if measure["unit"] == "MB/s" else "CPU µs each"
    yield f"| subject | {measure['unit']} | {cpu} | cores busy (proxy, load) |\n|---|---|---|---|"
    for name, one in measure["subjects"].items():
        if one["failure"]:
            yield f"| {name} | failed: {one['failure'].splitlines()[0][:90]} | | |"
        elif one["median"] is not None:
            busy = [one["proxy_core_busy"], one["load_core_busy"]]
            cores = ", ".join(f"{share:.0%}" for share in busy) if None not in busy else ""
            spent = format_figure(one["cpu_microseconds"]) if one["cpu_microseconds"] else ""
            yield f"| {name} | {format_figure(one['median'])} | {spent} | {cores} |"


def _sentence(title: str) -> str:
    return title[:1].upper() + title[1:]


def main() -> None:
    if sys.argv[1:] == ["--soak"]:
        written = write_soak(json.loads(SOAK.read_text(encoding="utf-8")))
    else:
        written = write_page(_document(Path(sys.argv[1]) if len(sys.argv) > 1 else LATEST))
    for path in written:
        print(path.relative_to(ROOT))


def _document(source: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    if SOAK.exists():
        document["soak"] = json.loads(SOAK.read_text(encoding="utf-8"))
    if CURVES.exists():
        document["curves"] |= json.loads(CURVES.read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    main()
