"""Runs the bench. Started by scripts/bench, which brings the peers and, as root, a network namespace.

Proxy on one core, load and origin on another; rounds interleaved over subjects, the order turned by one each round;
medians and ratios within the run. Bytes are compared while they are counted.
"""

import argparse
import compileall
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench import soak
from bench.curves import (
    RECORDS,
    Curve,
    measure_log,
    measure_rules,
    measure_sandboxes,
    measure_sessions,
    measure_tunnels,
)
from bench.inspecting import INSPECTING
from bench.interpreter import describe_python
from bench.measures import MEASURES, Measure, NothingMovedError, Unit, take
from bench.origins import Origins, start_origins
from bench.ours import OURS, UNLOGGED
from bench.peers import DIRECT, PEERS
from bench.processes import ROOT, cores
from bench.report import keep_curves, print_goals, print_measure, print_promises, write_document
from bench.results import GOALS, Reached, Row, Table, as_document, judge
from bench.runner_start import measure_runner_starts
from bench.sandbox_runtime import SANDBOX_RUNTIME, SANDBOX_RUNTIME_TLS
from bench.start_time import measure_starts
from bench.subjects import Place, Running, Subject
from bench.workers import measure_workers

RESULTS: Final = ROOT / "bench" / "results"
SUBJECTS: Final = (DIRECT, *PEERS, SANDBOX_RUNTIME, *INSPECTING, SANDBOX_RUNTIME_TLS, *OURS, UNLOGGED)
QUIET: Final = 0.7
PACKAGES: Final = ("wicketgate", "broker", "sandbox", "netns", "certs")
OTHER_TITLES: Final = {
    "start": "time to run `true`",
    "runner-start": "time to run `true` for a client of a running runner",
    "rules": "verdict on an allowed request",
    "workers": "inspected kept-alive requests of a broker with workers",
}
TITLES: Final = OTHER_TITLES | {measure.key: measure.title for measure in MEASURES}
CURVES: Final = ("rules", "log", "bridges", "tunnels", "sandboxes")
OUR_ROWS: Final = frozenset(
    ["wicketgate run", "wicketgate run, with a cable", "100,000 rules", *(goal.ours for goal in GOALS if goal.ours)]
)
# A namespace of our own: ports in TIME_WAIT may be taken again, and there are enough of them.
SETTINGS: Final = {
    "net/ipv4/ip_local_port_range": "10000 65000",
    "net/ipv4/tcp_tw_reuse": "1",
    "net/core/somaxconn": "8192",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each sample (2)")
    parser.add_argument("--starts", type=int, default=20, help="how often each start is timed (20; 0: not at all)")
    parser.add_argument("--no-workers", action="store_true", help="leave out one worker against two")
    parser.add_argument("--no-curves", action="store_true", help="leave out the curves over rules, sandboxes, records")
    parser.add_argument("--records", type=int, nargs="+", default=RECORDS, help=f"sizes of the log ({RECORDS})")
    parser.add_argument(
        "--curves",
        nargs="+",
        choices=CURVES,
        metavar="KIND",
        help=f"only these, kept for the page: {', '.join(CURVES)}",
    )
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only churn for so long, and see what grows")
    keys = [measure.key for measure in MEASURES]
    parser.add_argument(
        "--only", nargs="+", choices=keys, default=keys, metavar="MEASURE", help=f"of {', '.join(keys)}"
    )
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--subjects", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {names}")
    return parser.parse_args()


def prepare_namespace() -> None:
    """Set what a namespace made for this run may have set; the machine's own is left as it is."""
    if os.environ.get("WICKETGATE_BENCH_NAMESPACE") != "1":
        return
    for name, value in SETTINGS.items():
        try:
            (Path("/proc/sys") / name).write_text(value)
        except OSError:
            continue  # read-only where the bench itself runs in a container; the defaults then hold


