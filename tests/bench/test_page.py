"""The page and its plots say what the result says, and nothing else."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench import soak as soaks
from bench.curves import Curve, measure_log
from bench.measures import Sample
from bench.page import write_page, write_soak
from bench.plots import bars, format_figure, lines
from bench.report import keep_curves
from bench.results import Row, as_document, judge

SVG = "{http://www.w3.org/2000/svg}"
ABOUT = {
    "load_after": (0.5, 0.25, 0.125),
    "machine": {"cpu": "a processor", "cores": 2, "kernel": "6.1"},
    "python": "3.12.1",
    "rounds": 5,
    "seconds": 2.0,
    "versions": {"Squid": "Squid 5.7", "mitmdump": None, "Wicketgate, inspect": "0.1.0"},
}


@pytest.fixture
def document() -> dict[str, Any]:
    def row(value: float) -> Row:
        return Row(samples=[Sample(value=value, cpu=100.0, proxy_core=1.0, load_core=0.5)])

    table = {"new": {"Squid": row(1000), "tinyproxy": Row(failure="no & such"), "Wicketgate, splice": row(1500)}}
    curve = Curve(key="rules", title="by <rules>", x_title="rules", y_title="µs", x=(1.0, 1000.0), series={"a": (1, 2)})
    return as_document(table, {"new": "new connections"}, ABOUT, judge(table, ["Wicketgate, splice"]), [curve])


def curve(*values: float, **promise: Any) -> Curve:
    x = tuple(float(10**power) for power in range(1, len(values) + 1))
    return Curve(key="c", title="cost", x_title="things", y_title="ms", x=x, series={"one": values}, **promise)


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        (curve(5, 5, 6, flat=True), True),
        (curve(5, 5, 7, flat=True), False),
        (curve(1, 10, 100, 1000), True),
        (curve(1, 100, 10_000, 1_000_000), False),
        (curve(1, 100, 900, most=1000), True),
        (curve(1, 1, 1001, most=1000), False),
        (curve(7, 7.5, 9.3, each=0.02), True),
        (curve(7, 9.3, 9.5, each=0.02), False),
    ],
)
def test_a_curve_tells_whether_its_promise_is_kept(made: Curve, *, kept: bool, tmp_path: Path) -> None:
    (promise,) = made.promises()
    assert promise["reached"] is kept
    document = as_document({}, {}, ABOUT, [], [made])
    page, picture = write_page(document, tmp_path / "performance.md")
    assert ("**not kept**" in page.read_text()) is not kept
    assert picture.name == "curve-c.svg"


def test_the_log_is_measured_at_each_size() -> None:
    answers, index, verify = measure_log((50, 100, 200))
    assert set(answers.shown) <= set(answers.series)
    assert {"show one record", "summary of everything", "begin a tail", "text that is nowhere"} <= set(answers.series)
    assert all(len(values) == 3 and min(values) > 0 for values in answers.series.values())
    assert min(index.series["build"] + verify.series["verify"]) > 0


def test_the_page_has_every_figure_and_every_plot(document: dict[str, Any], tmp_path: Path) -> None:
    page, *plots = write_page(document, tmp_path / "performance.md")
    text = page.read_text()
    assert "| new connections | Wicketgate, splice | ≥ 1.3 x Squid | 1.50 | reached |" in text
    assert "| Squid | 1,000 | 100 | 100%, 50% |" in text
    assert "| tinyproxy | failed: no & such | | |" in text
    assert "Not installed, so not measured: mitmdump." in text
    assert {plot.name for plot in plots} == {"new.svg", "new-cpu.svg", "curve-rules.svg"}
    assert all(f"](performance/{plot.name})" in text and plot.exists() for plot in plots)


def test_a_goal_that_was_judged_by_cpu_says_so(document: dict[str, Any], tmp_path: Path) -> None:
    assert "By CPU" not in write_page(document, tmp_path / "performance.md")[0].read_text()
    document["goals"][0]["by"] = "CPU"
    text = write_page(document, tmp_path / "performance.md")[0].read_text()
    assert "| 1.50 (by CPU) | reached |" in text
    assert "*By CPU*" in text


def test_a_bar_is_as_long_as_its_value() -> None:
    drawn = ET.fromstring(bars("t", {"a & b": 50.0, "c": 100.0}, unit="µs", ours=frozenset(["c"])))
    one, other = drawn.iter(f"{SVG}rect")
    assert float(one.attrib["width"]) * 2 == pytest.approx(float(other.attrib["width"]), abs=0.2)
    assert one.attrib["fill"] != other.attrib["fill"]
    assert {"a & b", "50.0 µs", "100 µs"} <= {text.text for text in drawn.iter(f"{SVG}text")}


def test_a_curve_rises_with_its_values_and_keeps_inside() -> None:
    drawn = ET.fromstring(lines("t", [10, 100, 1000], {"a": [1, 2, 4]}, x_title="x", y_title="y"))
    points = [tuple(map(float, pair.split(","))) for pair in drawn.find(f"{SVG}polyline").attrib["points"].split()]  # type: ignore[union-attr]
    steps = [right[0] - left[0] for left, right in itertools.pairwise(points)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)  # logarithmic
    heights = [height for _, height in points]
    assert heights == sorted(heights, reverse=True)
    assert all(0 < height < 320 for height in heights)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (1.5, "1.50"), (99.95, "100.0"), (12345.6, "12,346")]
)
def test_three_digits_are_shown(value: float, text: str) -> None:
    assert format_figure(value) == text


def test_curves_of_a_run_of_their_own_say_so(tmp_path: Path) -> None:
    kept = keep_curves(tmp_path, [curve(1, 2, 3)], ABOUT)
    keep_curves(tmp_path, [replace(curve(4, 5), key="d")], ABOUT | {"python": "3.13.9"})
    document = as_document({}, {}, ABOUT, [], []) | {"curves": json.loads(kept.read_text())}
    page, *pictures = write_page(document, tmp_path / "performance.md")
    assert [picture.name for picture in pictures] == ["curve-c.svg", "curve-d.svg"]
    text = page.read_text()
    assert text.count("A run of its own, from here on: a processor, 2 cores, Linux 6.1; Python 3.1") == 2
    assert "Python 3.13.9; load average at the end (1, 5, 15 min) 0.5, 0.2, 0.1." in text


def soak(*megabytes: float) -> dict[str, Any]:
    seen = soaks.Soak(warm=2)
    for minute, figure in enumerate(megabytes):
        seen.add(60.0 * minute, {"runner: resident MB": figure, "runner: proportional MB": figure, "processes": 9})
    return soaks.as_document(seen)


def test_a_soak_can_be_exchanged_alone(document: dict[str, Any], tmp_path: Path) -> None:
    flat, growing = soak(*[40.0] * 30), soak(*range(40, 70))
    (tmp_path / "whole").mkdir()
    wanted, *pictures = write_page(document | {"soak": flat}, tmp_path / "whole" / "performance.md")
    page, *_ = write_page(document | {"soak": growing}, tmp_path / "performance.md")
    assert "**leaks**" in page.read_text()
    for found in (document, document | {"soak": growing}):
        write_page(found, page)
        write_soak(flat, page)
        assert page.read_text() == wanted.read_text()
        for picture in pictures:
            assert (page.with_suffix("") / picture.name).read_text() == picture.read_text()
