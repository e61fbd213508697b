"""Starts the review page: as the log's owner, with nothing but the log's directory and a listener."""

import asyncio
import contextlib
import gc
import os
import re
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from broker.audit.directory import open_directory
from broker.audit.errors import AuditError
from broker.audit.index import INDEX_NAME
from broker.audit.location import audit_directory, default_state_dir
from broker.audit.ownership import become
from broker.review.page.access import Access, Keys, cookie_name, names_of
from broker.review.page.reader import Reader
from broker.review.page.rendering import STATIC, environment, static
from broker.review.page.server import ReviewServer
from broker.review.page.token import keep_token, make_token, read_token
from broker.review.page.weighing import prepare
from wicketgate.speech import say, write_all

_LISTEN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+|localhost)):(\d{1,5})", re.ASCII)
_BACKLOG: Final = 64
_LOOPBACK: Final = re.compile(r"127\.[0-9.]+|::1", re.ASCII)


def serve_review(
    listen: str, state_dir: Path | None, hosts: tuple[str, ...], token_file: Path | None, index_dir: Path | None
) -> None:
    """Serve until SIGTERM or SIGINT; the index lies in `index_dir`, or beside the log. Raises `AuditError`."""
    path = audit_directory(state_dir or default_state_dir(os.environ, os.geteuid()))
    directory = open_directory(path, reading=True)
    listener, address, port = _listener(listen)
    owner = os.fstat(directory)
    environment()  # the templates, files and what is loaded late, before a change of user that may make them unreadable
    for name in STATIC:
        static(name)
    prepare()
    token = read_token(token_file, frozenset({os.geteuid(), owner.st_uid})) if token_file else None
    become(owner)
    if token is None:
        token = keep_token(token_file) if token_file else make_token()
    if index_dir is not None:
        os.close(open_directory(index_dir))  # as private as the log: who could write it could make up what is shown
    reader = Reader(directory, (index_dir or path) / INDEX_NAME)
    reader.prepare().result()
    access = Access(keys=Keys.derive(token), names=names_of(address, port, hosts), cookie=cookie_name(port))
    if not _LOOPBACK.fullmatch(address):
        say(f"{address} is no loopback address, and there is no TLS here: put a reverse proxy in front")
    gc.freeze()
    make = partial(ReviewServer, reader, directory, access)
    asyncio.run(_serve(make, listener, _address(address, port, None if token_file else token)))


async def _serve(make: Callable[[], ReviewServer], listener: socket.socket, told: str) -> None:
    loop = asyncio.get_running_loop()
    server = make()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    listening = await loop.create_server(server.connection(), sock=listener, backlog=_BACKLOG)
    await server.prepare()
    write_all(1, f"{told}\n".encode())
    await end.wait()
    listening.close()
    await server.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await listening.wait_closed()


def _listener(listen: str) -> tuple[socket.socket, str, int]:
    """A listening socket, and the address and port that it has. Raises `AuditError`."""
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[3]) > 65535:
        raise AuditError(f"--listen {listen!r}: expected an address and a port, as 127.0.0.1:8321 or [::1]:8321")
    address = found[1] or found[2].replace("localhost", "127.0.0.1")
    try:
        made = socket.create_server(
            (address, int(found[3])), family=socket.AF_INET6 if found[1] else socket.AF_INET, backlog=_BACKLOG
        )
    except OSError as error:
        raise AuditError(f"cannot listen on {listen}: {error.strerror}; name another one with --listen") from error
    return made, address, made.getsockname()[1]


def _address(address: str, port: int, token: str | None) -> str:
    """What to open; where the token is kept in a file, the line names none."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)  # noqa: S104
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "?token=TOKEN, with what the token file holds")
