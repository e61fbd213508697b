"""git over HTTPS by git's own backend: `python -m tests.origins.git_origin --directory DIR --projects DIR`.

Makes `project.git` with one commit on `main` when it is not there, and serves every repository below the projects
directory through the CGI program `git http-backend`. Pushes are taken without asking for a name.
"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from aiohttp import web

from tests.origins.serving import announce, argument_parser, server_context, until_starter_ends

PIECE = 64 * 1024
PROJECTS: web.AppKey[Path] = web.AppKey("projects", Path)

IDENTITY = {
    "GIT_AUTHOR_NAME": "Origin",
    "GIT_AUTHOR_EMAIL": "origin@origin.example",
    "GIT_COMMITTER_NAME": "Origin",
    "GIT_COMMITTER_EMAIL": "origin@origin.example",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), **IDENTITY}


def _git(*arguments: str, where: Path, given: bytes = b"") -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=where, env=_environment(), input=given, check=True, stdout=subprocess.PIPE
    )
    return done.stdout.decode().strip()


def make_project(projects: Path) -> None:
    """Make `project.git`: bare, one commit with README and a 1 MiB file, so that a clone moves more than a packet."""
    project = projects / "project.git"
    if project.exists():
        return
    _git("init", "-q", "--bare", "--initial-branch=main", str(project), where=projects)
    _git("config", "http.receivepack", "true", where=project)
    readme = _git("hash-object", "-w", "--stdin", where=project, given=b"served by git http-backend\n")
    data = _git("hash-object", "-w", "--stdin", where=project, given=os.urandom(1 << 20))
    listing = f"100644 blob {readme}\tREADME\n100644 blob {data}\tdata\n".encode()
    tree = _git("mktree", where=project, given=listing)
    commit = _git("commit-tree", tree, "-m", "first", where=project)
    _git("update-ref", "refs/heads/main", commit, where=project)


def _cgi_environment(request: web.Request) -> dict[str, str]:
    """RFC 3875 meta-variables, as far as the backend reads them."""
    path, _, query = request.raw_path.partition("?")
    variables = {
        **_environment(),
        "GIT_PROJECT_ROOT": str(request.app[PROJECTS]),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REQUEST_METHOD": request.method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REMOTE_ADDR": request.remote or "",
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
    }
    for header, variable in (
        ("Content-Encoding", "HTTP_CONTENT_ENCODING"),
        ("Git-Protocol", "GIT_PROTOCOL"),
        ("Content-Length", "CONTENT_LENGTH"),
    ):
        if header in request.headers:
            variables[variable] = request.headers[header]
    return variables


async def _feed(request: web.Request, into: asyncio.StreamWriter) -> None:
    try:
        async for piece in request.content.iter_chunked(PIECE):
            into.write(piece)
            await into.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the backend answered without reading everything
    finally:
        into.close()


async def _read_head(output: asyncio.StreamReader) -> tuple[int, list[tuple[str, str]]]:
    """The CGI head: header lines, of which `Status` is the status line's, up to an empty line."""
    status, headers = 200, []
    while line := (await output.readline()).decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        else:
            headers.append((name, value.strip()))
    return status, headers


async def backend(request: web.Request) -> web.StreamResponse:
    process = await asyncio.create_subprocess_exec(
        "git",
        "http-backend",
        env=_cgi_environment(request),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    feeding = asyncio.create_task(_feed(request, process.stdin))
    status, headers = await _read_head(process.stdout)
    response = web.StreamResponse(status=status)
    for name, value in headers:
        response.headers.add(name, value)
    await response.prepare(request)
    while piece := await process.stdout.read(PIECE):
        await response.write(piece)
    await feeding
    if await process.wait() != 0:
        print(f"git http-backend ended with {process.returncode}", file=sys.stderr)
    return response


async def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--projects", type=Path, required=True)
    arguments = parser.parse_args()
    make_project(arguments.projects)
    app = web.Application(client_max_size=1 << 30)
    app[PROJECTS] = arguments.projects
    app.router.add_route("*", "/{path:.*}", backend)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    https = socket.create_server((arguments.bind, 0))
    await web.SockSite(runner, https, ssl_context=server_context(arguments.directory)).start()
    announce(https=https.getsockname()[1])
    await until_starter_ends()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
