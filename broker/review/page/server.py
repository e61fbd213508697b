"""Requests in, pages out. Whether a request is answered at all is `access`'s to say; what a page shows is `pages`'s."""

import asyncio
import re
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from broker.audit.errors import UnknownRecord
from broker.audit.index import AuditIndex
from broker.audit.questions import BadQuestion
from broker.audit.totals import Totals
from broker.review.page import answers, pages, weighing
from broker.review.page.access import Access, Asked, Barred, Let, judge, same
from broker.review.page.asking import filters_in, read_filter
from broker.review.page.connections import Connection, Room, factory
from broker.review.page.forms import read_form
from broker.review.page.live import STREAM, Streams
from broker.review.page.reader import THREADS, Reader, Unanswered
from broker.review.page.rendering import STATIC, static
from broker.review.page.signatures import standing

_ANSWER_SECONDS: Final = 30.0  # for a whole request; what the reader bounds ends before
_ALIKE: Final = 100  # newer records that a stream counts
# A session has 128 characters at most; each may come as four bytes, each byte as three (%F0).
_RECORD: Final = re.compile(r"/records/([^/]{1,2048})")
_SUGGEST: Final = re.compile(r"/sessions/([^/]{1,2048})/suggest")
_SESSION: Final = re.compile(r"/sessions/([^/]{1,2048})")


class ReviewServer:
    """Serves the log that `reader` reads, of a directory (a descriptor), to whoever is let in. Needs a running loop."""

    def __init__(self, reader: Reader, directory: int, access: Access) -> None:
        self._reader = reader
        self._access = access
        self._streams = Streams(directory)
        self._totals = Totals()
        self._standing = partial(standing, directory)
        self._weighing = asyncio.Semaphore(THREADS - 1)  # these take seconds, and one thread stays for the other pages
        self._server = web.Server(self._handle, handler_cancellation=True)
        self._room = Room()

    def connection(self) -> Callable[[], Connection]:
        """What a listener makes of each connection."""
        return factory(self._server, asyncio.get_running_loop(), self._room)

    async def prepare(self) -> None:
        """Make the first page once, so that nobody waits for what is added up only once. Raises `AuditError`."""
        await self._reader.ask(partial(pages.overview, query={}, totals=self._totals))

    async def close(self) -> None:
        """End what is under way."""
        await self._server.shutdown(timeout=0.5)
        self._reader.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        found = judge(self._asked(request), self._access)
        if isinstance(found, Let):
            assert isinstance(request.protocol, Connection)
            request.protocol.let_in()
        match found:
            case Barred() as why:
                return answers.barred(why)
            case Let.READ:
                return await self._guarded(request)
            case Let() as let:
                return answers.signed_in(self._access, by_link=let is Let.SIGN_IN_BY_LINK)

    def _asked(self, request: web.BaseRequest) -> Asked:
        cookies = ";".join(request.headers.getall("Cookie", ())).split(";")
        pairs = [cookie.strip().partition("=") for cookie in cookies]
        return Asked(
            method=request.method,
            path=_path(request),
            hosts=tuple(request.headers.getall("Host", ())),
            origins=tuple(request.headers.getall("Origin", ())),
            fetch_site=request.headers.get("Sec-Fetch-Site", ""),
            fetch_mode=request.headers.get("Sec-Fetch-Mode", ""),
            cookies=tuple(value for name, _, value in pairs if name == self._access.cookie),
            token=request.rel_url.query.get("token"),
        )

    async def _guarded(self, request: web.BaseRequest) -> web.StreamResponse:
        """The one place where what went wrong becomes an answer: a sentence for people, never a traceback."""
        try:
            async with asyncio.timeout(None if _path(request) == "/live" else _ANSWER_SECONDS):
                return await self._answer(request)
        except UnknownRecord as error:
            return answers.problem(404, "Not on record", f"{error}: it may have been disposed of with an old log.")
        except BadQuestion as error:
            return answers.problem(400, "The question cannot be read", f"{error}.")
        except Unanswered as error:
            return answers.problem(503, "No answer", f"{error}.")
        except TimeoutError:
            return answers.problem(503, "No answer", "It took too long. Ask for less.")
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  our own fault is a page and lines for the operator, and ends nothing
            traceback.print_exception(error)
            return answers.problem(500, "The page failed", "This is a fault of Wicketgate; its terminal says more.")

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, query = _path(request), dict(request.rel_url.query)
        if request.method == "POST":
            return await self._posted(request, path)
        if path.startswith("/static/") and (kind := STATIC.get(path.removeprefix("/static/"))):
            return answers.file(static(path.removeprefix("/static/")), kind)
        if path == "/live":
            return await self._live(request, query)
        question = self._question(path, query)
        if question is None:
            return answers.problem(404, "No such page", "Nothing is at this address.")
        if _SUGGEST.fullmatch(path):
            async with self._weighing:
                return answers.page(await self._reader.ask(question))
        return answers.page(await self._reader.ask(question))

    def _question(self, path: str, query: Mapping[str, str]) -> Callable[[AuditIndex], str] | None:
        if path == "/":
            return partial(pages.overview, query=query, totals=self._totals)
        if path == "/records":
            return partial(pages.records, query=query)
        if path == "/replay":
            return lambda _: weighing.replay_form(query, self._access.keys.form)
        if found := _SUGGEST.fullmatch(path):
            return partial(weighing.suggestion, session_id=unquote(found[1]), form=self._access.keys.form)
        if found := _SESSION.fullmatch(path):
            return partial(pages.session, query=query, session_id=unquote(found[1]))
        if found := _RECORD.fullmatch(path):
            return partial(pages.record, record_id=unquote(found[1]), judge=self._standing)
        return None

    async def _live(self, request: web.BaseRequest, query: dict[str, str]) -> web.StreamResponse:
        after = query.get("after", "")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise BadQuestion("`after` is no time")
        read_filter(filters_in(query), datetime.now(UTC))  # a bad one is told now: a stream bears no other answer
        if request.method == "HEAD":
            return answers.file(b"", STREAM)
        if self._streams.full:
            raise Unanswered("there are too many live pages; this one tells nothing new until it is loaded anew")
        newer = partial(pages.newer, query=query, after=int(after), limit=_ALIKE)
        return await self._streams.serve(request, lambda: self._reader.ask(newer))

    async def _posted(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path != "/replay":
            return answers.barred(Barred.METHOD)
        fields = await read_form(request)
        if not same(fields.pop("form", ""), self._access.keys.form):
            return answers.barred(Barred.FORM)
        question = partial(weighing.replayed, fields=fields, form=self._access.keys.form)
        async with self._weighing:
            status, text = await self._reader.ask(question)
        return answers.page(text, status)


def _path(request: web.BaseRequest) -> str:
    return request.raw_path.partition("?")[0]
