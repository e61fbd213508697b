"""The broker as a daemon: grants from issue to end, the flag, reload, death and return."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.live import gate
from tests.live.daemons import Daemon, broker_daemon, played_runner
from tests.live.runs import PROMPTLY, status, until
from tests.origins.process import HttpsOrigin
from tests.tree import ROOT

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
    with (
        broker_daemon(rules_for(port), extra=resolve(port), enabled=False) as daemon,
        played_runner(daemon, "s-1") as runner,
    ):
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


def switch_off(daemon: Daemon) -> float:
    """Turn egress off with nothing but a socket; when it was asked for, on the machine's monotonic clock."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(daemon.control))
        body = b'{"enabled": false}'
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        head = f"PUT /v1/egress HTTP/1.1\r\n{fields}\r\n\r\n"
        begin = time.monotonic()
        control.sendall(head.encode() + body)
        assert control.recv(65536).startswith(b"HTTP/1.1 200 ")
    return begin


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
            begin = switch_off(daemon)
            answered = time.monotonic() - begin
            assert runner.process.stdout is not None
            told = json.loads(runner.process.stdout.readline())["result"]
            assert told["left"] == 0
            assert told.get("data", 0) == 0
            assert runner.ask("refused_connect", port=port) == "ConnectionRefusedError"
            ended = (told["at"] - begin) * 1000
            with capsys.disabled():
                print(f"\nflag off: {count} tunnels gone after {ended:.0f} ms, answered after {answered * 1000:.0f} ms")
            assert ended < PROMPTLY * 1000
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


def test_a_storm_of_signals_is_few_reloads_and_the_last_one_counts(daemon: Daemon, port: int) -> None:
    assert daemon.process is not None
    before = len(daemon.records(kind="policy", event="loaded"))
    for _ in range(200):
        os.kill(daemon.process.pid, 1)
    daemon.write_policy(rules_for(port, name="last"))
    os.kill(daemon.process.pid, 1)
    wanted = daemon.ask("POST", "/v1/policy/reload")[1]["version"]
    until(lambda: len({one["policy"] for one in daemon.records(kind="policy", event="loaded")}) == 2)
    assert daemon.ask("GET", "/v1/policy")[1]["version"] == wanted
    assert len(daemon.records(kind="policy", event="loaded")) - before < 50


def test_a_reload_judges_open_tunnels_again() -> None:
    with silent_origin() as port:
        kept, dropped = rules_for(port, tls="splice"), rules_for(port, tls="splice").replace(NAME, "other.example")
        with broker_daemon(kept, extra=resolve(port)) as daemon, played_runner(daemon, "s-1") as runner:
            runner.ask("attach")
            assert runner.ask("open_tunnels", name=NAME, port=port, count=3) == 3
            assert daemon.ask("POST", "/v1/policy/reload")[0] == 200
            assert daemon.ask("GET", "/v1/sessions/s-1")[1]["connections"] == 3
            runner.ask("watch_tunnels")
            daemon.write_policy(dropped)
            assert daemon.ask("POST", "/v1/policy/reload")[0] == 200
            assert runner.process.stdout is not None
            assert json.loads(runner.process.stdout.readline())["result"]["left"] == 0
            assert daemon.ask("GET", "/v1/sessions/s-1")[1]["connections"] == 0
            version = daemon.ask("GET", "/v1/policy")[1]["version"]
            closed = daemon.records(kind="close", session="s-1")
            assert [(one["reason"], one["policy"]) for one in closed] == [("policy_changed", version)] * 3


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


