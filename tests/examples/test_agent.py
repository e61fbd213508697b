"""The example agent server against whoever may post to it: no page gets in, and no body makes it fail."""

import asyncio
import json
from collections.abc import Mapping

import pytest
from aiohttp.test_utils import TestClient, TestServer

from examples.agent.agent import MAX_REQUEST, make_app

GOOD = json.dumps({"tool": "shell", "script": "true"}).encode()
JSON = {"Content-Type": "application/json"}
UNREACHABLE = 502  # what a call ends with that was let in: there is neither broker nor runner here


def post(body: bytes, headers: Mapping[str, str], path: str = "/calls") -> int:
    async def go() -> int:
        async with (
            TestClient(TestServer(make_app({"AGENT_ALLOW": "api.example.com:443"}))) as client,
            client.post(path, data=body, headers=headers) as answer,
        ):
            assert "application/json" in answer.headers["Content-Type"] or answer.status in {404, 405, 413}
            assert "Access-Control-Allow-Origin" not in answer.headers
            return answer.status

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WICKETGATE_CONTROL", "/nonexistent/control.sock")
    monkeypatch.setenv("WICKETGATE_RUNNER", "/nonexistent/runner.sock")


def test_a_program_on_the_machine_is_served() -> None:
    for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]", "LOCALHOST"):
        assert post(GOOD, JSON | {"Host": host}) == UNREACHABLE, host


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.attacker.example"},
        {"Host": "rebound.attacker.example:8080"},
        {"Host": "localhost.attacker.example"},
        {"Host": "attacker.example:localhost"},
        {"Host": "localhost:8080:8080"},
        {"Host": "localhost:"},
        {"Host": ""},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Mode": "no-cors"},
    ],
    ids=str,
)
def test_no_page_gets_in(headers: dict[str, str]) -> None:
    assert post(GOOD, {"Host": "localhost:8080"} | JSON | headers) == 403
    assert post(GOOD, {"Host": "localhost:8080"} | JSON | headers, "/health") == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_a_form_can_send_is_no_call(kind: str) -> None:
    """These three a page may send anywhere without asking first (the Fetch standard's safelisted types)."""
    assert post(GOOD, {"Host": "localhost", "Content-Type": kind}) == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"shell"',
        b"\xff\xfe{",
        b'{"tool": "shell", "script": "\xff"}',
        rb'{"tool": "shell", "script": "\ud800"}',
        b'{"tool": "shell", "script": NaN}',
        b'{"tool": "shell", "script": ' + b"9" * 5000 + b"}",
        b'{"tool": "shell", "script": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": ' * 20_000 + b"1" + b"}" * 20_000,
        b'{"tool": "shell", "script": "true"} {}',
        b'{"tool": "shell", "script": "true", "grant": "0123456789abcdef"}',
        b'{"tool": "shell", "script": "true", "__proto__": {}}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_no_body_makes_it_fail(body: bytes) -> None:
    assert post(body, {"Host": "localhost"} | JSON) == 400


def test_an_endless_body_is_cut_off() -> None:
    assert post(b" " * (MAX_REQUEST + 1), {"Host": "localhost"} | JSON) == 413