def warn_of_load(console: Console) -> None:
    """Rates are worth nothing when something else wants the cores; the proxies' own CPU still is."""
    load = os.getloadavg()[0]
    if load > QUIET:
        console.print(f"The machine is busy (load {load:.1f}): compare the CPU columns, not the rates.", style="bold")


def compile_modules() -> None:
    """What an installation does. Where bytecode may not be kept, each start would compile every module again."""
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2)


def measure_curves(
    origins: Origins, table: Table, console: Console, counts: Sequence[int], kinds: Sequence[str] = CURVES
) -> list[Curve]:
    """Scale; the figures that a goal compares go into the table."""
    console.print(f"curves: {', '.join(kinds)}", style="dim")
    curves: list[Curve] = []
    if "rules" in kinds:
        curves, table["rules"] = measure_rules()
    if "log" in kinds:
        curves += measure_log(counts)
    live: dict[str, Callable[[], list[Curve]]] = {
        "bridges": partial(measure_sessions, origins),
        "tunnels": partial(measure_tunnels, origins),
        "sandboxes": measure_sandboxes,
    }
    for name, measure in live.items():
        if name not in kinds:
            continue
        try:
            curves += measure()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            console.print(f"{name}: {error}", markup=False)
    return curves


def run_curves(options: argparse.Namespace, console: Console) -> None:
    """A run of curves alone: they take long, and are kept beside the result of everything else."""
    with tempfile.TemporaryDirectory(prefix="wicketgate-bench-") as place, ExitStack() as started:
        origins = started.enter_context(start_origins(Path(place), core=cores()[1]))
        curves = measure_curves(origins, {}, console, options.records, options.curves)
    print_promises(console, curves)
    path = keep_curves(RESULTS, curves, about(options, ()))
    console.print(f"Kept for the page: {path.relative_to(ROOT)}")


def measure_more_workers(options: argparse.Namespace, origins: Origins, table: Table, console: Console) -> None:
    """One worker against two, alone: they would share their cores with everything that waits."""
    console.print(f"{options.rounds} rounds: {OTHER_TITLES['workers']}", style="dim")
    try:
        # Longer than others: its connections begin within each sample.
        table["workers"] = measure_workers(origins, options.rounds, 2 * options.seconds)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        console.print(f"workers: {error}", markup=False)


def start_subjects(
    wanted: Sequence[Subject],
    directory: Path,
    origins: Origins,
    started: ExitStack,
    console: Console,
) -> dict[str, Running | str]:
    """Each subject by its name: running, or the reason why not."""
    proxy_core, load_core = cores()
    found: dict[str, Running | str] = {}
    for number, subject in enumerate(wanted):
        place_directory = directory / f"subject-{number}"
        place_directory.mkdir()
        place = Place(directory=place_directory, origins=origins, proxy_core=proxy_core, load_core=load_core)
        if subject.version() is None:
            found[subject.name] = "not installed"
            continue
        try:
            found[subject.name] = started.enter_context(subject.start(place))
        except (RuntimeError, TimeoutError, OSError) as error:
            found[subject.name] = str(error)
            console.print(f"{subject.name} did not start: {error}", markup=False)
    return found


def sample_into(row: Row, measure: Measure, running: Running | str, origins: Origins, seconds: float) -> None:
    if isinstance(running, str):
        row.failure = running
    if isinstance(running, str) or row.failure:
        return
    try:
        row.samples.append(take(measure, running, origins, seconds))
    except NothingMovedError as nothing:
        row.missing = str(nothing)  # a busy machine can starve one sample; the other rounds stand
    except (RuntimeError, TimeoutError, OSError) as error:
        row.failure = str(error) or type(error).__name__


