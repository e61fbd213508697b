"""Medians, ratios and goals of a bench run."""

import pytest

from bench.inspecting import INSPECTING
from bench.measures import MEASURES, Sample
from bench.ours import UNLOGGED
from bench.peers import DIRECT, PEERS
from bench.results import GOALS, Row, judge
from bench.sandbox_runtime import SANDBOX_RUNTIME, SANDBOX_RUNTIME_TLS
from bench.workers import ROWS

OTHER_MEASURES = {"start", "runner-start", "idle", "rules", "workers"}
OTHER_ROWS = {"10 rules", "bwrap", *ROWS.values()}


def row(*values: float, cpu: float | None = None) -> Row:
    return Row(samples=[Sample(value=value, cpu=cpu) for value in values])


def test_a_row_is_the_median_of_its_rounds() -> None:
    one = row(1, 9, 3)
    assert one.value == 3
    assert one.spread == pytest.approx(4 / 3)
    assert (Row().value, Row().cpu, Row().spread) == (None, None, None)


@pytest.mark.parametrize(("ours", "reached"), [(1299.9, False), (1300.0, True)])
def test_more_is_better(ours: float, reached: bool) -> None:
    table = {"new": {"Squid": row(1000), "ours": row(ours)}}
    assert [(one.peer, one.reached) for one in judge(table, ["ours"])] == [("Squid", reached)]


@pytest.mark.parametrize(("ours", "reached"), [(60.0, True), (60.1, False)])
def test_less_cpu_is_better(ours: float, reached: bool) -> None:
    table = {"bulk-8": {"Squid": row(1, cpu=100), "ours": row(9, cpu=ours)}}
    judged = {one.goal.of: one.reached for one in judge(table, ["ours"])}
    assert judged == {"value": True, "cpu": reached}


@pytest.mark.parametrize(
    ("proxy_core", "load_core", "ratio", "by"),
    [(0.8, 0.98, 2.0, "CPU"), (0.99, 0.98, 1.1, ""), (0.99, 0.5, 1.1, "")],
)
def test_rates_that_are_the_loads_own_are_not_compared(
    proxy_core: float, load_core: float, ratio: float, by: str
) -> None:
    def one(value: float, cpu: float) -> Row:
        return Row(samples=[Sample(value=value, cpu=cpu, proxy_core=proxy_core, load_core=load_core)])

    (judged,) = judge({"kept": {"Squid": one(1000, 40), "ours": one(1100, 20)}}, ["ours"])
    assert (judged.ratio, judged.by) == (pytest.approx(ratio), by)


def test_a_goal_without_peers_is_a_figure() -> None:
    judged = judge({"start": {"ours": row(250_000)}}, ["ours"])
    assert [(one.goal.words(one.peer), one.reached) for one in judged] == [("≤ 250,000", True)]


def test_a_goal_may_be_about_one_row() -> None:
    table = {"runner-start": {"bwrap": row(10_000), "parked": row(2_000), "built": row(20_000)}}
    judged = {(one.ours, one.peer): one.reached for one in judge(table, ["parked", "built"])}
    assert judged == {("built", "bwrap"): False, ("parked", "bwrap"): True, ("parked", ""): True}


def test_a_round_without_a_sample_leaves_the_others_standing() -> None:
    one = row(10, 20)
    one.missing = "nothing came through"
    assert (one.trouble, one.value) == ("", 15)
    assert Row(missing="nothing came through").trouble == "nothing came through"
    assert Row(samples=one.samples, failure="wrong bytes").trouble == "wrong bytes"


def test_what_failed_is_not_judged() -> None:
    assert judge({"new": {"Squid": row(1000), "ours": Row(failure="no")}}, ["ours"]) == []


def test_goals_name_measures_and_subjects_that_exist() -> None:
    assert {goal.measure for goal in GOALS} <= {measure.key for measure in MEASURES} | OTHER_MEASURES
    subjects = (*PEERS, *INSPECTING, SANDBOX_RUNTIME, SANDBOX_RUNTIME_TLS, UNLOGGED)
    assert {peer for goal in GOALS for peer in goal.peers} <= {one.name for one in subjects} | OTHER_ROWS


def test_a_measure_is_for_those_on_its_plane() -> None:
    takers = {one.name for one in (DIRECT, *PEERS, *INSPECTING) if one.takes_part("ask", inspection=True)}
    assert takers == {"direct", *(one.name for one in INSPECTING)}
    assert not UNLOGGED.takes_part("download small", inspection=True)
