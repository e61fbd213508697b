"""The page over real connections: what each answer bears, what a hostile log does to it, what it refuses."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from broker.audit.index import AuditIndex
from broker.audit.log import AuditLog
from broker.review.page.access import Keys
from broker.review.page.answers import HEADERS
from tests.broker.audit.logs import decision
from tests.broker.review.page.logs import HOSTILE, SCRIPT, TOKEN, Served, hostile_log, served

VOID = {"meta", "link", "input", "br", "img"}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class Strict(HTMLParser):
    """Reads a page as one of ours has to be: every element closed in order, no script or style but by address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs), f"{tag} has an attribute twice"
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        assert tag not in {"style", "iframe", "object", "embed", "base", "img", "svg", "b1"}
        if tag == "script":
            assert given == {"src": "/static/live.js", "defer": None}
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src", "action", "data-live"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag not in VOID
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Strict:
    found = Strict()
    found.feed(text)
    found.close()
    assert not found.open
    assert len(found.ids) == len(set(found.ids))
    assert all(one.startswith(("/", "?", "#")) and not one.startswith("//") for one in found.addresses), found.addresses
    assert all(character.isprintable() or character == "\n" for character in text)
    assert re.search(r"<html lang=\"en\">", text)
    assert text.count("<h1") == 1
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "secret-place" / "audit"


@pytest.fixture
async def page(directory: Path) -> AsyncIterator[Served]:
    hostile_log(directory)
    async with served(directory) as made:
        yield made


def pages(ids: tuple[str, ...]) -> list[str]:
    return [
        "/",
        "/records",
        "/records?verdict=deny&host=%3Cscript%3E&text=%22%3E%3Cb%3E",
        "/records?method=%3CB%3E&since=2d",
        "/sessions/s-1",
        "/sessions/s-1?refused=1",
        *(f"/records/{one}" for one in ids),
    ]


async def test_every_page_of_a_hostile_log_is_well_formed_and_runs_nothing(directory: Path) -> None:
    ids = hostile_log(directory)
    async with served(directory) as page:
        for path in pages(ids):
            status, text = await page.get(path)
            assert status == 200, path
            assert str(directory.parent) not in text
            found = read(text)
            assert SCRIPT not in text
            if path == "/sessions/s-1":
                assert f"/{SCRIPT}" in found.text
                assert "\\u202egnp.exe" in found.text
                assert "{{ 7 * 7 }}" in found.text


