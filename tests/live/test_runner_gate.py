"""Who may use the runner's socket, what refuses to start, and what a raw client is told."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.live.runners import Daemon, daemon

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    # The gate stands open for knocking, so that it has somebody to refuse.
    with daemon(access="users = [4242]") as made:
        yield made


def curl(made: Daemon, *words: str, **options: object) -> tuple[int, dict[str, object]]:
    command = ["curl", "-s", "--unix-socket", str(made.socket), "-w", "\n%{http_code}", "-m", "20", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


@pytest.mark.root_only
@pytest.mark.parametrize(("user", "status"), [(4242, 200), (4243, 403), (65534, 403)])
def test_a_peer_is_told_by_the_kernel(served: Daemon, user: int, status: int) -> None:
    found, document = curl(served, "http://localhost/v1/health", user=user, group=user, extra_groups=[])
    assert found == status
    if status == 403:
        assert document["code"] == "peer_refused"


@pytest.mark.root_only
def test_a_user_who_is_let_in_is_no_administrator(served: Daemon) -> None:
    words = curl(served, "http://localhost/v1/mode")[1]["confirmation"]
    typed = ("-X", "PUT", "-H", "Content-Type: application/json", "-d", json.dumps({"confirm": words}))
    found, document = curl(served, *typed, "http://localhost/v1/mode", user=4242, group=4242, extra_groups=[])
    assert (found, document["code"]) == (403, "not_administrator")


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("http://elsewhere/v1/health",), 403, "cross_origin"),
        (("-H", "Origin: http://localhost", "http://localhost/v1/health"), 403, "cross_origin"),
        (("http://localhost/v1/nothing",), 404, "unknown_path"),
        (("-X", "PATCH", "http://localhost/v1/jobs"), 405, "method_not_allowed"),
        (("-d", "{}", "http://localhost/v1/runs"), 415, "unsupported_media_type"),
        (("-H", "Content-Type: application/json", "-d", "{", "http://localhost/v1/runs"), 400, "bad_request"),
        (("http://localhost/v1/jobs/0000/logs?offset=-1",), 400, "invalid_field"),
        (("http://localhost/v1/jobs/0000/logs?nope=1",), 400, "unknown_field"),
        (("http://localhost/v1/jobs/0000/logs",), 404, "unknown_id"),
        (("http://localhost/v1/jobs/..%2f..%2fetc",), 404, "unknown_path"),
        (("http://localhost/v1/health?x=1",), 400, "bad_request"),
    ],
)
def test_what_is_refused(served: Daemon, words: tuple[str, ...], status: int, code: str) -> None:
    found, document = curl(served, *words)
    assert (found, document["code"]) == (status, code)
    assert document["request_id"]


def test_what_is_no_http_ends_that_connection_alone(served: Daemon) -> None:
    for sent in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000, b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(20)
            client.connect(str(served.socket))
            try:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except OSError:
                pass
    assert curl(served, "http://localhost/v1/health")[0] == 200


def refused_start(made: Daemon) -> str:
    command = [sys.executable, "-m", "wicketgate", "runner", "--config", str(made.directory / "runner.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 125
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_runner_in_the_same_place_does_not_start(served: Daemon) -> None:
    assert "Another runner serves" in refused_start(served)
    assert curl(served, "http://localhost/v1/health")[0] == 200


def test_a_configuration_that_others_can_write_is_not_read() -> None:
    with daemon() as made:
        (made.directory / "runner.toml").chmod(0o666)
        assert "runner.toml" in refused_start(made)


def test_after_a_kill_the_next_one_starts_in_the_same_place() -> None:
    with daemon() as made:
        made.stop(9)
        assert os.path.exists(made.socket), "what a kill leaves"
        made.start()
        assert made.stop() == 0
        assert not os.path.exists(made.socket)