@pytest.mark.parametrize("how", ["expired", "revoked"])
def test_the_end_of_a_grant_cuts_its_tunnels(how: str) -> None:
    with silent_origin() as port:
        rules = rules_for(port, tls="splice")
        with broker_daemon(rules, extra=resolve(port)) as daemon, played_runner(daemon, "s-1") as runner:
            assert runner.ask("times") == 0  # it runs: the grant's time begins only now
            grant = issue(daemon, port, ttl_seconds=6)
            assert "authority" in runner.ask("attach", grant=grant)
            assert runner.ask("open_tunnels", name=NAME, port=port, count=3) == 3
            runner.ask("watch_tunnels")
            if how == "revoked":
                assert daemon.ask("DELETE", f"/v1/grants/{grant}")[0] == 200
            assert runner.process.stdout is not None
            assert json.loads(runner.process.stdout.readline())["result"]["left"] == 0
            # The resets go out before the turn's end writes what they were: the runner may hear of them first.
            until(lambda: len(daemon.records(kind="close", reason=f"grant_{how}")) == 3)
            (ended,) = daemon.records(kind="grant", event=how)
            assert ended["grant"] == grant


def test_a_grant_out_of_bytes_is_cut_in_the_middle(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"bytes_down": 300_000})
    with played_runner(daemon, "s-1", grant) as runner:
        runner.ask("attach")
        assert runner.ask("request", name=NAME, port=port, target="/bytes/5000000") == "ConnectionResetError"
        assert runner.ask("request", name=NAME, port=port) == 403
        shown = daemon.ask("GET", f"/v1/grants/{grant}")[1]
        assert (shown["state"], shown["usage"]["bytes_down"]) == ("exhausted", 300_000)
    assert [one["reason"] for one in daemon.records(kind="close", session="s-1")] == ["grant_exhausted"]
    assert [one["grant"] for one in daemon.records(kind="grant", event="exhausted")] == [grant]


def test_a_second_broker_says_who_has_the_place(daemon: Daemon) -> None:
    second = Daemon(daemon.directory, daemon.rules, daemon.extra)
    second.launch()
    assert second.process is not None
    assert second.process.wait(30) == 125
    assert "Another broker serves in" in (daemon.directory / "stderr").read_text()
    assert daemon.is_ready()


def fetching(port: int) -> list[str]:
    return ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"http://{NAME}:{port}/"]


def test_run_uses_a_grant_of_the_broker(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"uses": 1})
    options = ["--grant", grant, "--socket", str(daemon.attach)]
    done = gate.run(*fetching(port), options=options)
    assert (done.code, done.out) == (0, "200"), done.err
    assert done.counts == (1, 0, 0)
    assert daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"]["uses"] == 1
    (session,) = {one["session"] for one in daemon.records(kind="decision", grant=grant)}
    assert session in done.err
    again = gate.run("true", options=options)
    assert again.code == 125
    assert "the grant is used up" in again.err


def test_run_says_that_no_broker_is_there(tmp_path: Path) -> None:
    done = gate.run("true", options=["--grant", "0" * 32, "--socket", str(tmp_path / "none.sock")])
    assert done.code == 125
    assert "No broker can be reached at" in done.err
    done = gate.run("true", options=["--grant", "0" * 32, "--allow", "a.example"])
    assert (done.code, "name no others" in done.err) == (125, True)


