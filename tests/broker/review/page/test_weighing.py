"""Suggested rules and a replayed policy, as pages: what they say, and what a pasted policy must not do."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from msgspec import structs

from broker.audit.log import AuditLog
from broker.policy.document import parse_policy
from broker.policy.load import load_policy
from broker.policy.problems import PolicyError
from broker.review.page import weighing
from broker.review.page.access import Keys
from broker.review.page.weighing import MOST_POLICY, InTime
from tests.broker.audit.logs import decision
from tests.broker.review.page.logs import TOKEN, Served, hostile_log, served
from tests.broker.review.page.test_server import read
from tests.tree import ROOT

FORM = Keys.derive(TOKEN).form
POLICY = """version = 1
[egress]
enabled = true
[[rule]]
name = "all-of-it"
action = "allow"
hosts = ["api.example.com"]
"""


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Served]:
    with AuditLog.open(tmp_path / "audit") as log:
        for number in range(4):
            log.append(structs.replace(decision(number, allow=number == 0), grant=""))
    async with served(tmp_path / "audit") as made:
        yield made


async def post(page: Served, path: str = "/replay", *, origin: str = "", **fields: str) -> tuple[int, str]:
    headers = {
        **page.cookie,
        "Origin": origin or page.base,
        "Content-Type": "application/x-www-form-urlencoded",
    }
    async with page.client.post(page.base + path, data=urlencode(fields), headers=headers) as answer:
        assert "Content-Security-Policy" in answer.headers
        return answer.status, await answer.text()


async def test_suggested_rules_load_and_are_what_was_refused(page: Served) -> None:
    status, text = await page.get("/sessions/s-1/suggest")
    assert status == 200
    found = read(text)
    assert "/items/1" in found.text
    rules = found.text[found.text.index("version = 1") :].partition("Replay the session")[0]
    assert parse_policy(rules, source="test").rules


async def test_a_session_that_is_not_there(page: Served) -> None:
    assert (await page.get("/sessions/none/suggest"))[0] == 404


async def test_a_policy_is_judged_over_the_records_asked_for(page: Served) -> None:
    status, text = await post(page, form=FORM, policy=POLICY, session="s-1")
    assert status == 200
    found = read(text)
    assert "3 was denied, would be allowed" in " ".join(found.text.split())
    assert "all-of-it" in found.text
    status, text = await post(page, form=FORM, policy=POLICY, session="another")
    assert "No decision is among the records asked for" in read(text).text


async def test_a_refused_policy_is_told_with_its_lines_and_is_kept_in_the_form(page: Served) -> None:
    broken = POLICY.replace("hosts", "hoosts") + "# </textarea><script>alert(1)</script>\r\n"
    status, text = await post(page, form=FORM, policy=broken)
    assert status == 422
    found = read(text)
    assert "line:7: error" in found.text
    assert "# </textarea><script>alert(1)</script>" in found.text


async def test_a_pasted_preset_is_refused_and_says_why(page: Served) -> None:
    status, text = await post(page, form=FORM, policy=POLICY.replace('hosts = ["api.example.com"]', 'preset = "pip"'))
    assert status == 422
    assert "a pasted text is not allowed to have them read" in " ".join(read(text).text.split())


class Heard:
    """What this process opens and lists while it is told to listen (sys.addaudithook: it can never be taken away)."""

    def __init__(self) -> None:
        self.listening = False
        self.opened: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.listening and event in {"open", "os.listdir", "os.scandir"} and arguments:
            place = arguments[0]
            self.opened.append(os.fsdecode(place) if isinstance(place, str | bytes) else "")

    @contextmanager
    def listens(self) -> Iterator[None]:
        self.listening = True
        try:
            yield
        finally:
            self.listening = False

    def strangers(self, ours: Path) -> list[str]:
        """What is neither the log nor a module that was loaded late."""
        known = (".jsonl", ".py", ".pyc", ".so")
        return [one for one in self.opened if one and not one.startswith(str(ours)) and not one.endswith(known)]


async def test_a_pasted_policy_opens_no_file(page: Served, tmp_path: Path) -> None:
    """Presets and certificates name files; whatever the process opens meanwhile is heard of."""
    secret = tmp_path / "secret.pem"
    secret.write_text("-----BEGIN CERTIFICATE-----")
    await post(page, form=FORM, policy=POLICY)  # what is loaded once has been loaded
    heard = Heard()
    with heard.listens():
        for more in (f'upstream_cacert = "{secret}"', f'upstream_certificate = "{secret}"\nupstream_key = "{secret}"'):
            await post(page, form=FORM, policy=POLICY + more)
        for preset in ("pip", "npm", "apt", "system"):
            await post(page, form=FORM, policy=POLICY + f'preset = "{preset}"')
    assert heard.opened
    assert heard.strangers(tmp_path / "audit") == []


def test_a_policy_needs_nothing_more_once_it_is_prepared() -> None:
    """Root that has become the log's owner may not be able to read the modules and lists of its own Python."""
    policy = POLICY.replace("api.example.com", "*.b\u00fccher.example")
    script = f"""
import sys
from broker.review.page import weighing
weighing.prepare()
sys.path.clear()
sys.addaudithook(lambda event, arguments: sys.exit(f"{{event}} {{arguments}}") if event in ("open", "import") else None)
assert type(weighing._parse({policy!r})).__name__ == "Policy"
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_oracle_a_policy_file_has_settings_read(tmp_path: Path) -> None:
    place = tmp_path / "policy.toml"
    place.write_text(POLICY + 'preset = "pip"')
    heard = Heard()
    with heard.listens(), contextlib.suppress(PolicyError):
        load_policy(place)
    assert [one for one in heard.strangers(tmp_path / "audit") if "pip" in one]


@pytest.mark.parametrize(
    ("fields", "origin", "status"),
    [
        ({"policy": POLICY}, "", 403),
        ({"policy": POLICY, "form": "x"}, "", 403),
        ({"policy": POLICY, "form": Keys.derive(TOKEN).cookie}, "", 403),
        ({"policy": POLICY, "form": FORM}, "http://evil.example", 403),
        ({"policy": POLICY, "form": FORM}, "null", 403),
        ({"policy": "a" * (MOST_POLICY + 1), "form": FORM}, "", 400),
        ({"policy": "\x01" * (MOST_POLICY + 100_000), "form": FORM}, "", 400),
        ({"policy": "", "form": FORM}, "", 422),
        ({"policy": POLICY, "form": FORM, "since": "never"}, "", 400),
        ({"policy": "[" * 100_000, "form": FORM}, "", 422),
        ({**{f"f{number}": "" for number in range(64)}, "form": FORM}, "", 400),
    ],
    ids=[
        "no form",
        "another form",
        "the cookie",
        "another origin",
        "null",
        "large",
        "larger",
        "empty",
        "no time",
        "deep",
        "many fields",
    ],
)
async def test_what_is_no_form_of_ours(page: Served, fields: dict[str, str], origin: str, status: int) -> None:
    found, text = await post(page, origin=origin, **fields)
    assert found == status
    assert "Traceback" not in text
    read(text)


async def test_a_policy_that_takes_long_to_read_is_given_up_and_its_thread_is_free(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighing, "SECONDS", 0.2)
    dotted = ".".join("a" * 20_000) + " = 1"  # 40 kB that take minutes
    async with asyncio.timeout(30):
        for status, text in await asyncio.gather(*(post(page, form=FORM, policy=dotted) for _ in range(6))):
            assert status == 503
            assert "cannot be read within" in read(text).text
        assert (await page.get("/"))[0] == 200


@pytest.mark.parametrize("name", ["suggest", "replay"])
async def test_what_takes_long_once_the_records_are_read_is_given_up(
    page: Served, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Many hosts, ports and paths that a payload asked for: joining them to rules takes longer than reading them."""

    def endless(*_: object) -> None:
        while True:
            len("")

    monkeypatch.setattr(weighing, "SECONDS", 0.2)
    monkeypatch.setattr(weighing, name, endless)
    async with asyncio.timeout(30):
        if name == "suggest":
            status, text = await page.get("/sessions/s-1/suggest")
        else:
            status, text = await post(page, form=FORM, policy=POLICY)
    assert status == 503
    assert f"`wicketgate audit {name}" in read(text).text


