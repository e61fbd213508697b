"""The control API against its own document, against hostile requests, and through its client."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.api.faults import faults_in
from broker.api.routes import faults_of
from broker.control import client, schema
from broker.control.app import MAX_BODY
from broker.control.client import Broker
from broker.control.config import GrantLimits
from broker.control.faults import Fault
from broker.control.openapi import openapi_document
from broker.control.operations import Operations
from broker.control.routes import ROUTES
from broker.policy.grant_rules import GRANT_RULE_KEYS
from tests.broker.control.json_schema import faults
from tests.broker.control.serving import Api, served

ISSUE = {"allow": ["api.example.com:443"], "ttl_seconds": 60, "call": "call-1"}


async def ask(
    api: Api, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], "aiohttp.typedefs.LooseHeaders"]:
    """One request, raw enough to be wrong."""
    content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} if content is not None else {}
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(api.socket))) as session,
        session.request(method, f"http://localhost{path}", data=content, headers=sent | (headers or {})) as response,
    ):
        return response.status, json.loads(await response.read()), response.headers


# ---- the document ----------------------------------------------------------------------------------------------------


def test_the_document_has_exactly_the_routes() -> None:
    document = openapi_document()
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == {(route.method, route.path) for route in ROUTES}
    assert len(told) == len(ROUTES)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        statuses = {route.status, *(fault.status for fault in faults_of(route))}
        assert {int(status) for status in operation["responses"]} == statuses
        assert ("requestBody" in operation) == (route.body is not None)
        named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert named == set(route.parameters)


def test_every_operation_exists_and_no_other() -> None:
    public = {name for name, value in vars(Operations).items() if not name.startswith("_") and callable(value)}
    served_names = {route.name for route in ROUTES}
    assert served_names <= public
    assert {name for name in public - served_names if not name.startswith("record_")} == set()


def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = openapi_document()
    text = json.dumps(document)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]
    assert len({route.name for route in ROUTES}) == len(ROUTES)


def test_a_grant_rule_has_the_policy_readers_keys() -> None:
    assert set(schema.GrantRule.__struct_fields__) == set(GRANT_RULE_KEYS)


async def test_real_answers_are_as_the_document_says(tmp_path: Path) -> None:
    document = openapi_document()
    seen = set()
    async with served(tmp_path) as api:
        grant = (await ask(api, "POST", "/v1/grants", {**ISSUE, "budgets": {"requests": 5, "rate": 0.5}}))[1]["id"]
        rules = [{"name": "r", "action": "allow", "hosts": ["api.example.com"], "methods": ["GET"], "paths": ["/v1/x"]}]
        requests: list[tuple[str, str, str, Any]] = [
            ("GET", "/v1/health", "/v1/health", None),
            ("GET", "/v1/policy", "/v1/policy", None),
            ("POST", "/v1/policy/reload", "/v1/policy/reload", None),
            ("GET", "/v1/egress", "/v1/egress", None),
            ("PUT", "/v1/egress", "/v1/egress", {"enabled": False}),
            ("PUT", "/v1/egress", "/v1/egress", {"enabled": True}),
            ("POST", "/v1/grants", "/v1/grants", {"rules": rules, "expires_at": _in(3600)}),
            ("POST", "/v1/grants", "/v1/grants", {**ISSUE, "allow": ["nowhere.example.com:443"]}),
            ("POST", "/v1/grants", "/v1/grants", {**ISSUE, "rules": [{"name": "x"}], "allow": None}),
            ("GET", "/v1/grants", "/v1/grants", None),
            ("GET", "/v1/grants", "/v1/grants?limit=1&state=active&call=call-1", None),
            ("GET", "/v1/grants", "/v1/grants?limit=0", None),
            ("GET", "/v1/grants/{id}", f"/v1/grants/{grant}", None),
            ("GET", "/v1/grants/{id}", "/v1/grants/none", None),
            ("DELETE", "/v1/grants/{id}", f"/v1/grants/{grant}", None),
            ("DELETE", "/v1/grants/{id}", "/v1/grants/none", None),
            ("GET", "/v1/sessions", "/v1/sessions", None),
            ("GET", "/v1/sessions/{id}", "/v1/sessions/none", None),
            ("DELETE", "/v1/sessions/{id}", "/v1/sessions/none", None),
            ("POST", "/v1/explain", "/v1/explain", {"url": "https://api.example.com/v1/x", "grant": grant}),
            ("POST", "/v1/explain", "/v1/explain", {"url": "https://other.example.com/"}),
            ("POST", "/v1/explain", "/v1/explain", {"url": "no url"}),
            ("GET", "/v1/counters", "/v1/counters", None),
            ("GET", "/v1/openapi.json", "/v1/openapi.json", None),
        ]
        for method, route, path, body in requests:
            status, answer, headers = await ask(api, method, path, body)
            told = document["paths"][route][method.lower()]["responses"][str(status)]["content"]
            (media_type, kind) = next(iter(told.items()))
            assert headers["Content-Type"] == media_type  # type: ignore[index]
            assert faults(answer, kind["schema"], document) == [], (method, path)
            seen.add((method, route))
        assert (await ask(api, "GET", "/v1/openapi.json"))[1] == document
    assert seen == {(route.method, route.path) for route in ROUTES}


def _in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, str, Any, str, str | None]] = [
    ("POST", "/v1/grants", {**ISSUE, "extra": 1}, "unknown_field", "extra"),
    ("POST", "/v1/grants", {**ISSUE, "budgets": {"request": 1}}, "unknown_field", "budgets.request"),
    ("POST", "/v1/grants", {**ISSUE, "budgets": {"requests": 0}}, "invalid_field", "budgets.requests"),
    ("POST", "/v1/grants", {**ISSUE, "budgets": {"requests": "5"}}, "invalid_field", "budgets.requests"),
    ("POST", "/v1/grants", {**ISSUE, "budgets": {"requests": True}}, "invalid_field", "budgets.requests"),
    ("POST", "/v1/grants", {**ISSUE, "budgets": {"requests": 2**63}}, "invalid_field", "budgets.requests"),
    ("POST", "/v1/grants", {**ISSUE, "budgets": {"rate": 0}}, "invalid_field", "budgets.rate"),
    ("POST", "/v1/grants", {**ISSUE, "ttl_seconds": 0}, "invalid_field", "ttl_seconds"),
    ("POST", "/v1/grants", {**ISSUE, "ttl_seconds": -1}, "invalid_field", "ttl_seconds"),
    ("POST", "/v1/grants", {**ISSUE, "ttl_seconds": 86_401}, "invalid_field", "ttl_seconds"),
    ("POST", "/v1/grants", {**ISSUE, "ttl_seconds": None}, "invalid_field", "ttl_seconds"),
    ("POST", "/v1/grants", {**ISSUE, "expires_at": "2099-01-01T00:00:00Z"}, "invalid_field", "expires_at"),
    (
        "POST",
        "/v1/grants",
        {"allow": ["api.example.com"], "expires_at": "2001-01-01T00:00:00Z"},
        "invalid_field",
        "expires_at",
    ),
    (
        "POST",
        "/v1/grants",
        {"allow": ["api.example.com"], "expires_at": "2099-01-01T00:00:00"},
        "invalid_field",
        "expires_at",
    ),
    ("POST", "/v1/grants", {**ISSUE, "call": "a b"}, "invalid_field", "call"),
    ("POST", "/v1/grants", {**ISSUE, "call": "a\n"}, "invalid_field", "call"),
    ("POST", "/v1/grants", {**ISSUE, "call": "x" * 129}, "invalid_field", "call"),
    ("POST", "/v1/grants", {**ISSUE, "rules": []}, "invalid_field", "allow"),
    ("POST", "/v1/grants", {"ttl_seconds": 5}, "invalid_field", "allow"),
    ("POST", "/v1/grants", {**ISSUE, "allow": []}, "invalid_field", "allow"),
    ("POST", "/v1/grants", {**ISSUE, "allow": ["https://api.example.com/"]}, "invalid_field", "allow[0]"),
    (
        "POST",
        "/v1/grants",
        {**ISSUE, "allow": ["api.example.com:443", "api.example.com:99999"]},
        "invalid_field",
        "allow[1]",
    ),
    ("POST", "/v1/grants", {"rules": [{"name": "r"}], "ttl_seconds": 5}, "invalid_rules", "rules"),
    ("POST", "/v1/grants", {"rules": ["r"], "ttl_seconds": 5}, "invalid_field", "rules[0]"),
    ("POST", "/v1/grants", {**ISSUE, "allow": ["*.example.com:443"]}, "not_covered", None),
    ("POST", "/v1/grants", {**ISSUE, "allow": ["admin.pkg.example.net:443"]}, "not_covered", None),
    ("POST", "/v1/grants", {**ISSUE, "allow": ["api.example.com:80"]}, "not_covered", None),
    ("POST", "/v1/grants", {**ISSUE, "allow": ["api.example.com:443", "evil.example.com:443"]}, "not_covered", None),
    ("POST", "/v1/grants", [], "invalid_field", None),
    ("POST", "/v1/grants", b"", "bad_request", None),
    ("POST", "/v1/grants", b"{", "bad_request", None),
    ("POST", "/v1/grants", b'{"call": "\xff"}', "bad_request", None),
    ("POST", "/v1/grants", b'{"rules": ' + b"[" * 100_000, "invalid_field", "rules[0]"),
    ("POST", "/v1/grants", b'{"rules": [{"a": ' + b"[" * 100_000, "bad_request", None),
    ("POST", "/v1/grants", b" " * (MAX_BODY + 1), "too_large", None),
    ("PUT", "/v1/egress", {"enabled": "false"}, "invalid_field", "enabled"),
    ("PUT", "/v1/egress", {"enabled": 0}, "invalid_field", "enabled"),
    ("PUT", "/v1/egress", {"enable": True, "enabled": True}, "unknown_field", "enable"),
    ("PUT", "/v1/egress", {}, "invalid_field", "enabled"),
    ("GET", "/v1/grants?stat=active", None, "unknown_field", "stat"),
    ("GET", "/v1/grants?state=on", None, "invalid_field", "state"),
    ("GET", "/v1/grants?limit=5&limit=6", None, "invalid_field", "limit"),
    ("GET", "/v1/grants?state=null", None, "invalid_field", "state"),
    ("GET", "/v1/grants?after=NULL", None, "invalid_field", "after"),
    ("GET", "/v1/grants?limit=null", None, "invalid_field", "limit"),
    ("GET", "/v1/grants?after=-1", None, "invalid_field", "after"),
    ("GET", "/v1/health?x=1", None, "bad_request", None),
    *(
        ("POST", "/v1/explain", {"url": url}, "invalid_field", "url")
        for url in (
            "",
            "api.example.com",
            "ftp://api.example.com/",
            "https://",
            "https://a\0b/",
            "https://user@api.example.com/",
            "https://api.example.com:99999/",
            "https://api.example.com\\@evil.example/",
            "https://[fe80::1%25eth0]/",
            "https://bücher..example/",
        )
    ),
    ("POST", "/v1/explain", b'{"url": "https://\\ud800.example/"}', "bad_request", None),
    ("POST", "/v1/explain", {"url": "https://api.example.com/", "grant": "none"}, "unknown_grant", "grant"),
    ("POST", "/v1/explain", {"url": "https://api.example.com/", "grant": "../x"}, "invalid_field", "grant"),
    ("POST", "/v1/grants", b'{"allow": ["api.example.com"], "ttl_seconds": 1e999}', "invalid_field", "ttl_seconds"),
    ("POST", "/v1/grants", b'{"allow": ["api.example.com"], "ttl_seconds": NaN}', "bad_request", None),
    ("POST", "/v1/grants", b'{"allow": ["api.example.com"], "ttl_seconds": 1e-9}', "invalid_field", "ttl_seconds"),
    (
        "POST",
        "/v1/grants",
        b'{"allow": ["api.example.com"], "ttl_seconds": 5, "ttl_seconds": 6}',
        "invalid_field",
        None,
    ),
    (
        "POST",
        "/v1/grants",
        b'{"allow": ["api.example.com"], "ttl_seconds": 5, "budgets": {"requests": 1, "r\\u0065quests": 1000}}',
        "invalid_field",
        None,
    ),
    (
        "POST",
        "/v1/grants",
        b'{"rules": [{"name": "a", "action": "allow", "hosts": ["x.example"], "hosts": ["mirror.example.com"]}]}',
        "invalid_field",
        None,
    ),
    ("PUT", "/v1/egress", b'{"enabled": false, "enabled": true}', "invalid_field", None),
    ("POST", "/v1/grants", b'{"rules": [{"ports": [' + b"9" * 5000 + b"]}]}", "invalid_field", "rules[0][...][0]"),
    ("GET", "/v1/nothing", None, "unknown_path", None),
    ("GET", "/v1/grants/", None, "unknown_path", None),
    ("GET", "/v1/grants/a%2fb", None, "unknown_path", None),
    ("GET", "/v1//health", None, "unknown_path", None),
    ("PATCH", "/v1/egress", {"enabled": True}, "method_not_allowed", None),
    ("DELETE", "/v1/grants/x", {"x": 1}, "bad_request", None),
]


@pytest.mark.parametrize(("method", "path", "body", "code", "field"), REFUSED)
async def test_what_is_not_right_is_refused_by_name(
    tmp_path: Path, method: str, path: str, body: Any, code: str, field: str | None
) -> None:
    document = openapi_document()
    async with served(tmp_path) as api:
        status, problem, headers = await ask(api, method, path, body, {"X-Request-Id": "req-7"})
        assert (problem["code"], problem.get("field")) == (code, field), problem
        assert status == problem["status"] == next(fault.status for fault in faults_in(Fault) if fault.code == code)
        assert headers["Content-Type"] == "application/problem+json"  # type: ignore[index]
        assert problem["request_id"] == headers["X-Request-Id"] == "req-7"  # type: ignore[index]
        assert faults(problem, {"$ref": "#/components/schemas/Problem"}, document) == []
        assert (await ask(api, "GET", "/v1/grants"))[1] == {"grants": [], "next": None}
        assert (await ask(api, "GET", "/v1/egress"))[1]["enabled"] is True


BROWSERS: list[dict[str, str]] = [
    {"Host": "evil.example"},
    {"Host": "localhost.evil.example"},
    {"Host": "127.0.0.1"},
    {"Host": "localhost:8080"},
    {"Host": ""},
    {"Origin": "http://localhost"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "same-origin"},
]


@pytest.mark.parametrize("headers", BROWSERS, ids=str)
async def test_no_page_reaches_the_api(tmp_path: Path, headers: dict[str, str]) -> None:
    async with served(tmp_path) as api:
        status, problem, _ = await ask(api, "PUT", "/v1/egress", {"enabled": False}, headers)
        assert (status, problem["code"]) == (403, "cross_origin")
        assert api.operations.in_force.enabled


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_form_is_no_request(tmp_path: Path, kind: str) -> None:
    async with served(tmp_path) as api:
        status, problem, _ = await ask(api, "PUT", "/v1/egress", {"enabled": False}, {"Content-Type": kind})
        assert (status, problem["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "headers",
    [{"Content-Encoding": "gzip"}, {"Content-Encoding": "br"}, {"Content-Type": "application/json; charset=utf-16"}],
    ids=str,
)
async def test_a_body_that_says_that_it_is_coded_is_not_read_as_it_is(tmp_path: Path, headers: dict[str, str]) -> None:
    async with served(tmp_path) as api:
        status, problem, _ = await ask(api, "PUT", "/v1/egress", {"enabled": False}, headers)
        assert (status, problem["code"]) == (415, "unsupported_media_type")
        assert api.operations.in_force.enabled


async def test_a_call_of_the_name_null_is_a_call(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for call in ("null", "call-1"):
            assert (await ask(api, "POST", "/v1/grants", {**ISSUE, "call": call}))[0] == 201
        _, page, _ = await ask(api, "GET", "/v1/grants?call=null")
        assert [grant["call"] for grant in page["grants"]] == ["null"]


async def test_a_client_that_asks_before_it_sends_is_told_to(tmp_path: Path) -> None:
    body = json.dumps(ISSUE).encode()
    head = b"POST /v1/grants HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    async with served(tmp_path) as api:
        reader, writer = await asyncio.open_unix_connection(str(api.socket))
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
        async with asyncio.timeout(20):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"PUT /v1/egress HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
    ids=["no http", "no host", "two hosts", "two lengths", "long field"],
)
async def test_what_is_no_request_gets_a_problem_document(tmp_path: Path, data: bytes) -> None:
    async with served(tmp_path) as api:
        answer = await api.raw(data)
        assert re.match(rb"HTTP/1\.[01] 40[03] ", answer), answer
        assert b"application/problem+json" in answer
        assert (await ask(api, "GET", "/v1/health"))[0] == 200


async def test_a_reader_that_fails_keeps_the_policy_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP has nobody to answer to: a fault of ours there must not end the broker."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    async with served(tmp_path) as api:
        monkeypatch.setattr("broker.control.aside.parse_policy", fail)
        before = api.operations.policy
        status, problem, _ = await ask(api, "POST", "/v1/policy/reload")
        assert (status, problem["code"]) == (422, "policy_refused")
        assert api.operations.policy is api.operations.in_force is before
        (failed,) = api.records(kind="policy", event="reload_failed")
        assert "the reader failed: ZeroDivisionError" in failed["detail"]


async def test_off_stays_off_where_it_cannot_be_kept(tmp_path: Path) -> None:
    """A full disk must not bring egress back with the next reload."""
    async with served(tmp_path) as api:
        database = api.operations.store._database
        database.execute("PRAGMA query_only = ON")
        status, problem, _ = await ask(api, "PUT", "/v1/egress", {"enabled": False})
        assert (status, problem["code"]) == (503, "record_unavailable")
        assert not api.operations.in_force.enabled
        assert (await ask(api, "POST", "/v1/policy/reload"))[0] == 200
        assert not api.operations.in_force.enabled
        assert (await ask(api, "PUT", "/v1/egress", {"enabled": True}))[0] == 500
        assert (await ask(api, "POST", "/v1/policy/reload"))[0] == 200
        assert not api.operations.in_force.enabled
        database.execute("PRAGMA query_only = OFF")
        assert (await ask(api, "PUT", "/v1/egress", {"enabled": True}))[1]["enabled"] is True


async def test_off_during_a_reload_holds(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        read, reading, go_on = api.operations.read_policy, asyncio.Event(), asyncio.Event()

        async def slowly() -> str:
            reading.set()
            await go_on.wait()
            return await read()

        api.operations.read_policy = slowly
        reload = asyncio.create_task(ask(api, "POST", "/v1/policy/reload"))
        await reading.wait()
        assert (await ask(api, "PUT", "/v1/egress", {"enabled": False}))[0] == 200
        go_on.set()
        assert (await reload)[0] == 200
        assert not api.operations.in_force.enabled


async def test_request_ids_come_back_and_strange_ones_do_not(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        _, _, headers = await ask(api, "GET", "/v1/health", None, {"X-Request-Id": "abc-1"})
        assert headers["X-Request-Id"] == "abc-1"  # type: ignore[index]
        _, _, headers = await ask(api, "GET", "/v1/health", None, {"X-Request-Id": 'a"b<script>'})
        assert re.fullmatch(r"[0-9a-f]{16}", headers["X-Request-Id"])  # type: ignore[index]


async def test_every_change_is_on_record_with_who_and_the_request(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        named = {"X-Request-Id": "req-9"}
        _, grant, _ = await ask(api, "POST", "/v1/grants", ISSUE, named)
        await ask(api, "POST", "/v1/grants", {**ISSUE, "allow": ["evil.example.com:443"]}, named)
        await ask(api, "DELETE", f"/v1/grants/{grant['id']}", None, named)
        await ask(api, "DELETE", f"/v1/grants/{grant['id']}", None, named)
        await ask(api, "PUT", "/v1/egress", {"enabled": False}, named)
        await ask(api, "POST", "/v1/policy/reload", None, named)
        api.policy.write_text("broken")
        await ask(api, "POST", "/v1/policy/reload", None, named)
        records = [one for one in api.records() if one["kind"] in {"grant", "policy"}]
        records = [one for one in records if one["event"] != "worker_started"]
        events = [(one["kind"], one["event"]) for one in records]
        assert events == [
            ("grant", "issued"),
            ("grant", "refused"),
            ("grant", "revoked"),
            ("policy", "flag"),
            ("policy", "loaded"),
            ("policy", "reload_failed"),
        ]
        for one in records:
            assert one["process"] == "uid=1234 gid=1234 pid=99"
            assert "request req-9" in one["detail"]
        assert records[0]["grant"] == records[2]["grant"] == grant["id"]


async def test_the_short_form_takes_what_the_policy_says_of_a_host(tmp_path: Path) -> None:
    async with served(tmp_path) as api, Broker(api.socket) as broker:
        grant = await broker.issue(allow=["api.example.com", "mirror.example.com"], ttl=60)
        assert [(rule["hosts"], rule["ports"], rule.get("methods"), rule.get("paths")) for rule in grant.rules] == [
            (["api.example.com"], [443], ["GET", "HEAD", "POST"], ["/v1/**"]),
            (["mirror.example.com"], [80], None, None),
        ]
        allowed = await broker.explain("https://api.example.com/v1/x", grant=grant.id)
        assert (allowed.verdict, allowed.reason) == ("allow", "rule_allow")
        for url in (
            "https://api.example.com/v2",
            "https://a.pkg.example.net/v1/x",
            "https://api.example.com:8443/v1/x",
        ):
            assert (await broker.explain(url, grant=grant.id)).verdict == "deny"


async def test_the_client_raises_what_the_broker_says(tmp_path: Path) -> None:
    async with served(tmp_path, limits=GrantLimits(max_open=1)) as api, Broker(api.socket) as broker:
        with pytest.raises(client.NotCovered) as refused:
            await broker.issue(allow=["evil.example.com:443"], ttl=60)
        assert "evil.example.com" in (refused.value.problem.uncovered or [""])[0]
        with pytest.raises(client.InvalidRequest):
            await broker.issue(allow=["api.example.com:443"])
        with pytest.raises(client.NotFound):
            await broker.grant("none")
        await broker.issue(allow=["api.example.com:443"], ttl=60)
        with pytest.raises(client.Unavailable):
            await broker.issue(allow=["api.example.com:443"], ttl=60)
        api.policy.write_text("version = 2")
        with pytest.raises(client.PolicyRefused) as kept:
            await broker.reload_policy()
        assert kept.value.problem.problems
    async with Broker(tmp_path / "nobody.sock") as broker:
        with pytest.raises(client.BrokerUnreachable, match=r"nobody\.sock"):
            await broker.health()


async def test_pages_hold_each_grant_once(tmp_path: Path) -> None:
    async with served(tmp_path) as api, Broker(api.socket) as broker:
        made = [(await broker.issue(allow=["api.example.com:443"], ttl=60, call=f"c-{n % 2}")).id for n in range(7)]
        await broker.revoke(made[3])
        listed, after = [], ""
        while after is not None:
            _, page, _ = await ask(api, "GET", f"/v1/grants?limit=2{after and f'&after={after}'}")
            assert len(page["grants"]) <= 2
            listed += [one["id"] for one in page["grants"]]
            after = page["next"]
        assert listed == made
        assert [one.id async for one in broker.grants(call="c-1")] == made[1::2]
        assert [one.id async for one in broker.grants(state=schema.GrantState.REVOKED)] == [made[3]]
        assert len(set(made)) == 7
        assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made)


async def test_nothing_is_granted_that_cannot_be_put_on_record(tmp_path: Path) -> None:
    async with served(tmp_path) as api, Broker(api.socket) as broker:
        api.operations.log.close()
        with pytest.raises(client.Unavailable):
            await broker.issue(allow=["api.example.com:443"], ttl=60)
        assert [one async for one in broker.grants()] == []
        assert (await broker.switch_egress(enabled=False)).enabled is False
        with pytest.raises(client.Unavailable):
            await broker.switch_egress(enabled=True)
