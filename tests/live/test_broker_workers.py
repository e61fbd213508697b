"""The broker's worker processes: sessions are spread, rights are counted and ended over all of them, and a worker that
dies takes no record and no budget with it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.daemons import Daemon, PlayedRunner, broker_daemon, played_runner
from tests.live.runs import PROMPTLY, descendants, until
from tests.live.test_broker_daemon import (
    NAME,
    SESSION_CONNECTIONS,
    issue,
    resolve,
    rules_for,
    silent_origin,
    switch_off,
)
from tests.origins.process import HttpsOrigin
from tests.tree import ROOT

pytestmark = pytest.mark.live
WORKERS = 2


def place(port: int, workers: int = WORKERS) -> str:
    return f"workers = {workers}\n{resolve(port)}"


@pytest.fixture
def port(https_origin: HttpsOrigin) -> int:
    return https_origin.ports["http"]


@pytest.fixture
def daemon(port: int) -> Iterator[Daemon]:
    with broker_daemon(rules_for(port), extra=place(port)) as daemon:
        yield daemon


@contextmanager
def attached(daemon: Daemon, *grants: str) -> Iterator[list[PlayedRunner]]:
    """A session for each grant (empty: none), attached one after the other."""
    with ExitStack() as stack:
        runners = [
            stack.enter_context(played_runner(daemon, f"s-{number}", grant)) for number, grant in enumerate(grants)
        ]
        for runner in runners:
            assert "authority" in runner.ask("attach")
        yield runners


def workers_of(daemon: Daemon) -> dict[int, str]:
    """The pids of the workers that serve, and the ids of their logs."""
    return {one["pid"]: one["log"] for one in daemon.ask("GET", "/v1/health")[1]["workers"] if one["ready"]}


def worker_of(daemon: Daemon, session: str) -> int:
    """The worker that served a session last: the session's records are in its log."""
    # The turn that attached it ends with the record: the runner may hear of it first.
    started = until(lambda: daemon.records(kind="session", event="start", session=session))[-1]
    return next(pid for pid, log in workers_of(daemon).items() if started["id"].startswith(f"{log}-"))


def verify(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "wicketgate", "audit", "verify", "--state-dir", str(daemon.directory / "state")]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def flooding(runner: PlayedRunner, port: int, *, clients: int, each: int, pool: ThreadPoolExecutor) -> "Future[Any]":
    return pool.submit(runner.ask, "flood", name=NAME, port=port, clients=clients, each=each)


def came_back(runner: PlayedRunner, times: int = 2) -> None:
    until(lambda: runner.ask("times") >= times)


def test_sessions_are_spread_and_a_policy_reaches_every_worker(daemon: Daemon, port: int) -> None:
    with attached(daemon, "", "", "", "") as runners:
        assert [runner.ask("request", name=NAME, port=port) for runner in runners] == [200] * 4
        served = Counter(worker_of(daemon, f"s-{number}") for number in range(4))
        assert sorted(served.values()) == [2, 2]
        daemon.write_policy(rules_for(port, name="other"))
        version = daemon.ask("POST", "/v1/policy/reload")[1]["version"]
        assert [runner.ask("request", name=NAME, port=port) for runner in runners] == [200] * 4
        for number in range(4):
            last = daemon.records(kind="decision", session=f"s-{number}")[-1]
            assert (last["rule"], last["policy"]) == ("other", version)
        assert {one["id"] for one in daemon.ask("GET", "/v1/sessions")[1]["sessions"]} == {f"s-{n}" for n in range(4)}
        assert daemon.ask("GET", "/v1/counters")[1]["allowed"] == 8
        for runner in runners:
            assert runner.ask("finish") == {"allowed": 2, "denied": 0}
        assert daemon.ask("GET", "/v1/counters")[1]["allowed"] == 8
    verify(daemon)


