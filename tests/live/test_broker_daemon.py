"""The broker as a daemon: grants from issue to end, the flag, reload, death and return."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.daemons import Daemon, broker_daemon, played_runner
from tests.live.runs import status, until
from tests.origins.process import HttpsOrigin

pytestmark = pytest.mark.live
NAME = "origin.example"
SESSION_CONNECTIONS = "[limits]\nsession_connections = 3000\n"


def rules_for(port: int, *, tls: str = "inspect", name: str = "origin") -> str:
    return (
        f'[[rule]]\nname = "{name}"\naction = "allow"\nhosts = ["{NAME}"]\nports = [{port}]\n'
        f'addresses = ["127.0.0.1/32"]\ntls = "{tls}"\n'
    )


def resolve(port: int) -> str:
    return f'[resolve]\n"{NAME}:{port}" = ["127.0.0.1"]\n'


@pytest.fixture
def port(https_origin: HttpsOrigin) -> int:
    return https_origin.ports["http"]


@pytest.fixture
def daemon(port: int) -> Iterator[Daemon]:
    with broker_daemon(rules_for(port), extra=resolve(port)) as daemon:
        yield daemon


def issue(daemon: Daemon, port: int, **fields: object) -> str:
    body = {"allow": [f"{NAME}:{port}"], "ttl_seconds": 600, "call": "call-1", **fields}
    code, grant = daemon.ask("POST", "/v1/grants", body)
    assert code == 201, grant
    return str(grant["id"])


def test_a_grant_carries_a_request_and_its_revocation_ends_it(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port)
    with played_runner(daemon, "s-1", grant, call="call-1") as runner:
        assert "BEGIN CERTIFICATE" in runner.ask("attach")["authority"]
        assert runner.ask("request", name=NAME, port=port) == 200
        assert daemon.ask("GET", "/v1/sessions/s-1")[1]["grant"] == grant
        used = daemon.ask("GET", f"/v1/grants/{grant}")[1]
        assert used["usage"]["requests"] == 1
        assert used["sessions"] == ["s-1"]
        assert daemon.ask("DELETE", f"/v1/grants/{grant}")[1]["state"] == "revoked"
        assert runner.ask("request", name=NAME, port=port) == 403
        assert daemon.ask("DELETE", f"/v1/grants/{grant}")[0] == 200
        assert runner.ask("finish") == {"allowed": 1, "denied": 1}
    (revoked,) = daemon.records(kind="grant", event="revoked")
    assert (revoked["grant"], revoked["call"]) == (grant, "call-1")
    assert "pid=" in revoked["process"]
    assert [record["reason"] for record in daemon.records(kind="decision", session="s-1")] == [
        "rule_allow",
        "grant_revoked",
    ]


@pytest.mark.parametrize(
    ("grant", "call", "reason"),
    [("", "", "grant_missing"), ("0" * 32, "", "grant_missing"), (None, "call-2", "grant_missing")],
)
def test_who_has_no_grant_for_the_call_does_not_attach(port: int, grant: str | None, call: str, reason: str) -> None:
    with broker_daemon("require_grant = true\n" + rules_for(port), extra=resolve(port)) as daemon:
        known = issue(daemon, port) if grant is None else grant
        with played_runner(daemon, "s-1", known, call=call) as runner:
            assert runner.ask("attach")["reason"] == reason


def test_a_budget_of_n_requests_allows_exactly_n_to_a_hundred_clients(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"requests": 137})
    with played_runner(daemon, "s-1", grant) as runner:
        runner.ask("attach")
        counted = runner.ask("flood", name=NAME, port=port, clients=100, each=4)
        assert counted["200"] == 137
        assert set(counted) <= {"200", "403", "closed"}
        shown = daemon.ask("GET", f"/v1/grants/{grant}")[1]
        assert (shown["state"], shown["usage"]["requests"]) == ("exhausted", 137)


def test_two_sessions_share_one_budget(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"requests": 3, "uses": 2})
    with played_runner(daemon, "s-1", grant) as one, played_runner(daemon, "s-2", grant) as two:
        one.ask("attach")
        two.ask("attach")
        statuses = [runner.ask("request", name=NAME, port=port) for runner in (one, two, one, two)]
        assert statuses == [200, 200, 200, 403]
        with played_runner(daemon, "s-3", grant) as third:
            assert third.ask("attach")["reason"] == "grant_exhausted"


def test_a_killed_broker_leaves_no_network_and_its_return_costs_no_use(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"uses": 1, "requests": 100})
    with played_runner(daemon, "s-1", grant) as runner:
        runner.ask("attach")
        assert runner.ask("request", name=NAME, port=port) == 200
        daemon.kill()
        runner.ask("wait_for", state="detached")
        assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
        daemon.start()
        changes = runner.ask("wait_for", state="attached")
        assert changes == ["attached", "detached: the broker went away", "attached"]
        assert runner.ask("request", name=NAME, port=port) == 200
        shown = daemon.ask("GET", f"/v1/grants/{grant}")[1]
        assert shown["usage"]["uses"] == 1
        assert 2 <= shown["usage"]["requests"] <= 3  # what the dead broker had reserved is lost, never given twice
        with played_runner(daemon, "s-2", grant) as other:
            assert other.ask("attach")["reason"] == "grant_exhausted"
        runner.ask("finish")
    with played_runner(daemon, "s-1", grant) as again:
        assert again.ask("attach")["reason"] == "grant_exhausted", "a finished session's id is no ticket"


def test_use_is_exact_after_a_clean_restart(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"requests": 5, "bytes_down": 10_000_000})
    with played_runner(daemon, "s-1", grant) as runner:
        runner.ask("attach")
        for _ in range(3):
            assert runner.ask("request", name=NAME, port=port) == 200
        before = daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"]
        assert daemon.stop() == 0
        daemon.start()
        runner.ask("wait_for", state="attached")
        assert daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"] == before
        assert [runner.ask("request", name=NAME, port=port) for _ in range(3)] == [200, 200, 403]


def test_killing_again_and_again_gives_nothing(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"requests": 6})
    allowed = 0
    with played_runner(daemon, "s-1", grant) as runner:
        runner.ask("attach")
        for _ in range(4):
            allowed += [runner.ask("request", name=NAME, port=port) for _ in range(2)].count(200)
            daemon.kill()
            runner.ask("wait_for", state="detached")
            daemon.start()
            runner.ask("wait_for", state="attached")
    assert allowed == 6


def test_with_the_flag_off_nobody_attaches(port: int) -> None:
    with broker_daemon(rules_for(port), extra=resolve(port), enabled=False) as daemon:
        with played_runner(daemon, "s-1") as runner:
            assert runner.ask("attach")["reason"] == "egress_off"
            assert daemon.ask("PUT", "/v1/egress", {"enabled": True})[1]["enabled"] is False
            assert runner.ask("attach")["reason"] == "egress_off"
            daemon.write_policy(enabled=True)
            assert daemon.ask("POST", "/v1/policy/reload")[0] == 200
            assert "authority" in runner.ask("attach")


def test_the_switch_survives_a_restart_and_lets_sessions_back(daemon: Daemon, port: int) -> None:
    with played_runner(daemon, "s-1") as runner:
        runner.ask("attach")
        assert daemon.ask("PUT", "/v1/egress", {"enabled": False})[1]["enabled"] is False
        runner.ask("wait_for", state="detached")
        assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
        daemon.kill()
        daemon.start()
        assert daemon.ask("GET", "/v1/egress")[1] == {"enabled": False, "policy_enabled": True, "switched_on": False}
        assert "egress_switched_off" in {one["code"] for one in daemon.ask("GET", "/v1/health")[1]["degraded"]}
        assert daemon.ask("PUT", "/v1/egress", {"enabled": True})[1]["enabled"] is True
        runner.ask("wait_for", state="attached")
        assert runner.ask("request", name=NAME, port=port) == 200
    assert [record["detail"].split(": ")[1] for record in daemon.records(kind="policy", event="flag")] == [
        "egress off by the operator",
        "egress on by the operator",
    ]


@contextmanager
def silent_origin() -> Iterator[int]:
    """Accepts, says one byte, holds."""
    held = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.sendall(b".")
            held.append(sock)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        for sock in held:
            sock.close()


def test_turning_the_flag_off_closes_a_thousand_tunnels_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    count = 1000
    with silent_origin() as port:
        rules = rules_for(port, tls="splice")
        with (
            broker_daemon(rules, extra=resolve(port), limits=SESSION_CONNECTIONS) as daemon,
            played_runner(daemon, "s-1") as runner,
        ):
            runner.ask("attach")
            assert runner.ask("open_tunnels", name=NAME, port=port, count=count) == count
            assert daemon.ask("GET", "/v1/counters")[1]["connections"] == count
            runner.ask("watch_tunnels")
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(str(daemon.control))
                body = b'{"enabled": false}'
                head = f"PUT /v1/egress HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                begin = time.monotonic()
                control.sendall(head.encode() + body)
                assert control.recv(65536).startswith(b"HTTP/1.1 200 ")
                answered = time.monotonic() - begin
            assert runner.process.stdout is not None
            told = json.loads(runner.process.stdout.readline())["result"]
            assert told["left"] == 0
            assert told.get("data", 0) == 0
            assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
            ended = (told["at"] - begin) * 1000
            with capsys.disabled():
                print(f"\nflag off: {count} tunnels gone after {ended:.0f} ms, answered after {answered * 1000:.0f} ms")
            assert ended < 1000
            assert len(daemon.records(kind="close", reason="egress_off")) == count


def test_a_broken_reload_keeps_the_policy_loudly(daemon: Daemon, port: int) -> None:
    with played_runner(daemon, "s-1") as runner:
        runner.ask("attach")
        before = daemon.ask("GET", "/v1/policy")[1]
        daemon.write_file(daemon.policy, "version = 1\n[egres]\nenabled = true\n")
        code, problem = daemon.ask("POST", "/v1/policy/reload")
        assert (code, problem["code"]) == (422, "policy_refused")
        assert problem["problems"][0]["line"] == 2
        assert daemon.ask("GET", "/v1/policy")[1] == before
        assert runner.ask("request", name=NAME, port=port) == 200
        assert {one["code"] for one in daemon.ask("GET", "/v1/health")[1]["degraded"]} == {"policy_reload_failed"}
        assert "egres" in (daemon.directory / "stderr").read_text()
        (failed,) = daemon.records(kind="policy", event="reload_failed")
        assert failed["policy"] == before["version"]
        daemon.write_policy(rules_for(port, name="other"))
        assert daemon.process is not None
        os.kill(daemon.process.pid, 1)  # SIGHUP does the same
        until(lambda: daemon.ask("GET", "/v1/policy")[1]["version"] != before["version"])
        assert daemon.ask("GET", "/v1/health")[1]["degraded"] == []
        assert runner.ask("request", name=NAME, port=port) == 200
    last = daemon.records(kind="decision", session="s-1")[-1]
    assert (last["rule"], last["policy"]) == ("other", daemon.records(kind="policy", event="loaded")[-1]["policy"])


def test_a_policy_file_that_others_can_write_is_not_taken(daemon: Daemon) -> None:
    daemon.policy.chmod(0o666)
    code, problem = daemon.ask("POST", "/v1/policy/reload")
    assert (code, problem["code"]) == (422, "policy_refused")
    assert "0666" in problem["detail"]


def test_a_cut_session_does_not_come_back(daemon: Daemon, port: int) -> None:
    with played_runner(daemon, "s-1") as runner:
        runner.ask("attach")
        assert daemon.ask("DELETE", "/v1/sessions/s-1")[0] == 200
        changes = runner.ask("wait_for", state="over")
        assert "session_ended" in changes[-1]
        assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
        assert daemon.ask("DELETE", "/v1/sessions/s-1")[0] == 404
    with played_runner(daemon, "s-1") as again:
        assert again.ask("attach")["reason"] == "session_ended"


def test_an_expired_grant_cuts_its_tunnels(daemon: Daemon) -> None:
    with silent_origin() as port:
        daemon.stop()
        daemon.extra = resolve(port)
        daemon.write_policy(rules_for(port, tls="splice"))
        daemon.start()
        grant = issue(daemon, port, ttl_seconds=2)
        with played_runner(daemon, "s-1", grant) as runner:
            runner.ask("attach")
            runner.ask("open_tunnels", name=NAME, port=port, count=3)
            runner.ask("watch_tunnels")
            assert runner.process.stdout is not None
            assert json.loads(runner.process.stdout.readline())["result"]["left"] == 0
        assert len(daemon.records(kind="close", reason="grant_expired")) == 3
        (expired,) = daemon.records(kind="grant", event="expired")
        assert expired["grant"] == grant


def test_a_second_broker_says_who_has_the_place(daemon: Daemon) -> None:
    second = Daemon(daemon.directory, daemon.rules, daemon.extra)
    second.launch()
    assert second.process is not None
    assert second.process.wait(30) == 125
    assert "Another broker serves in" in (daemon.directory / "stderr").read_text()
    assert daemon.is_ready()


def test_what_runs_has_no_right_and_no_name_but_its_own(daemon: Daemon) -> None:
    assert daemon.process is not None
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    assert len(children) == 1
    for pid in (daemon.process.pid, *map(int, children)):
        found = status(pid)
        assert {int(found[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        assert found["NoNewPrivs"] == "1"
        assert "0" not in found["Uid"].split()
    assert daemon.ask("GET", "/v1/health")[1]["user_namespace"] is True
