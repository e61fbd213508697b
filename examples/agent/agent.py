"""How an agent server joins: it takes a tool call over HTTP, gets a grant for it, has it run, and says what came of it.

    POST /calls   {"tool": "shell" | "fetch", "script": "…"}      what a model may write: a tool's name and a script
    GET /health                                                 whether broker and runner serve

What a tool may reach stands in `tools` and nowhere in a request: the two halves of a call never mix. A real server adds
users, workspaces and its model; the way of a call stays the same. It knows no users, so it serves programs on the same
machine and nobody else: a page that is open in a browser there is refused.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from broker.control.client import BrokerError
from broker.control.schema import Budgets
from wicketgate import Authority, Broker, Call, Runner, RunnerError

MAX_REQUEST = 256 * 1024
GRANT_SECONDS, CALL_SECONDS = 120.0, 60.0
# A name that somebody else's server answered with 127.0.0.1 is none of these.
HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What a model may write."""

    tool: str
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What the server lets a tool do. `allow`: HOST:PORTs; empty for a sandbox without a network."""

    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The table of tools by name: the server's own, never a model's."""

    by_name: Mapping[str, Tool]


def tools(environ: Mapping[str, str]) -> Tools:
    """`shell` has no network, `fetch` reaches what AGENT_ALLOW names."""
    allow = tuple(environ.get("AGENT_ALLOW", "").split())
    return Tools(by_name={"shell": Tool(), "fetch": Tool(allow=allow)})


TOOLS = web.AppKey("tools", Tools)


async def run_call(tool: Tool, script: str) -> dict[str, Any]:
    """One tool call: a grant for it alone, the sandbox, and no grant any more."""
    call = f"call-{secrets.token_hex(8)}"
    async with Broker() as broker, Runner() as runner:
        if not tool.allow:
            done = await runner.run(Call(bash=script, timeout=CALL_SECONDS), Authority(call=call))
            return _answer(call, None, done)
        grant = await broker.issue(allow=tool.allow, call=call, ttl=GRANT_SECONDS, budgets=Budgets(uses=1))
        try:
            rights = Authority(network="brokered", grant=grant.id, call=call)
            done = await runner.run(Call(bash=script, timeout=CALL_SECONDS), rights)
        finally:
            used = (await broker.revoke(grant.id)).usage
        return _answer(call, grant.id, done) | {"requests": used.requests, "connections": used.connections}


def _answer(call: str, grant: str | None, done: Any) -> dict[str, Any]:
    return {
        "exit_code": done.code,
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
        "timed_out": done.timed_out,
        # What the reviewer asks for: `wicketgate audit search` finds the records of a call by any of these.
        "audit": {"call": call, "session": done.session, "grant": grant},
    }


@web.middleware
async def refuse_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Let programs in and no page: neither one that posts across origins nor one whose name was bound to loopback."""
    host = request.headers.get("Host", "")
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    known = (name if colon and port.isdecimal() else host).lower() in HOSTS
    from_page = "Origin" in request.headers or any(one.lower().startswith("sec-fetch-") for one in request.headers)
    if not known or from_page:
        return _refuse(403, "This server is for programs on this machine: send Host: localhost.")
    return await handler(request)


async def handle_call(request: web.Request) -> web.Response:
    """POST /calls."""
    if request.content_type != "application/json":
        return _refuse(415, "Send Content-Type: application/json.")
    try:
        asked = msgspec.json.decode(await request.read(), type=Asked)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _refuse(400, 'A call is {"tool": NAME, "script": TEXT} and nothing else.')
    known = request.app[TOOLS].by_name
    tool = known.get(asked.tool)
    if tool is None:
        return _refuse(404, f"There is no such tool; there are {', '.join(known)}.")
    try:
        return web.json_response(await run_call(tool, asked.script))
    except RunnerError as error:
        return _refuse(error.status if error.status in {400, 422, 429} else 502, str(error))
    except BrokerError as error:
        return _refuse(502, str(error))


async def handle_health(_request: web.Request) -> web.Response:
    """GET /health."""
    try:
        async with Broker() as broker, Runner() as runner:
            egress, health = await broker.egress(), await runner.health()
    except (BrokerError, RunnerError) as error:
        return _refuse(503, str(error))
    return web.json_response({"broker": str(egress), "runner": health.version})


def _refuse(status: int, detail: str) -> web.Response:
    return web.json_response({"error": detail}, status=status)


def make_app(environ: Mapping[str, str]) -> web.Application:
    """The application."""
    app = web.Application(client_max_size=MAX_REQUEST, middlewares=[refuse_pages])
    app[TOOLS] = tools(environ)
    app.add_routes([web.post("/calls", handle_call), web.get("/health", handle_health)])
    return app


if __name__ == "__main__":
    # All of the container's interfaces; the container's port is published on the host's loopback only (compose.yaml).
    web.run_app(make_app(os.environ), host="0.0.0.0", port=8080, print=None)  # noqa: S104
