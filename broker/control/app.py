"""The control API's HTTP side: connections that were let in, requests checked and decoded, answers encoded.

It decides nothing about grants or policy. A browser is no client: `Host` must be `localhost`, and a request that says
which page it comes from is refused, so that no page can reach a broker through a forwarded port.
"""

import asyncio
import json
import re
import secrets
import socket
import traceback
from dataclasses import replace
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from broker.control.callers import Caller
from broker.control.faults import ApiError, Fault
from broker.control.operations import Operations, encode
from broker.control.routes import ROUTES, Route
from broker.control.store import StoreError
from broker.policy.problems import quote

MAX_BODY: Final = 1024 * 1024
MAX_CONNECTIONS: Final = 256
KEEP_ALIVE: Final = 75.0
PATIENCE: Final = 10.0  # seconds for the first head of a connection, and for each body
HOSTS: Final = frozenset({"localhost", "wicketgate"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PLACE: Final = re.compile(r" - at `\$?\.?([^`]*)`$")
_NAMED: Final = re.compile(r"(?:unknown|required) field `([^`]*)`")
_HEADERS: Final = {"Server": "wicketgate", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class ControlConnection(RequestHandler):
    """One connection, with the credentials of its peer."""

    __slots__ = ("heard", "peer")

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, peer: Caller) -> None:
        # Nothing is unpacked: a small body must not become a large one.
        super().__init__(server, loop=loop, keepalive_timeout=KEEP_ALIVE, auto_decompress=False)
        self.peer = peer
        self.heard = False

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be read as HTTP gets a problem document too."""
        fault = Fault.BAD_REQUEST if status < 500 else Fault.INTERNAL
        answer = _problem(ApiError(fault, " ".join((message or fault.title).split())[:300]), secrets.token_hex(8))
        answer.force_close()
        return answer


class ControlServer:
    """Serves connections that `serve` is given."""

    def __init__(self, operations: Operations, loop: asyncio.AbstractEventLoop) -> None:
        self._operations = operations
        self._loop = loop
        self._server = web.Server(self._handle)
        self._routes = [(re.compile(_pattern(route)), route) for route in ROUTES]
        self._bodies = {route.name: msgspec.json.Decoder(route.body) for route in ROUTES if route.body is not None}

    async def serve(self, sock: socket.socket, peer: Caller) -> None:
        """Take a connection. It is closed where there are too many."""
        if len(self._server.connections) >= MAX_CONNECTIONS:
            sock.close()
            return
        connection = ControlConnection(self._server, self._loop, peer)
        transport, _ = await self._loop.connect_accepted_socket(lambda: connection, sock)
        self._loop.call_later(PATIENCE, _close_silent, transport, connection)

    async def close(self) -> None:
        """Let requests under way end, briefly."""
        await self._server.shutdown(timeout=1.0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ControlConnection)
        connection.heard = True
        request_id = request.headers.get("X-Request-Id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8)
        try:
            route, answer = await self._answer(request, replace(connection.peer, request_id=request_id))
        except ApiError as error:
            return _problem(error, request_id)
        except web.HTTPRequestEntityTooLarge:
            return _problem(ApiError(Fault.TOO_LARGE, f"A body may have {MAX_BODY} bytes."), request_id)
        except StoreError as error:
            return _problem(ApiError(Fault.INTERNAL, str(error)), request_id)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  the one guard: our own fault is an answer and a line, and ends nothing
            traceback.print_exception(error)
            return _problem(ApiError(Fault.INTERNAL, type(error).__name__), request_id)
        headers = {**_HEADERS, "X-Request-Id": request_id}
        return web.Response(body=encode(answer), status=route.status, content_type="application/json", headers=headers)

    async def _answer(self, request: web.BaseRequest, caller: Caller) -> tuple[Route, Any]:
        _refuse_browsers(request)
        route, values = self._route(request)
        try:
            async with asyncio.timeout(PATIENCE):
                body = await request.read()
        except TimeoutError:
            raise ApiError(Fault.BAD_REQUEST, f"The body did not come within {PATIENCE:g} seconds.") from None
        arguments: list[Any] = []
        if route.body is not None:
            arguments.append(self._decode(route, request, body))
        elif body:
            raise ApiError(Fault.BAD_REQUEST, "This operation takes no body.")
        if route.query is not None:
            arguments.append(_decode_query(route, request))
        elif request.rel_url.query_string:
            raise ApiError(Fault.BAD_REQUEST, "This operation takes no query.")
        operation = getattr(self._operations, route.name)
        return route, await operation(caller, *arguments, **values)

    def _route(self, request: web.BaseRequest) -> tuple[Route, dict[str, str]]:
        # The raw path: an id needs no escape, and two spellings of one path would be one too many.
        path = request.raw_path.partition("?")[0]
        found = [(route, match) for pattern, route in self._routes if (match := pattern.fullmatch(path))]
        for route, match in found:
            if route.method == request.method:
                return route, match.groupdict()
        if found:
            methods = ", ".join(route.method for route, _ in found)
            raise ApiError(Fault.METHOD_NOT_ALLOWED, f"This path has {methods}.")
        raise ApiError(Fault.UNKNOWN_PATH, "GET /v1/openapi.json lists what there is.")

    def _decode(self, route: Route, request: web.BaseRequest, body: bytes) -> Any:
        if request.content_type != "application/json":
            raise ApiError(Fault.MEDIA_TYPE, "Send Content-Type: application/json.")
        try:
            decoded = self._bodies[route.name].decode(body)
            json.loads(body, object_pairs_hook=_refuse_twice)
            return decoded
        except msgspec.ValidationError as error:
            raise _invalid(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(Fault.BAD_REQUEST, f"The body is not JSON: {error}.") from None


def _pattern(route: Route) -> str:
    return "".join(
        f"(?P<{part[1:-1]}>[A-Za-z0-9._:-]{{1,128}})" if part.startswith("{") else re.escape(part)
        for part in re.split(r"(\{\w+\})", route.path)
    )


def _refuse_browsers(request: web.BaseRequest) -> None:
    host = request.headers.get("Host", "")
    if len(request.headers.getall("Host", ())) != 1 or host.lower() not in HOSTS:
        raise ApiError(Fault.CROSS_ORIGIN, "Send Host: localhost.")
    if "Origin" in request.headers or any(name.lower().startswith("sec-fetch-") for name in request.headers):
        raise ApiError(Fault.CROSS_ORIGIN, "A request from a page is refused.")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    """RFC 8259 §4 leaves open which of two members counts: whoever checked the request may have read the other."""
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise ApiError(Fault.INVALID_FIELD, f"The member {quote(twice)} is given twice.")


def _decode_query(route: Route, request: web.BaseRequest) -> Any:
    query = request.rel_url.query
    values = dict(query)
    if len(values) != len(query):
        twice = next(name for name in values if len(query.getall(name)) > 1)
        raise ApiError(Fault.INVALID_FIELD, f"{twice} is given twice.", field=twice)
    try:
        return msgspec.convert(values, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: msgspec.ValidationError) -> ApiError:
    """Name the field: msgspec says where it was, and for an unknown or missing one which."""
    text = str(error)
    place = _PLACE.search(text)
    named = _NAMED.search(text)
    parts = [place[1] if place else "", named[1] if named else ""]
    field = ".".join(part for part in parts if part) or None
    fault = Fault.UNKNOWN_FIELD if "unknown field" in text else Fault.INVALID_FIELD
    return ApiError(fault, f"{_PLACE.sub('', text)}.", field=field)


def _problem(error: ApiError, request_id: str) -> web.Response:
    return web.Response(
        body=encode(error.document(request_id)),
        status=error.fault.status,
        content_type="application/problem+json",
        headers={**_HEADERS, "X-Request-Id": request_id},
    )


def _close_silent(transport: asyncio.BaseTransport, connection: ControlConnection) -> None:
    """Close a connection on which no request has come in by now."""
    if not connection.heard and not transport.is_closing():
        transport.close()
