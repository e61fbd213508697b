"""A log as a hostile payload leaves it, and a page on it that answers on a port of its own."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from broker.audit.directory import open_directory
from broker.audit.index import INDEX_NAME
from broker.audit.log import AuditLog
from broker.audit.records import Event, Kind, Plane, Record, Verdict
from broker.policy.reasons import Reason
from broker.review.page.access import Access, Keys, cookie_name, names_of
from broker.review.page.reader import Reader
from broker.review.page.server import ReviewServer

TOKEN = "t" * 43
SCRIPT = "<script>document.title='owned'</script>"
HOSTILE = (
    f"/{SCRIPT}",
    "/\"><img src=x onerror=alert(1)><a title='",
    "/' onmouseover='alert(1)' x='",
    "/\u202egnp.exe\u2066\u200f",
    "/\x1b[31mred\x07\x00",
    "/" + "A" * 5000,
    "/{{ 7 * 7 }}{% raw %}",
    "/--><!--",
    "/]]></textarea></title></style>",
    "/&lt;b&gt;&amp;",
    "javascript:alert(1)",
)


def hostile_log(directory: Path) -> tuple[str, ...]:
    """Write a log of one session; the ids of its records."""
    with AuditLog.open(directory) as log:
        ids = [log.append(Record(kind=Kind.SESSION, event=Event.START, session="s-1", call=SCRIPT))]
        for path in HOSTILE:
            for allow in (False, True):
                ids.append(log.append(asked(path, allow=allow)))
        ids.append(
            log.append(
                Record(
                    kind=Kind.CLOSE,
                    ref=ids[-1],
                    session="s-1",
                    call=SCRIPT,
                    authority=f"{SCRIPT}:443",
                    reason=Reason.FINISHED,
                    bytes_up=1234,
                    bytes_down=5678901,
                    duration_ms=1500.0,
                    status=200,
                )
            )
        )
    return tuple(ids)


def asked(path: str, *, allow: bool, session: str = "s-1", host: str = SCRIPT) -> Record:
    return Record(
        kind=Kind.DECISION,
        session=session,
        call=SCRIPT,
        grant="'\"><b>",
        plane=Plane.INSPECT,
        wanted="198.18.0.1:443",
        method="<B>",
        scheme="https",
        authority=f"{host}:443",
        path=path,
        verdict=Verdict.ALLOW if allow else Verdict.DENY,
        reason=Reason.RULE_ALLOW if allow else Reason.HOST_NOT_ALLOWED,
        rule="<i>rule" if allow else "",
        detail="" if allow else "</td><u>",
        process="<x>",
    )


@dataclass(frozen=True)
class Served:
    """A page that answers at `base`, and a client without a cookie jar."""

    base: str
    port: int
    client: aiohttp.ClientSession
    server: ReviewServer

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"{cookie_name(self.port)}={Keys.derive(TOKEN).cookie}"}

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """The status and the text of a page, for a browser that was let in."""
        async with self.client.get(self.base + path, headers={**self.cookie, **headers}) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Served]:
    descriptor = open_directory(directory, reading=True)
    reader = Reader(descriptor, directory / INDEX_NAME)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    access = Access(keys=Keys.derive(TOKEN), names=names_of("127.0.0.1", port), cookie=cookie_name(port))
    server = ReviewServer(reader, descriptor, access)
    listening = await asyncio.get_running_loop().create_server(server.connection(), sock=listener)
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
            yield Served(f"http://127.0.0.1:{port}", port, client, server)
    finally:
        listening.close()
        await server.close()
        os.close(descriptor)
