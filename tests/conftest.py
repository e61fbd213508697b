"""What every test shares: where a test may run, the switch that makes a skip a failure, the counts of a run.

It must not change what a test sees of the product: no patched modules, no shared state between tests.
"""

import json
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.origins.process import (
    HttpsOrigin,
    NameServer,
    Origin,
    start_git,
    start_grpc,
    start_https,
    start_names,
    start_websocket,
)

HERE = Path(__file__).parent
NO_SKIP = "WICKETGATE_NO_SKIP"
COUNTS = "WICKETGATE_TEST_COUNTS"

MARKERS = (
    "smoke: the few live tests that also run under the second interpreter",
    "root_only: promises about a start as root; not collected for an ordinary user",
    "ordinary_only: promises about an ordinary user; not collected for root",
    "alone: live tests that measure, or look at what the whole machine has; scripts/test runs them one by one",
    "made_once: live tests of one virtual machine or container engine; scripts/test runs them in one process",
)
# Directories whose tests share what takes minutes to make.
MADE_ONCE = ("vm", "compose")


def _restore_signals() -> None:
    """Undo what a starter without job control (`&`, nohup, a CI runner) made this process ignore.

    Every child inherits an ignored signal, and no shell can restore one that was ignored when it began (POSIX, trap).
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pytest_configure(config: pytest.Config) -> None:
    _restore_signals()
    # What is generated is judged, not how fast: a deadline would make a busy machine a failure. In CI the same examples
    # each time, so that a failure is the change's own; everywhere else new ones.
    slow, fixed = (HealthCheck.too_slow,), os.environ.get("CI") == "true"
    settings.register_profile("wicketgate", deadline=None, suppress_health_check=slow, derandomize=fixed)
    settings.load_profile("wicketgate")
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_itemcollected(item: pytest.Item) -> None:
    if any(item.path.is_relative_to(HERE / name) for name in MADE_ONCE):
        item.add_marker(pytest.mark.made_once)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about another kind of user. Deselected, not skipped: scripts/test runs the suite as both."""
    other = "ordinary_only" if os.geteuid() == 0 else "root_only"
    elsewhere = [item for item in items if item.get_closest_marker(other)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get(NO_SKIP) == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which {NO_SKIP}=1 makes a failure: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Append this run's counts to the file that scripts/test adds up. An error counts as a failure.

    A worker of pytest-xdist has a reporter too: what it saw is in the counts of the run that began it.
    """
    target = os.environ.get(COUNTS)
    if target is None or hasattr(terminalreporter.config, "workerinput"):
        return
    stats = terminalreporter.stats
    counts = {
        "passed": len(stats.get("passed", ())),
        "failed": len(stats.get("failed", ())) + len(stats.get("error", ())) + len(stats.get("xpassed", ())),
        "skipped": len(stats.get("skipped", ())) + len(stats.get("xfailed", ())),
    }
    with Path(target).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(counts) + "\n")


@pytest.fixture(scope="session")
def https_origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsOrigin]:
    """A live HTTPS and HTTP origin on 127.0.0.1 whose leaf names origin.example, *.origin.example and localhost."""
    with start_https(tmp_path_factory.mktemp("https-origin")) as origin:
        yield origin


@pytest.fixture(scope="session")
def websocket_origin(https_origin: HttpsOrigin) -> Iterator[Origin]:
    """A WebSocket echo over TLS under the same certificate as `https_origin`."""
    with start_websocket(https_origin.directory) as origin:
        yield origin


@pytest.fixture(scope="session")
def grpc_origin(https_origin: HttpsOrigin) -> Iterator[Origin]:
    """A gRPC echo over TLS under the same certificate as `https_origin`."""
    with start_grpc(https_origin.directory) as origin:
        yield origin


@pytest.fixture(scope="session")
def git_origin(https_origin: HttpsOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """git's own smart HTTP backend over TLS, serving /project.git (one commit, pushes taken)."""
    with start_git(https_origin.directory, tmp_path_factory.mktemp("git-origin")) as origin:
        yield origin


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    """An upstream DNS server on 127.0.0.1, UDP and TCP, with the record set of `tests.origins.dns_origin`."""
    with start_names() as origin:
        yield origin