async def test_policies_that_take_long_leave_a_thread_to_other_pages(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, held = threading.Event(), threading.Semaphore(0)

    def wait(*_: object) -> PolicyError:
        held.release()
        go_on.wait(60)
        return PolicyError("line", [])

    monkeypatch.setattr(weighing, "_parse", wait)
    posts = [asyncio.create_task(post(page, form=FORM, policy=POLICY)) for _ in range(4)]
    for _ in range(2):
        assert await asyncio.to_thread(held.acquire, timeout=60)
    async with asyncio.timeout(30):
        assert (await page.get("/"))[0] == 200
    go_on.set()
    assert {status for status, _ in await asyncio.gather(*posts)} == {422}


async def test_a_field_given_twice_or_sent_in_another_way(page: Served) -> None:
    for kind, data in (
        ("application/x-www-form-urlencoded", f"form={FORM}&form={FORM}&policy="),
        ("application/x-www-form-urlencoded", f"form={FORM}&policy=%ff"),
        ("text/plain", f"form={FORM}&policy=x"),
        ("application/json", "{}"),
    ):
        headers = {**page.cookie, "Content-Type": kind}
        async with page.client.post(page.base + "/replay", data=data, headers=headers) as answer:
            assert answer.status == 400


async def test_pages_of_a_hostile_session(tmp_path: Path) -> None:
    hostile_log(tmp_path / "audit")
    async with served(tmp_path / "audit") as page:
        status, text = await page.get("/sessions/s-1/suggest")
        assert status == 200
        read(text)
        status, text = await post(page, form=FORM, policy=POLICY, session="s-1")
        assert status == 200
        read(text)
        status, text = await page.get("/replay?" + urlencode({"session": '"><script>x</script>', "host": "</input>"}))
        assert status == 200
        read(text)


def test_time_that_is_up_ends_the_reading() -> None:
    read_at_once = InTime(iter([]), seconds=10)
    assert list(read_at_once) == []
    assert not read_at_once.cut
    late = InTime(iter([object()] * 3), seconds=-1)  # type: ignore[arg-type]
    assert list(late) == []
    assert late.cut