def test_a_run_that_is_cut_goes_on_without_a_network_and_says_so(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port)
    script = f"read go; {' '.join(fetching(port))}; echo; read go; curl -sS http://192.0.2.1/ || echo over"
    options = ["--grant", grant, "--socket", str(daemon.attach)]
    with gate.started("sh", "-c", script, options=options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        assert process.stdout.readline().strip() == "200"
        (session,) = daemon.ask("GET", "/v1/sessions")[1]["sessions"]
        assert daemon.ask("DELETE", f"/v1/sessions/{session['id']}")[0] == 200
        done = gate.finish(process, "\n")
    assert (done.code, done.out.strip()) == (0, "over")
    assert "cut by the operator" in done.err
    assert "the command goes on without a network" in done.err


def test_a_run_attaches_again_when_the_broker_is_back(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port, budgets={"uses": 1})
    step = f"read go; {' '.join(fetching(port))}; echo"
    with gate.started(
        "sh", "-c", f"{step}; " * 4, options=["--grant", grant, "--socket", str(daemon.attach)]
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def fetch() -> str:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        assert fetch() == "200"
        daemon.kill()
        assert fetch() == "000", "no broker, no network"
        daemon.start()
        until(lambda: len(daemon.ask("GET", "/v1/sessions")[1]["sessions"]) == 1)
        assert fetch() == "200"
        assert daemon.stop() == 0  # that is said; a crash is noticed
        daemon.start()
        until(lambda: len(daemon.ask("GET", "/v1/sessions")[1]["sessions"]) == 1)
        assert fetch() == "200"
        done = gate.finish(process, "")
    assert done.code == 0
    assert done.err.count("the command goes on without a network until it is served again") == 2
    assert done.err.count("the command is served again") == 2
    assert done.counts == (1, 0, 0), "what the present broker has seen"
    assert daemon.ask("GET", f"/v1/grants/{grant}")[1]["usage"]["uses"] == 1


def test_a_run_is_served_again_when_egress_is_on_again(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port)
    script = f"read go; {' '.join(fetching(port))}; echo"
    with gate.started("sh", "-c", script, options=["--grant", grant, "--socket", str(daemon.attach)]) as process:
        until(lambda: len(daemon.ask("GET", "/v1/sessions")[1]["sessions"]) == 1)
        for enabled in (False, True):
            assert daemon.ask("PUT", "/v1/egress", {"enabled": enabled})[0] == 200
            wanted = int(enabled)
            until(lambda: len(daemon.ask("GET", "/v1/sessions")[1]["sessions"]) == wanted)  # noqa: B023  at once
        done = gate.finish(process, "\n")
    assert (done.code, done.out.strip()) == (0, "200"), done.err


def grant_command(daemon: Daemon, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "wicketgate", "grant", *words, "--socket", str(daemon.control)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_grants_on_the_command_line(daemon: Daemon, port: int) -> None:
    issued = grant_command(
        daemon, "issue", "--allow", f"{NAME}:{port}", "--ttl", "5m", "--call", "c-1", "--bytes-down", "1m"
    )
    assert issued.returncode == 0, issued.stderr
    grant = issued.stdout.strip()
    shown = json.loads(grant_command(daemon, "show", grant, "--json").stdout)
    assert (shown["id"], shown["call"], shown["budgets"]) == (grant, "c-1", {"bytes_down": 2**20})
    assert f"bytes_down  0 of {2**20}" in grant_command(daemon, "show", grant).stdout
    assert grant in grant_command(daemon, "list", "--state", "active").stdout
    assert grant_command(daemon, "revoke", grant).returncode == 0
    assert grant_command(daemon, "list", "--state", "active").stdout == ""
    assert json.loads(grant_command(daemon, "list", "--json").stdout)["grants"][0]["state"] == "revoked"
    refused = grant_command(daemon, "issue", "--allow", "evil.example:443", "--ttl", "5m", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "not_covered"
    assert "evil.example" in refused.stderr
    assert grant_command(daemon, "issue", "--allow", "a.example", "--ttl", "soon").returncode == 125


# ---- who may use which socket ----------------------------------------------------------------------------------------

STRANGER, RUNNER = 64_400, 64_401


def as_user(uid: int, *words: str) -> "subprocess.CompletedProcess[str]":
    drop = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--inh-caps=-all", "--"]
    return subprocess.run([*drop, *words], capture_output=True, text=True, check=False, timeout=60)


CONNECT = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(20)
sock.connect(sys.argv[1])
print(sock.recv(65536).decode())
"""


@pytest.mark.root_only
def test_each_socket_is_for_those_whom_the_configuration_names(port: int) -> None:
    others = f"[control]\nusers = [64402]\n[attach]\nusers = [{RUNNER}]\n"
    with broker_daemon(rules_for(port), extra=others) as daemon:
        health = ["curl", "-sS", "--unix-socket", str(daemon.control), "http://localhost/v1/health"]
        attach = ["/usr/bin/python3", "-c", CONNECT, str(daemon.attach)]
        assert json.loads(as_user(64_402, *health).stdout)["ready"] is True
        for uid in (STRANGER, RUNNER):
            refused = json.loads(as_user(uid, *health).stdout)
            assert (refused["status"], refused["code"]) == (403, "peer_refused")
        assert json.loads(as_user(RUNNER, *attach).stdout)["type"] == "greeting"
        for uid in (STRANGER, 64_402):
            assert json.loads(as_user(uid, *attach).stdout)["reason"] == "peer_refused"
        until(lambda: daemon.ask("GET", "/v1/counters")[1]["peers_refused"] >= 2)
        refusals = daemon.records(kind="policy", event="refused")
        assert {one["process"].split()[0] for one in refusals} <= {f"uid={uid}" for uid in (STRANGER, RUNNER, 64_402)}
        assert refusals
        assert daemon.is_ready()


@pytest.mark.root_only
def test_without_others_the_sockets_are_closed_to_them(daemon: Daemon) -> None:
    for path in (daemon.control, daemon.attach):
        assert path.stat().st_mode & 0o777 == 0o600
        assert "Permission denied" in as_user(STRANGER, "/usr/bin/python3", "-c", CONNECT, str(path)).stderr


def test_a_payload_sees_no_socket_of_the_broker(daemon: Daemon, port: int) -> None:
    grant = issue(daemon, port)
    seek = f"ls {daemon.directory} 2>&1; find / -name '*.sock' 2>/dev/null; grep -a wicketgate /proc/net/unix; true"
    done = gate.run("sh", "-c", seek, options=["--grant", grant, "--socket", str(daemon.attach)])
    assert done.code == 0
    assert "No such file" in done.out
    assert len(done.out.splitlines()) == 1


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"[]",
        b'{"type": "attach"}',
        b'{"type": "attach", "session": "a b"}',
        b'{"type": "attach", "session": "../x"}',
        b'{"type": "attach", "session": "s", "more": 1}',
        b'{"type": "finish"}',
        b'{"type": "issue", "session": "s"}',
        b'{"type": "attach", "session": "' + b"x" * 70_000 + b'"}',
    ],
)
def test_no_message_on_the_attach_socket_harms_the_broker(daemon: Daemon, message: bytes) -> None:
    for descriptors in ([], [0], [0, 0], [0] * 8) * 5:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, suppress(OSError):
            sock.settimeout(20)
            sock.connect(str(daemon.attach))
            assert b"greeting" in sock.recv(65536)
            socket.send_fds(sock, [message], descriptors)
            if message:
                assert b"rejected" in sock.recv(65536)
    assert daemon.is_ready()
    if os.geteuid() == 0:  # nobody else may look at the descriptors of a process that is not dumpable
        assert daemon.process is not None
        opened = Path(f"/proc/{daemon.process.pid}/fd")
        until(lambda: len(list(opened.iterdir())) < 40)


def test_what_is_no_listener_is_refused(daemon: Daemon) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as unbound,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local,
    ):
        for pair in ((unbound, names), (names, listener), (listener, listener), (listener, local), (local, names)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(20)
                sock.connect(str(daemon.attach))
                sock.recv(65536)
                socket.send_fds(sock, [b'{"type": "attach", "session": "s-1"}'], [one.fileno() for one in pair])
                assert json.loads(sock.recv(65536))["reason"] == "bad_request"
    assert daemon.ask("GET", "/v1/sessions")[1] == {"sessions": []}


def test_the_end_of_the_door_is_the_end_of_the_broker(daemon: Daemon) -> None:
    assert daemon.process is not None
    door, _fork_server = children_of(daemon.process.pid)
    os.kill(door, 9)
    assert daemon.process.wait(30) == 125
    daemon.start()


def test_a_clean_end_takes_the_sockets_away_and_signs_the_log(daemon: Daemon) -> None:
    assert daemon.stop() == 0
    assert not daemon.control.exists()
    assert not daemon.attach.exists()
    assert daemon.records(kind="checkpoint")[-1]["event"] == "closed"
    assert daemon.records(kind="checkpoint")[-1]["signature"]


def test_who_started_the_service_is_told(port: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as starter:
        name = f"wicketgate-test-{os.getpid()}"
        starter.bind(f"\0{name}")
        starter.settimeout(30)
        with broker_daemon(rules_for(port), environ={"NOTIFY_SOCKET": f"@{name}"}) as daemon:
            assert starter.recv(100) == b"READY=1"
            assert daemon.process is not None
            os.kill(daemon.process.pid, signal.SIGHUP)
            assert starter.recv(100).startswith(b"RELOADING=1")
            assert starter.recv(100) == b"READY=1"
            daemon.stop()
            assert starter.recv(100) == b"STOPPING=1"


BAD_STARTS = {
    "no configuration": ("none.toml", None, "the path of a policy file"),
    "a table too many": ("broker.toml", "version = 1\n[brokers]\n", "unknown key"),
    "no such user": ("broker.toml", '[control]\nusers = ["no-such-user-here"]\n', "no-such-user-here"),
    "no certificates": ("broker.toml", 'cacert = ["/etc/hostname"]\n', "PEM"),
    "a policy that is none": ("broker.toml", "", "The policy is refused"),
}


@pytest.mark.parametrize(("file", "extra", "says"), BAD_STARTS.values(), ids=BAD_STARTS)
def test_what_cannot_start_says_why(port: int, file: str, extra: str | None, says: str) -> None:
    with broker_daemon(rules_for(port)) as daemon:
        daemon.stop()
        config = daemon.directory / "broker.toml"
        if extra:
            head = "" if extra.startswith("version") else config.read_text()
            daemon.write_file(config, head + extra)
        elif extra is not None:
            daemon.write_file(daemon.policy, "version = 1\n[[rule]]\n")
        done = subprocess.run(
            [sys.executable, "-m", "wicketgate", "broker", "--config", str(daemon.directory / file)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 125
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_without_user_namespaces_it_serves_and_says_so(daemon: Daemon) -> None:
    daemon.stop()
    daemon.prefix = (sys.executable, "-m", "tests.live.without_namespaces")
    daemon.start()
    health = daemon.ask("GET", "/v1/health")[1]
    assert (health["ready"], health["user_namespace"]) == (True, False)
    assert {one["code"] for one in health["degraded"]} == {"no_user_namespace"}
    assert daemon.process is not None
    assert {int(status(daemon.process.pid)[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}


def test_the_readme_example(daemon: Daemon, port: int) -> None:
    environ = {**os.environ, "WICKETGATE_CONTROL": str(daemon.control)}
    example = ROOT / "tests" / "examples" / "grant_for_a_tool_call.py"
    code = example.read_text().replace("api.example.com:443", f"{NAME}:{port}")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (grant,) = daemon.ask("GET", "/v1/grants?call=call-42")[1]["grants"]
    assert grant["state"] == "revoked"
    assert done.stdout.split() == [grant["id"], "0", "requests"]
    assert len(code.splitlines()) <= 14


def children_of(pid: int) -> list[int]:
    """In the order in which they were forked."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_runs_has_no_right_and_no_name_but_its_own(daemon: Daemon) -> None:
    assert daemon.process is not None
    door, fork_server = children_of(daemon.process.pid)
    workers = children_of(fork_server)
    health = daemon.ask("GET", "/v1/health")[1]
    assert workers == [worker["pid"] for worker in health["workers"]]
    assert len(workers) == min(len(os.sched_getaffinity(0)), 8)
    for pid in (daemon.process.pid, door, fork_server, *workers):
        found = status(pid)
        assert {int(found[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        assert found["NoNewPrivs"] == "1"
        assert "0" not in found["Uid"].split()
        # Whoever is not dumpable is root's in /proc (proc(5)): none of its user's may look into it or steer it.
        assert Path(f"/proc/{pid}/mem").stat().st_uid == 0
    assert health["user_namespace"] is True
