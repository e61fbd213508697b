"""The HTTP side of an API: connections that were let in, requests checked and decoded, answers and events encoded.

It decides nothing. A browser is no client: `Host` must be `localhost`, and a request that says which page it comes from
is refused, so that no page can reach a daemon through a forwarded port.
"""

import asyncio
import re
import secrets
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from broker.api.callers import Caller
from broker.api.decoding import decode_body, decode_query, read_body, refuse_browsers
from broker.api.faults import AnyFault, ApiError
from broker.api.routes import Kind, Route

KEEP_ALIVE: Final = 75.0
PATIENCE: Final = 10.0  # seconds for the first head of a connection, and for each body
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = {"Server": "wicketgate", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a server takes at most. `lasting`: operations go on although their client has gone."""

    body: int
    connections: int
    lasting: bool = True


class Connection(RequestHandler):
    """One connection, with the credentials of its peer."""

    __slots__ = ("heard", "on_end", "peer")

    def __init__(
        self, server: web.Server, loop: asyncio.AbstractEventLoop, peer: Caller, on_end: Callable[[], None]
    ) -> None:
        # Nothing is unpacked: a small body must not become a large one.
        super().__init__(server, loop=loop, keepalive_timeout=KEEP_ALIVE, auto_decompress=False)
        self.peer = peer
        self.heard = False
        self.on_end = on_end

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has ended."""
        super().connection_lost(exc)
        self.on_end()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be read as HTTP gets a problem document too."""
        fault = AnyFault.BAD_REQUEST if status < 500 else AnyFault.INTERNAL
        answer = _problem(ApiError(fault, " ".join((message or fault.title).split())[:300]), secrets.token_hex(8))
        answer.force_close()
        return answer


class Events:
    """A stream of JSON lines; the response begins with the first event, so that a refusal before it is a document."""

    def __init__(self, request: web.BaseRequest, request_id: str) -> None:
        self._request = request
        self._headers = {**_HEADERS, "X-Request-Id": request_id, "Content-Type": "application/x-ndjson"}
        self.response: web.StreamResponse | None = None

    async def send(self, event: msgspec.Struct) -> None:
        """Send one event, as fast as the client takes it. Raises ConnectionError where it has gone."""
        response = self.response or await self._begin()
        await response.write(encode(event) + b"\n")

    async def end(self) -> web.StreamResponse:
        """No further event."""
        response = self.response or await self._begin()
        await response.write_eof()
        return response

    async def _begin(self) -> web.StreamResponse:
        self.response = web.StreamResponse(headers=self._headers)
        await self.response.prepare(self._request)
        return self.response


class ApiServer:
    """Serves connections that `serve` is given.

    `operations` has a method for each route: it takes the caller, what the route's kind needs (an `Events`, or the
    request of a WebSocket), the body, the query and the arguments of the path. `refusal` says what an error of its own
    means; None: it is our fault.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        operations: object,
        loop: asyncio.AbstractEventLoop,
        *,
        bounds: Bounds,
        refusal: Callable[[Exception], ApiError | None],
    ) -> None:
        self._operations = operations
        self._loop = loop
        self._bounds = bounds
        self._refusal = refusal
        self._server = web.Server(self._handle, handler_cancellation=not bounds.lasting)
        self._open = 0
        self._routes = [(route.pattern, route) for route in routes]
        self._bodies = {route.name: msgspec.json.Decoder(route.body) for route in routes if route.body is not None}

    async def serve(self, sock: socket.socket, peer: Caller) -> bool:
        """Take a connection. False: there are too many, so it was closed."""
        if self._open >= self._bounds.connections:
            sock.close()
            return False
        connection = Connection(self._server, self._loop, peer, self._forget)
        sock.setblocking(False)
        self._open += 1
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: connection, sock)
        except BaseException:
            self._forget()
            raise
        self._loop.call_later(PATIENCE, _close_silent, transport, connection)
        return True

    def _forget(self) -> None:
        self._open -= 1

    async def close(self) -> None:
        """Let requests under way end, briefly."""
        await self._server.shutdown(timeout=1.0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.heard = True
        request_id = request.headers.get("X-Request-Id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8)
        events = Events(request, request_id)
        try:
            return await self._answer(request, replace(connection.peer, request_id=request_id), events)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  the one guard: our own fault is an answer and a line, and ends nothing
            refused = self._refused(error)
        if events.response is not None:
            connection.force_close()  # it has begun: without its last event the client knows that it is not whole
            return events.response
        return _problem(refused, request_id)

    def _refused(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if known := self._refusal(error):
            return known
        traceback.print_exception(error)
        return ApiError(AnyFault.INTERNAL, type(error).__name__)

    async def _answer(self, request: web.BaseRequest, caller: Caller, events: Events) -> web.StreamResponse:
        refuse_browsers(request)
        route, values = self._route(request)
        sent = await self._sent(route, request)
        operation = getattr(self._operations, route.name)
        if route.kind is Kind.EVENTS:
            await operation(caller, events, *sent, **values)
            return await events.end()
        if route.kind is Kind.SOCKET:
            found: web.StreamResponse = await operation(caller, request, *sent, **values)
            return found
        answer = await operation(caller, *sent, **values)
        headers = {**_HEADERS, "X-Request-Id": caller.request_id}
        return web.Response(body=encode(answer), status=route.status, content_type="application/json", headers=headers)

    def _route(self, request: web.BaseRequest) -> tuple[Route, dict[str, str]]:
        path = request.raw_path.partition("?")[0]
        found = [(route, match) for pattern, route in self._routes if (match := pattern.fullmatch(path))]
        for route, match in found:
            if route.method == request.method:
                return route, match.groupdict()
        if found:
            methods = ", ".join(route.method for route, _ in found)
            raise ApiError(AnyFault.METHOD_NOT_ALLOWED, f"This path has {methods}.")
        raise ApiError(AnyFault.UNKNOWN_PATH, "GET /v1/openapi.json lists what there is.")

    async def _sent(self, route: Route, request: web.BaseRequest) -> list[Any]:
        try:
            async with asyncio.timeout(PATIENCE):
                body = await read_body(request, self._bounds.body)
        except TimeoutError:
            raise ApiError(AnyFault.BAD_REQUEST, f"The body did not come within {PATIENCE:g} seconds.") from None
        sent: list[Any] = []
        if route.body is not None:
            sent.append(decode_body(self._bodies[route.name], request.content_type, body))
        elif body:
            raise ApiError(AnyFault.BAD_REQUEST, "This operation takes no body.")
        if route.query is not None:
            sent.append(decode_query(route.query, request))
        elif request.rel_url.query_string:
            raise ApiError(AnyFault.BAD_REQUEST, "This operation takes no query.")
        return sent


def _problem(error: ApiError, request_id: str) -> web.Response:
    return web.Response(
        body=encode(error.document(request_id)),
        status=error.fault.status,
        content_type="application/problem+json",
        headers={**_HEADERS, "X-Request-Id": request_id},
    )


def _close_silent(transport: asyncio.BaseTransport, connection: Connection) -> None:
    """Close a connection on which no request has come in by now."""
    if not connection.heard and not transport.is_closing():
        transport.close()