def run_rounds(
    options: argparse.Namespace,
    wanted: Sequence[Subject],
    found: dict[str, Running | str],
    origins: Origins,
    console: Console,
) -> Table:
    measures = [measure for measure in MEASURES if measure.key in options.only]
    table: Table = {
        measure.key: {one.name: Row() for one in wanted if one.takes_part(measure.kind, inspection=measure.inspection)}
        for measure in measures
    }
    for number in range(options.rounds):
        for measure in measures:
            console.print(f"round {number + 1} of {options.rounds}: {measure.title}", style="dim")
            # A proxy keeps the memory of tunnels that have ended for the next ones: only the first round tells.
            if measure.unit in (Unit.KILOBYTES, Unit.HELD) and number > 0:
                continue
            names = list(table[measure.key])
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned:
                sample_into(table[measure.key][name], measure, found[name], origins, options.seconds)
    return table


def about(options: argparse.Namespace, wanted: Sequence[Subject]) -> dict[str, Any]:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "load_after": os.getloadavg(),
        "machine": {"cpu": model.partition(":")[2].strip(), "cores": os.cpu_count(), "kernel": platform.release()},
        "python": describe_python(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "versions": {subject.name: subject.version() for subject in wanted},
    }


def main() -> None:
    options = arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 112)
    console.print(f"Python {describe_python()}", markup=False)
    if options.soak:
        raise SystemExit(soak.run(options.soak))
    warn_of_load(console)
    wanted = [subject for subject in SUBJECTS if subject.name in options.subjects]
    prepare_namespace()
    compile_modules()
    if options.curves:
        run_curves(options, console)
        return
    curves: list[Curve] = []
    with tempfile.TemporaryDirectory(prefix="wicketgate-bench-") as place, ExitStack() as started:
        directory = Path(place)
        directory.chmod(0o755)  # a peer that drops to its own account must reach its directory
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        _, load_core = cores()
        origin_directory = directory / "origin"
        origin_directory.mkdir()
        origins = started.enter_context(start_origins(origin_directory, core=load_core))
        found = start_subjects(wanted, directory, origins, started, console)
        table = run_rounds(options, wanted, found, origins, console)
        workspace = directory / "start"
        workspace.mkdir()
        if options.starts:
            table["start"] = measure_starts(workspace, origins, options.starts)
            table["runner-start"] = measure_runner_starts(options.starts)
        if not options.no_workers:
            measure_more_workers(options, origins, table, console)
        write_document(RESULTS, result(options, table, wanted, ()))  # kept, should somebody not wait for the rest
        if not options.no_curves:
            curves = measure_curves(origins, table, console, options.records)
    show(console, options, table, wanted, curves)


def result(
    options: argparse.Namespace, table: Table, wanted: Sequence[Subject], curves: Sequence[Curve]
) -> dict[str, Any]:
    """The document of the run so far."""
    return as_document(table, TITLES, about(options, wanted), judged(table, wanted), curves)


def judged(table: Table, wanted: Sequence[Subject]) -> list[Reached]:
    others = [name for key in ("start", "runner-start", "rules", "workers") for name in table.get(key, {})]
    return judge(table, [one.name for one in wanted if one.ours] + [name for name in others if name in OUR_ROWS])


def show(
    console: Console,
    options: argparse.Namespace,
    table: Table,
    wanted: Sequence[Subject],
    curves: Sequence[Curve],
) -> None:
    measures = [measure for measure in MEASURES if measure.key in table]
    for measure in measures:
        print_measure(console, measure.title, measure.unit, table[measure.key], reference=measure.reference)
    for key in ("start", "runner-start"):
        if key in table:
            print_measure(console, OTHER_TITLES[key], Unit.MICROSECONDS, table[key], reference="bwrap")
    if "rules" in table:
        print_measure(console, OTHER_TITLES["rules"], Unit.MICROSECONDS, table["rules"], reference="10 rules")
    if "workers" in table:
        rows = table["workers"]
        print_measure(console, OTHER_TITLES["workers"], Unit.REQUESTS_PER_CPU, rows, reference=next(iter(rows)))
    print_goals(console, judged(table, wanted), TITLES)
    print_promises(console, curves)
    path = write_document(RESULTS, result(options, table, wanted, curves))
    console.print(f"Every sample: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
