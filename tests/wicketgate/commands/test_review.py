"""`wicketgate review` as a process: what it prints, whom it lets in after a restart, what it refuses to start with."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from tests.broker.audit.logs import write_log
from tests.tree import ROOT
from wicketgate.commands.review import command

PATIENCE = 60.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write_log(tmp_path / "audit", 3)
    return tmp_path


@contextmanager
def serving(state: Path, *options: str) -> Iterator[str]:
    words = [sys.executable, "-m", "wicketgate", "review", "--state-dir", str(state), *options]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, ""), err
        assert "Traceback" not in err


def get(address: str, path: str, cookie: str = "") -> tuple[int, str, str]:
    parts = urlsplit(address)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=PATIENCE)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, (answer.getheader("Set-Cookie") or "").partition(";")[0], body


def test_it_prints_an_address_that_lets_in(state: Path) -> None:
    with serving(state, "--listen", "127.0.0.1:0") as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[A-Za-z0-9_-]{43}", address)
        assert get(address, "/")[0] == 403
        status, cookie, _ = get(address, "/?" + urlsplit(address).query)
        assert status == 303
        status, _, text = get(address, "/", cookie)
        assert status == 200
        assert "s-1" in text
        assert str(state) not in text
    with serving(state, "--listen", f"127.0.0.1:{urlsplit(address).port}") as another:
        assert another != address
        assert get(another, "/", cookie)[0] == 403  # another token: what was let in before is not now


def test_a_token_that_is_kept_lets_the_same_browsers_in_after_a_restart(state: Path) -> None:
    kept = state / "token"
    options = ("--token-file", str(kept))
    with serving(state, "--listen", "127.0.0.1:0", *options) as address:
        token = kept.read_text().strip()
        assert kept.stat().st_mode & 0o777 == 0o600
        assert token not in address
        _, cookie, _ = get(address, f"/?token={token}")
        port = urlsplit(address).port
    with serving(state, "--listen", f"127.0.0.1:{port}", *options) as again:
        assert get(again, "/", cookie)[0] == 200


def test_an_index_elsewhere_leaves_the_log_as_it_was(state: Path) -> None:
    before = {path: path.read_bytes() for path in (state / "audit").rglob("*") if path.is_file()}
    place = state / "index"
    with serving(state, "--listen", "127.0.0.1:0", "--index-dir", str(place)) as address:
        _, cookie, _ = get(address, "/?" + urlsplit(address).query)
        assert "s-1" in get(address, "/", cookie)[2]
    assert {path: path.read_bytes() for path in (state / "audit").rglob("*") if path.is_file()} == before
    assert (place / "index.sqlite3").stat().st_size > 0
    assert place.stat().st_mode & 0o777 == 0o700


def test_an_index_that_others_could_write_is_not_used(state: Path) -> None:
    place = state / "index"
    place.mkdir()
    place.chmod(0o777)
    words = [sys.executable, "-m", "wicketgate", "review", "--state-dir", str(state), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*words, "--index-dir", str(place)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 125
    assert f"chmod 0700 {place}" in done.stderr


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--listen", "8321"), "expected an address and a port"),
        (("--listen", "localhost:99999"), "expected an address and a port"),
        (("--listen", "example.com:80"), "expected an address and a port"),
        (("--listen", "192.0.2.1:0"), "cannot listen"),
    ],
)
def test_where_it_cannot_listen(state: Path, options: tuple[str, ...], word: str) -> None:
    words = [sys.executable, "-m", "wicketgate", "review", "--state-dir", str(state), *options]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 125
    assert word in done.stderr
    assert done.stdout == ""


def test_where_there_is_no_log(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "wicketgate", "review", "--state-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 125
    assert "there is no audit log" in done.stderr


def test_elsewhere_than_on_loopback_there_is_a_warning(state: Path) -> None:
    words = [sys.executable, "-m", "wicketgate", "review", "--state-dir", str(state), "--listen", "0.0.0.0:0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE)
    assert "put a reverse proxy in front" in err


def test_help_loads_no_server() -> None:
    found = CliRunner().invoke(command, ["--help"])
    assert found.exit_code == 0
    assert "--token-file" in found.output


def test_it_loads_neither_the_data_path_nor_the_control_socket_nor_the_authority() -> None:
    loaded = "import sys, wicketgate.reviewing; print(*sorted(name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert "broker.review.page.server" in names
    assert not [name for name in names if re.match(r"broker\.(control|gateway|workers)|certs|netns|sandbox", name)]