def test_a_grant_is_counted_in_one_place_however_many_sessions_use_it(daemon: Daemon, port: int) -> None:
    shared, other = (issue(daemon, port, budgets={"requests": 137, "bytes_down": 10**7}) for _ in range(2))
    with attached(daemon, shared, other, shared, other) as runners, ThreadPoolExecutor() as pool:
        floods = [flooding(runner, port, clients=30, each=4, pool=pool) for runner in runners]
        counted = [flood.result() for flood in floods]
        assert [counted[0]["200"] + counted[2]["200"], counted[1]["200"] + counted[3]["200"]] == [137, 137]
        homes = [worker_of(daemon, f"s-{number}") for number in range(4)]
        assert homes[0] == homes[2] != homes[1] == homes[3]
        for grant in (shared, other):
            shown = daemon.ask("GET", f"/v1/grants/{grant}")[1]
            assert (shown["state"], shown["usage"]["requests"]) == ("exhausted", 137)
            assert shown["usage"]["uses"] == 2


def test_a_grant_that_moves_to_another_worker_keeps_its_count(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"requests": 6, "uses": 3})
    homes = set()
    with ExitStack() as stack:
        for number in range(3):
            runner = stack.enter_context(played_runner(daemon, f"s-{number}", grant))
            assert "authority" in runner.ask("attach")
            homes.add(worker_of(daemon, f"s-{number}"))
            assert [runner.ask("request", name=NAME, port=port) for _ in range(2)] == [200, 200]
            runner.ask("finish")
            shown = daemon.ask("GET", f"/v1/grants/{grant}")[1]
            assert (shown["usage"]["requests"], shown["usage"]["uses"], shown["sessions"]) == (
                2 * number + 2,
                number + 1,
                [],
            )
            # Whoever takes a place makes the other worker the one with the fewest.
            keeper = stack.enter_context(played_runner(daemon, f"k-{number}"))
            assert "authority" in keeper.ask("attach")
        with played_runner(daemon, "s-9", grant) as runner:
            assert runner.ask("attach")["reason"] == "grant_exhausted"
    assert len(homes) == 2


def test_revoking_on_another_worker_ends_only_that_grant(daemon: Daemon, port: int) -> None:
    first, second = issue(daemon, port), issue(daemon, port)
    with attached(daemon, first, second) as runners:
        assert worker_of(daemon, "s-0") != worker_of(daemon, "s-1")
        assert daemon.ask("DELETE", f"/v1/grants/{second}")[1]["state"] == "revoked"
        assert [runner.ask("request", name=NAME, port=port) for runner in runners] == [200, 403]
        assert [one["grant"] for one in daemon.records(kind="grant", event="revoked")] == [second]


