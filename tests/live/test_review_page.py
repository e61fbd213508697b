"""The review page as a person has it: the real command on the log of a real run, in a real browser."""

import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest

from tests.broker.review.page.logs import SCRIPT as MARKUP
from tests.broker.review.page.logs import hostile_log
from tests.live.browser import Browser, browser
from tests.live.gate import PATIENCE, reaching, run
from tests.origins.process import HttpsOrigin
from tests.tree import ROOT

pytestmark = pytest.mark.live
NAME = "origin.example"
SCRIPT = """
curl -sS -o /dev/null http://origin.example:{port}/allowed
curl -sS -o /dev/null http://evil.example/refused
true
"""


@dataclass(frozen=True)
class Review:
    """A running page: its address with the token, the log that it shows, the session that is on record there."""

    process: subprocess.Popen[str]
    address: str
    log: Path
    session: str

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]


@contextmanager
def reviewing(log: Path, session: str) -> Iterator[Review]:
    command = [sys.executable, "-m", "wicketgate", "review", "--state-dir", str(log.parent)]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[A-Za-z0-9_-]{43}", address), address
        yield Review(process, address, log, session)
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def log() -> Iterator[Path]:
    """A log of this module alone: the usual one has what all other tests do at the same time."""
    with tempfile.TemporaryDirectory(prefix="wicketgate-review-") as state:
        Path(state).chmod(0o755)  # whose log it is has to get there
        log = Path(state, "audit")
        log.mkdir(mode=0o700)
        yield log


def asking(https_origin: HttpsOrigin, log: Path) -> str:
    """Have a run allowed one thing and refused another, and bring its records to `log`; its session."""
    script = SCRIPT.format(port=https_origin.http)
    ran = run("sh", "-c", script, options=reaching(https_origin, NAME))
    assert ran.counts == (1, 1, 0)
    assert ran.summary is not None
    session: str = ran.summary[4]
    owner = ran.log.stat()
    os.chown(log, owner.st_uid, owner.st_gid)
    written = [file for file in ran.log.glob("*.jsonl") if _has(file, session)]
    assert written
    for file in written:
        shutil.copy(file, log.parent / file.name)
        os.chown(log.parent / file.name, owner.st_uid, owner.st_gid)
        (log.parent / file.name).rename(log / file.name)  # whole from the start
    return session


def _has(file: Path, session: str) -> bool:
    try:
        return session in file.read_text()
    except FileNotFoundError:  # another run has ended and given its file the final name
        return False


@pytest.fixture(scope="module")
def review(https_origin: HttpsOrigin, log: Path) -> Iterator[Review]:
    with reviewing(log, asking(https_origin, log)) as made:
        yield made


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile"), "--host-resolver-rules=MAP rebound.example 127.0.0.1") as made:
        yield made


@pytest.fixture
def reader(tab: Browser, review: Review) -> Browser:
    """The browser of somebody who has opened the address with the token."""
    tab.scripts(allowed=True)
    tab.open(review.address)
    assert tab.value("location.href") == f"{review.base}/"
    return tab


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_a_person_finds_what_was_refused_and_why(reader: Browser, review: Review, scripts: bool) -> None:
    reader.scripts(allowed=scripts)
    reader.open(f"{review.base}/")
    assert "evil.example" in reader.text()
    assert reader.value(f"!!document.querySelector('a[href=\"/sessions/{review.session}\"]')")
    reader.open(f"{review.base}/sessions/{review.session}")
    row = "[...document.querySelectorAll('tr.denied')].map(one => one.innerText).find(one => one.includes('/refused'))"
    told = str(reader.value(row))
    assert "denied" in told
    assert "host_not_allowed" in told
    assert "GET http://evil.example" in " ".join(told.split())
    link = reader.value("[...document.querySelectorAll('tr.denied')].find(one => one.innerText.includes('/refused'))"
                        ".querySelector('.when a').href")  # fmt: skip
    reader.open(str(link))
    assert "the hash follows" in reader.text()
    assert "THE HASH DOES NOT FOLLOW" not in reader.text()
    allowed = (
        "[...document.querySelectorAll('tr')].some(one => /allowed/.test(one.innerText) && /404/.test(one.innerText))"
    )
    reader.open(f"{review.base}/sessions/{review.session}")
    assert reader.value(allowed)


def test_what_a_payload_wrote_is_text(tab: Browser, tmp_path: Path) -> None:
    """The same strings run where they are markup: the oracle is a page that has them as such."""
    tab.scripts(allowed=True)
    hostile_log(tmp_path / "audit")
    with reviewing(tmp_path / "audit", "s-1") as review:
        tab.open(review.address)
        for path in (
            "/sessions/s-1",
            "/sessions/s-1/suggest",
            "/records",
            "/",
            f"/records?{urlencode({'host': MARKUP})}",
        ):
            tab.open(review.base + path)
            assert "document.title='owned'" in tab.text() or "host=" in path
            assert tab.value("document.title") != "owned"
            inside = "main script, main img, main svg, main b[onerror], main [onmouseover]"
            assert tab.value(f"document.querySelectorAll({inside!r}).length") == 0
            assert not tab.dialogs
    tab.open(f"data:text/html,{quote(MARKUP)}")
    assert tab.value("document.title") == "owned"


