"""An HTTPS and plain HTTP/1.1 origin for live tests: `python -m tests.origins.https_origin --directory DIR`.

| path | answer |
|---|---|
| `/` | `hello from the origin` |
| `/bytes/N` | N bytes of `pattern`, with Content-Length |
| `/chunked/N` | the same bytes, chunked |
| `/echo` | JSON: method, target, header list in order, body (base64), peer |
| `/upload` | JSON: length and SHA-256 of the body, read as it comes |
| `/sse/N` | N server-sent events; each is sent once the starter of the last has been flushed |
| `/slow/MS` | the head at once, the body after MS milliseconds |
| `/late/MS` | nothing before MS milliseconds |
| `/cut/N` | promises N bytes, sends half of them, closes |
| `/close/N` | N bytes that end with the connection, no length (HTTP/1.0 style) |
| `/early` | answers without reading the body |
| `/status/CODE` | that status, with no body where it has none |
| `/redirect?to=URL` | 302 to URL |
| `/seen` | JSON: every other request so far (method, Host, target, scheme) |
"""

import asyncio
import base64
import hashlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from aiohttp import web

from tests.origins.serving import BACKLOG, announce, argument_parser, server_context, until_starter_ends

PIECE = 64 * 1024
PATTERN = bytes(range(256)) * (PIECE // 256)
BODYLESS = {204, 304}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    method: str
    host: str
    target: str
    scheme: str


SEEN: web.AppKey[list[Seen]] = web.AppKey("seen", list)


def pattern(length: int) -> bytes:
    """The bytes that `/bytes/N` answers: 0 to 255, over and over."""
    return (PATTERN * (length // PIECE + 1))[:length]


async def _send_pattern(response: web.StreamResponse, length: int) -> None:
    while length > 0:
        await response.write(PATTERN[: min(length, PIECE)])
        length -= PIECE


async def hello(_: web.Request) -> web.StreamResponse:
    return web.Response(text="hello from the origin\n")


async def sized(request: web.Request) -> web.StreamResponse:
    length = int(request.match_info["n"])
    response = web.StreamResponse(headers={"Content-Length": str(length), "Content-Type": "application/octet-stream"})
    await response.prepare(request)
    if request.method != "HEAD":
        await _send_pattern(response, length)
    return response


async def chunked(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await _send_pattern(response, int(request.match_info["n"]))
    return response


async def echo(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    return web.json_response(
        {
            "method": request.method,
            "target": request.raw_path,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers],
            "body": base64.b64encode(body).decode(),
            "peer": request.remote,
            "scheme": request.scheme,
        },
    )


async def upload(request: web.Request) -> web.StreamResponse:
    digest, length = hashlib.sha256(), 0
    async for piece in request.content.iter_chunked(PIECE):
        digest.update(piece)
        length += len(piece)
    return web.json_response({"length": length, "sha256": digest.hexdigest()})


async def events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for number in range(int(request.match_info["n"])):
        await response.write(f"id: {number}\ndata: event {number}\n\n".encode())
    return response


async def slow(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "5"})
    await response.prepare(request)
    await asyncio.sleep(int(request.match_info["ms"]) / 1000)
    await response.write(b"slow\n")
    return response


async def late(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(int(request.match_info["ms"]) / 1000)
    return web.Response(text="late\n")


async def cut(request: web.Request) -> web.StreamResponse:
    length = int(request.match_info["n"])
    response = web.StreamResponse(headers={"Content-Length": str(length)})
    await response.prepare(request)
    await _send_pattern(response, length // 2)
    if request.transport is not None:
        request.transport.close()
    return response


async def until_close(request: web.Request) -> web.StreamResponse:
    length = int(request.match_info["n"])
    body = pattern(length)
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        request.transport.close()
    raise asyncio.CancelledError


async def early(_: web.Request) -> web.StreamResponse:
    return web.Response(status=413, text="answered before the body\n", headers={"Connection": "close"})


async def status(request: web.Request) -> web.StreamResponse:
    code = int(request.match_info["code"])
    return web.Response(status=code) if code in BODYLESS else web.Response(status=code, text=f"{code}\n")


async def redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": request.query["to"]})


async def seen(request: web.Request) -> web.StreamResponse:
    return web.json_response([asdict(one) for one in request.app[SEEN]])


@web.middleware
async def remember(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    if request.path != "/seen":
        request.app[SEEN].append(
            Seen(method=request.method, host=request.host, target=request.raw_path, scheme=request.scheme),
        )
    return await handler(request)


def application() -> web.Application:
    app = web.Application(middlewares=[remember], client_max_size=1 << 30)
    app[SEEN] = []
    app.router.add_get("/seen", seen)
    for path, handler in {
        "/": hello,
        "/bytes/{n:[0-9]+}": sized,
        "/chunked/{n:[0-9]+}": chunked,
        "/echo": echo,
        "/echo/{rest:.*}": echo,
        "/upload": upload,
        "/sse/{n:[0-9]+}": events,
        "/slow/{ms:[0-9]+}": slow,
        "/late/{ms:[0-9]+}": late,
        "/cut/{n:[0-9]+}": cut,
        "/close/{n:[0-9]+}": until_close,
        "/early": early,
        "/status/{code:[0-9]{3}}": status,
        "/redirect": redirect,
    }.items():
        app.router.add_route("*", path, handler)
    return app


async def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    runner = web.AppRunner(application(), access_log=None)
    await runner.setup()
    https = socket.create_server((arguments.bind, 0), backlog=BACKLOG)
    http = socket.create_server((arguments.bind, 0), backlog=BACKLOG)
    await web.SockSite(runner, https, ssl_context=server_context(arguments.directory), backlog=BACKLOG).start()
    await web.SockSite(runner, http, backlog=BACKLOG).start()
    announce(https=https.getsockname()[1], http=http.getsockname()[1])
    await until_starter_ends()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