def test_a_worker_killed_under_load_loses_no_record_and_gives_no_request_twice(daemon: Daemon, port: int) -> None:
    budget = 600
    grant = issue(daemon, port, budgets={"uses": 1, "requests": budget})
    with attached(daemon, grant, "") as (loaded, bystander), ThreadPoolExecutor() as pool:
        victim = worker_of(daemon, "s-0")
        log = workers_of(daemon)[victim]
        clients = 40
        flood = flooding(loaded, port, clients=clients, each=30, pool=pool)
        until(lambda: len(daemon.records(kind="decision", session="s-0")) > 100)
        os.kill(victim, signal.SIGKILL)
        before = flood.result().get("200", 0)
        assert 0 < before < budget, "it was killed in the middle"
        came_back(loaded)
        recorded = len(daemon.records(kind="decision", session="s-0", verdict="allow"))
        assert recorded >= before, "what was answered is on record"
        until(lambda: len(workers_of(daemon)) == WORKERS)
        assert victim not in workers_of(daemon)
        # The bystander on the other worker noticed nothing, and the lost session came back at no further use.
        assert bystander.ask("times") == 1
        assert bystander.ask("request", name=NAME, port=port) == 200
        usage = daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"]
        assert usage["uses"] == 1
        # Lost at most: what every client was waiting for (spent, its record not yet written), and a piece reserved.
        assert recorded <= usage["requests"] <= min(budget, recorded + clients + budget // 64 + 1)
        after = loaded.ask("flood", name=NAME, port=port, clients=20, each=30).get("200", 0)
        assert usage["requests"] + after == budget, "what may have been spent is not given again, the rest is"
        assert daemon.ask("GET", f"/v1/grants/{grant}")[1]["state"] == "exhausted"
    (lost,) = daemon.records(kind="session", event="lost")
    assert (lost["session"], lost["grant"], lost["call"]) == ("s-0", grant, "call-1")
    (ended,) = daemon.records(kind="policy", event="worker_ended")
    for words in (f"pid {victim}", "signal 9", "sessions lost: 1", log):
        assert words in ended["detail"]
    assert len(daemon.records(kind="policy", event="worker_started")) == WORKERS + 1
    assert any(one["id"].startswith(log) for one in daemon.records(kind="checkpoint", event="recovered"))
    verify(daemon)


def test_every_worker_may_die_again_and_again(daemon: Daemon, port: int) -> None:
    """Their places are taken, later each time; sessions come back each time, and nothing is given twice."""
    grant = issue(daemon, port, budgets={"uses": 2, "requests": 12})
    allowed = 0
    with attached(daemon, grant, grant) as runners:
        for round_ in range(3):
            allowed += [runner.ask("request", name=NAME, port=port) for runner in runners].count(200)
            until(lambda: len(workers_of(daemon)) == WORKERS)
            for pid in workers_of(daemon):
                os.kill(pid, signal.SIGKILL)
            for runner in runners:
                came_back(runner, round_ + 2)
        usage = daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"]
        assert usage["uses"] == 2
        assert allowed == 6 <= usage["requests"]
        answers = [runners[0].ask("request", name=NAME, port=port) for _ in range(8)]
        assert usage["requests"] + answers.count(200) == 12
        assert answers[-1] == 403
    assert len(daemon.records(kind="policy", event="worker_ended")) == 3 * WORKERS
    verify(daemon)


def test_the_flag_turned_off_closes_a_thousand_tunnels_of_all_workers(capsys: pytest.CaptureFixture[str]) -> None:
    count = 500
    with silent_origin() as port:
        rules = rules_for(port, tls="splice")
        with (
            broker_daemon(rules, extra=place(port), limits=SESSION_CONNECTIONS) as daemon,
            attached(daemon, "", "") as runners,
        ):
            assert worker_of(daemon, "s-0") != worker_of(daemon, "s-1")
            for runner in runners:
                assert runner.ask("open_tunnels", name=NAME, port=port, count=count) == count
                runner.ask("watch_tunnels")
            begin = switch_off(daemon)
            answered = time.monotonic()
            told = [json.loads(runner.process.stdout.readline())["result"] for runner in runners]  # type: ignore[union-attr]
            last = max(one["at"] for one in told)
            with capsys.disabled():
                milliseconds = (last - begin) * 1000
                print(f"\nflag off: {2 * count} tunnels of two workers gone after {milliseconds:.0f} ms")
            assert [one["left"] for one in told] == [0, 0]
            assert last - begin < PROMPTLY
            assert answered - begin < PROMPTLY
            for runner in runners:
                assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
            assert len(daemon.records(kind="close", reason="egress_off")) == 2 * count
            # A session that comes back afterwards is refused by whichever worker, until egress is on again.
            assert daemon.ask("PUT", "/v1/egress", {"enabled": True})[1]["enabled"] is True
            for runner in runners:
                came_back(runner)


def test_a_worker_that_does_not_obey_is_ended(daemon: Daemon, port: int) -> None:
    with attached(daemon, "", "") as runners:
        stuck = worker_of(daemon, "s-0")
        os.kill(stuck, signal.SIGSTOP)
        begin = time.monotonic()
        silent = {one["code"] for one in daemon.ask("GET", "/v1/health")[1]["degraded"]}
        assert "worker_silent" in silent
        assert daemon.ask("PUT", "/v1/egress", {"enabled": False})[1]["enabled"] is False
        assert time.monotonic() - begin < 30
        for runner in runners:
            assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
        until(lambda: not Path(f"/proc/{stuck}").exists())
        assert "signal 9" in daemon.records(kind="policy", event="worker_ended")[0]["detail"]


@pytest.mark.root_only
def test_a_worker_without_descriptors_still_hears_of_another_policy() -> None:
    """A sandbox can use up what a worker may open. That must neither keep a former policy in force nor end it."""
    limits = "[limits]\nsession_connections = 3000\n"
    with (
        silent_origin() as port,
        broker_daemon(rules_for(port, tls="splice"), extra=place(port, 1), limits=limits) as daemon,
    ):
        daemon.stop()
        daemon.prefix = ("prlimit", "--nofile=320")
        daemon.start()
        with attached(daemon, "") as (runner,):
            assert runner.ask("open_tunnels", name=NAME, port=port, count=60) == 60
            (worker,) = workers_of(daemon)
            runner.ask("watch_tunnels")
            with played_runner(daemon, "s-greedy") as greedy:
                assert "authority" in greedy.ask("attach")
                assert greedy.ask("knock", port=port, count=600) > 0
                assert len(os.listdir(f"/proc/{worker}/fd")) >= 320 - 64
                daemon.write_policy(
                    rules_for(port, tls="splice", name="other").replace(NAME, "other.example"), limits=limits
                )
                assert daemon.ask("POST", "/v1/policy/reload")[0] == 200
                assert runner.process.stdout is not None
                assert json.loads(runner.process.stdout.readline())["result"]["left"] == 0
                assert list(workers_of(daemon)) == [worker]


def test_a_full_disk_stops_egress_in_every_worker_and_says_so(port: int) -> None:
    with broker_daemon(rules_for(port), extra=place(port)) as daemon:
        daemon.stop()
        # No file may grow any more beyond this: for the log the same as a disk that is full.
        daemon.prefix = ("prlimit", f"--fsize={160 * 1024}")
        daemon.start()
        with attached(daemon, "", "") as runners, ThreadPoolExecutor() as pool:
            assert worker_of(daemon, "s-0") != worker_of(daemon, "s-1")
            floods = [flooding(runner, port, clients=20, each=40, pool=pool) for runner in runners]
            counted = [flood.result() for flood in floods]
            for number, runner in enumerate(runners):
                recorded = daemon.records(kind="decision", session=f"s-{number}", verdict="allow")
                assert 0 < counted[number]["200"] <= len(recorded) < 800
                assert runner.ask("request", name=NAME, port=port) in {403, "ConnectionResetError"}
            health = daemon.ask("GET", "/v1/health")[1]
            assert health["ready"] is False
            assert "log_unavailable" in {one["code"] for one in health["degraded"]}
        verify(daemon)


def test_a_killed_daemon_takes_every_process_with_it(daemon: Daemon) -> None:
    assert daemon.process is not None
    processes = descendants(daemon.process.pid)
    assert len(processes) == 2 + WORKERS  # the door, and the one that forks workers
    daemon.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
    daemon.start()
    verify(daemon)


def test_the_end_of_what_forks_workers_is_the_end_of_the_broker(daemon: Daemon) -> None:
    assert daemon.process is not None
    processes = descendants(daemon.process.pid)
    forks = next(pid for pid in processes if set(workers_of(daemon)) <= set(descendants(pid)))
    os.kill(forks, signal.SIGKILL)
    assert daemon.process.wait(30) == 125
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


def test_a_clean_end_closes_and_signs_the_log_of_every_worker(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"requests": 50})
    with attached(daemon, grant, "") as (runner, _other):
        assert runner.ask("request", name=NAME, port=port) == 200
        assert daemon.stop() == 0
    closed = daemon.records(kind="checkpoint", event="closed")
    assert len(closed) == 1 + WORKERS
    assert all(one["signature"] for one in closed)
    ends = daemon.records(kind="session", event="end")
    assert [one["detail"].partition(";")[0] for one in ends] == ["broker_stopped"] * 2
    daemon.start()
    assert daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"]["requests"] == 1
    verify(daemon)


def test_one_worker_serves_too(port: int) -> None:
    with broker_daemon(rules_for(port), extra=place(port, 1)) as daemon, attached(daemon, "", "") as runners:
        assert [runner.ask("request", name=NAME, port=port) for runner in runners] == [200, 200]
        assert worker_of(daemon, "s-0") == worker_of(daemon, "s-1")
        os.kill(worker_of(daemon, "s-0"), signal.SIGKILL)
        for runner in runners:
            came_back(runner)
        assert [runner.ask("request", name=NAME, port=port) for runner in runners] == [200, 200]