STEAL = """<!doctype html><title>elsewhere</title><script>
const base = new URLSearchParams(location.search).get('base');
const tried = async (options) => {
  try { return await (await fetch(base + '/', {credentials: 'include', ...options})).text() || 'nothing' }
  catch { return 'refused' }
};
const framed = () => new Promise(done => {
  const frame = document.createElement('iframe');
  frame.onload = () => { try { done(frame.contentDocument.body.innerText || 'nothing') } catch { done('refused') } };
  frame.src = base + '/';
  document.body.append(frame);
});
const loaded = (kind, path) => new Promise(done => {
  const one = document.createElement(kind);
  one.onload = () => done('loaded');
  one.onerror = () => done('refused');
  one.src = base + path;
  document.body.append(one);
});
addEventListener('load', async () => {
  const frame = await framed();
  window.result = JSON.stringify([await tried({}), await tried({mode: 'no-cors'}), frame,
    await loaded('script', '/static/live.js'), await loaded('img', '/')]);
});
</script><body>"""


@contextmanager
def elsewhere() -> Iterator[str]:
    """Another local user's web server: another port of the same host."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = STEAL.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f":{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same site", "another site"])
def test_another_origins_page_reads_nothing(reader: Browser, review: Review, host: str) -> None:
    with elsewhere() as port:
        reader.open(f"http://{host}{port}/?base={review.base}")
        reader.until("window.result")
        assert reader.value("window.result") == '["refused","refused","refused","refused","refused"]'
    # The oracle: the page itself can, by the same means.
    reader.open(f"{review.base}/")
    assert "evil.example" in reader.value("fetch('/', {credentials: 'include'}).then(answer => answer.text())")


def test_another_name_that_leads_here_gets_nothing(reader: Browser, review: Review) -> None:
    port = urlsplit(review.base).port
    reader.open(f"http://rebound.example:{port}/?token={urlsplit(review.address).query.partition('=')[2]}")
    assert "does not answer to this name" in reader.text()
    assert "evil.example" not in reader.text()


def test_without_the_cookie_there_is_nothing(review: Review) -> None:
    for path in ("/", f"/sessions/{review.session}", "/static/live.js", "/live?after=0", "/?token=guessed"):
        asked = ["curl", "-sS", "--noproxy", "*", "-w", "%{http_code}", review.base + path]
        answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert answer.endswith("403")
        assert "evil.example" not in answer


def test_rules_are_suggested_and_replayed(reader: Browser, review: Review) -> None:
    """The form is the browser's own: what it sends with it is let in, and it says what would have been allowed."""
    reader.open(f"{review.base}/sessions/{review.session}/suggest")
    assert "evil.example" in reader.value("document.querySelector('pre').innerText")
    reader.value("document.querySelector('form.acts').submit()")
    reader.until("location.pathname === '/replay' && document.readyState === 'complete'")
    assert "would be allowed" in reader.text()
    assert reader.value("[...document.querySelectorAll('tr')].some(one => one.innerText.includes('evil.example'))")


def test_what_is_new_comes_by_itself_or_is_told_to_who_is_busy(
    reader: Browser, review: Review, https_origin: HttpsOrigin
) -> None:
    reader.open(f"{review.base}/")
    reader.value("window.same = true")
    first = asking(https_origin, review.log)
    reader.until(f"!!document.querySelector('a[href=\"/sessions/{first}\"]')")
    assert reader.value("window.same"), "the page was loaded anew"
    reader.value("document.querySelector('main a').focus()")
    second = asking(https_origin, review.log)
    reader.until("/newer record/.test(document.querySelector('.newer')?.innerText)")
    there = f"!!document.querySelector('a[href=\"/sessions/{second}\"]')"
    assert not reader.value(there)
    reader.value("document.querySelector('.newer button').click()")
    reader.until(there)
    assert not reader.value("!!document.querySelector('.newer')")


def test_the_process_has_the_log_and_a_listener_and_is_its_owner(review: Review) -> None:
    place = Path(f"/proc/{review.process.pid}")
    owner = review.log.stat()
    ids = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    assert set(ids["Uid"].split()) == {str(owner.st_uid)}
    assert set(ids["Gid"].split()) == {str(owner.st_gid)}
    held = [os.readlink(fd) for fd in (place / "fd").iterdir() if int(fd.name) > 2]
    files = [one for one in held if one.startswith("/") and not one.startswith("/dev/")]
    assert all(Path(one.removesuffix(" (deleted)")).is_relative_to(review.log) for one in files), files
    assert not [one for one in files if one.endswith((".pem", ".sock"))]