async def test_what_a_payload_chose_stands_apart_from_what_is_around_it(page: Served) -> None:
    _, text = await page.get("/sessions/s-1")
    for path in HOSTILE[:2]:
        assert re.search(r'<bdi dir="ltr">[^<]*' + re.escape(path[:2].replace('"', "&#34;").replace("<", "&lt;")), text)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("HEAD", "/", {}, 200),
        ("GET", "/static/style.css", {}, 200),
        ("GET", "/static/live.js", {}, 200),
        ("GET", "/static/../server.py", {}, 404),
        ("GET", "/static/%2e%2e/server.py", {}, 404),
        ("GET", "/nowhere", {}, 404),
        ("GET", "/records/no-1", {}, 404),
        ("GET", "/sessions/none", {}, 404),
        ("GET", "/records?since=never", {}, 400),
        ("GET", "/records?page=x", {}, 400),
        ("GET", "/?page=x", {}, 400),
        ("GET", "/sessions/s-1?page=1", {}, 400),
        ("GET", f"/records?text={'a' * 2000}", {}, 400),
        ("GET", "/live", {}, 400),
        ("GET", "/live?after=-1", {}, 400),
        ("GET", "/", {"Cookie": ""}, 403),
        ("GET", "/static/live.js", {"Cookie": ""}, 403),
        ("GET", "/live?after=1", {"Cookie": ""}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/", {"Origin": "http://evil.example"}, 403),
        ("GET", "/", {"Host": "evil.example"}, 421),
        ("POST", "/", {}, 405),
        ("POST", "/records", {}, 405),
        ("DELETE", "/", {}, 405),
        ("GET", "/?token=wrong", {}, 403),
    ],
)
async def test_every_answer_bears_the_same_fields(
    page: Served, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    asked = page.client.request(method, page.base + path, headers={**page.cookie, **headers}, allow_redirects=False)
    async with asked as answer:
        assert answer.status == status
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert "Set-Cookie" not in answer.headers
        text = await answer.text()
        assert "Traceback" not in text
        if "html" in answer.headers["Content-Type"] and method != "HEAD":
            read(text)


async def test_the_token_becomes_a_cookie_and_leaves_the_address(page: Served) -> None:
    async with page.client.get(f"{page.base}/?token={TOKEN}", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith(f"wicketgate_review_{page.port}={Keys.derive(TOKEN).cookie};")
        assert {part.strip() for part in cookie.split(";")[1:]} == {"HttpOnly", "Path=/", "SameSite=Strict"}
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert TOKEN not in await answer.text()


async def test_who_comes_from_elsewhere_goes_on_by_a_link(page: Served) -> None:
    """A redirect would still count as coming from there, and bear no strict cookie."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with page.client.get(f"{page.base}/?token={TOKEN}", headers=headers) as answer:
        assert answer.status == 200
        assert "Set-Cookie" in answer.headers
        assert "/" in read(await answer.text()).addresses


async def test_head_has_no_body(page: Served) -> None:
    async with page.client.head(page.base + "/", headers=page.cookie) as answer:
        assert answer.status == 200
        assert await answer.read() == b""


async def test_what_is_no_http_gets_an_answer_in_the_same_form(page: Served) -> None:
    for sent in (b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nBad Field\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(sent)
        answer = (await reader.read()).decode()
        assert " 400 " in answer.partition("\r\n")[0]
        assert f"Content-Security-Policy: {POLICY}" in answer
        assert "Traceback" not in answer
        writer.close()


async def test_too_many_connections_are_ended_at_once(page: Served) -> None:
    room = page.server._room
    room.most = 2
    kept = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(2)]
    for reader, writer in kept:
        writer.write(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nCookie: {page.cookie['Cookie']}\r\n\r\n".encode()
        )
        await reader.readuntil(b"</html>")
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    assert await reader.read() == b""
    for one in (writer, *(writer for _, writer in kept)):
        one.close()
    while room.taken:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: ",
        b"POST /replay HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100000\r\n\r\n",
    ],
)
async def test_strangers_keep_nobody_out(page: Served, said: bytes) -> None:
    """Every user of the machine can open as many connections as there may be, and leave them so."""
    room = page.server._room
    room.most = 8
    strangers = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(12)]
    for _, writer in strangers:
        writer.write(said)
    while room.taken < room.most:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        for _ in range(3):
            assert (await page.get("/"))[0] == 200
    for _, writer in strangers:
        writer.close()
    async with asyncio.timeout(20):
        while len(room.strangers):
            await asyncio.sleep(0.01)


async def test_a_session_of_the_longest_name_has_its_page(tmp_path: Path) -> None:
    name = "\U0001f600" * 128
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(decision(1, session=name, allow=False))
    async with served(tmp_path / "audit") as page:
        _, text = await page.get("/")
        (link,) = set(re.findall(r"/sessions/[^\"]+", text))
        for path in (link, f"{link}/suggest"):
            status, text = await page.get(path)
            assert status == 200
            assert name in read(text).text


@pytest.mark.parametrize("host", ["0.pool.example", "1.2.evil.example", "198.51.100.7", "[2001:db8::1]", "localhost"])
async def test_a_host_is_named_as_it_was_asked_for_and_its_link_finds_it(tmp_path: Path, host: str) -> None:
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(decision(1, host=host, allow=False))
    async with served(tmp_path / "audit") as page:
        for path in ("/", "/sessions/s-1"):
            _, text = await page.get(path)
            (link,) = re.findall(r'<th scope="row"><a href="(/records[^"]+)"><bdi dir="ltr">' + re.escape(host), text)
            _, text = await page.get(link.replace("&amp;", "&"))
            assert f"https://{host}:443" in text


async def test_an_empty_log_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir(mode=0o700)
    async with served(tmp_path / "audit") as page:
        status, text = await page.get("/")
        assert status == 200
        assert "Nothing is on record yet" in read(text).text
        assert "Nothing is on record yet" in (await page.get("/records"))[1]


async def test_a_damaged_index_is_told_and_not_a_traceback(page: Served, directory: Path) -> None:
    assert (await page.get("/"))[0] == 200
    for name in ("index.sqlite3", "index.sqlite3-wal"):
        place = directory / name
        if place.exists():
            content = place.read_bytes()
            place.write_bytes(content[:4096] + b"\xff" * max(0, len(content) - 4096))
    status, text = await page.get("/records")
    assert status == 503
    assert "delete index.sqlite3*, it is rebuilt" in read(text).text
    assert str(directory.parent) not in text
    for place in directory.glob("index.sqlite3*"):
        place.unlink()
    assert (await page.get("/records"))[0] == 200


async def test_a_changed_line_is_told(page: Served, directory: Path) -> None:
    _, text = await page.get("/records?verdict=deny")
    record = re.findall(r"/records/([a-z0-9-]+)\"", text)[-1]
    (log,) = directory.glob("*.jsonl")
    log.write_bytes(log.read_bytes().replace(b'"verdict":"deny"', b'"verdict":"d3ny"', 1))
    status, text = await page.get(f"/records/{record}")
    assert status == 200
    assert "THE HASH DOES NOT FOLLOW" in read(text).text
    log.write_bytes(log.read_bytes().replace(b'{"id"', b'["id"'))
    status, text = await page.get("/records")
    assert status == 503
    assert "wicketgate audit verify" in read(text).text


async def test_an_index_that_cannot_be_brought_up_to_date_is_asked_and_said_to_be_old(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await page.get("/records")
    assert "may be missing" not in text

    def full(_: AuditIndex, __: float) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(AuditIndex, "refresh", full)
        status, text = await page.get("/records")
    assert status == 200
    assert "database or disk is full" in read(text).text
    assert "what came last may be missing" in text
    assert "may be missing" not in (await page.get("/records"))[1]
