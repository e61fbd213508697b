import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.review.page.token import TokenError, keep_token, make_token, read_token
from tests.tree import ROOT

US = frozenset({os.geteuid()})


def test_a_token_has_256_bits_and_is_another_each_time() -> None:
    assert len({make_token() for _ in range(100)}) == 100
    assert {len(make_token()) for _ in range(10)} == {43}


def test_a_token_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "token"
    assert read_token(place, US) is None
    token = keep_token(place)
    assert place.stat().st_mode & 0o7777 == 0o600
    assert read_token(place, US) == token
    with pytest.raises(TokenError):
        keep_token(place)


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        ("", 0o600, "holds no token"),
        ("short", 0o600, "holds no token"),
        ("a" * 42, 0o600, "holds no token"),
        ("a" * 300, 0o600, "holds no token"),
        ("a b" * 30, 0o600, "holds no token"),
        ("a" * 43, 0o640, "chmod 0600"),
        ("a" * 43, 0o604, "chmod 0600"),
    ],
)
def test_a_file_that_is_no_good(tmp_path: Path, text: str, mode: int, word: str) -> None:
    place = tmp_path / "token"
    place.write_text(text)
    place.chmod(mode)
    with pytest.raises(TokenError, match=word):
        read_token(place, US)


def test_somebody_elses_a_link_and_what_is_no_file(tmp_path: Path) -> None:
    place = tmp_path / "token"
    keep_token(place)
    with pytest.raises(TokenError, match="belongs to uid"):
        read_token(place, frozenset({os.geteuid() + 1}))
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(TokenError):
        read_token(tmp_path / "link", US)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(TokenError, match="regular file"):
        read_token(tmp_path / "fifo", US)


def test_keeping_a_token_loads_nothing(tmp_path: Path) -> None:
    """Root that has become the log's owner may not be able to read the modules of its own Python."""
    place = tmp_path / "token"
    script = f"""
import sys
from pathlib import Path
from broker.review.page.token import keep_token
sys.addaudithook(lambda event, arguments: sys.exit(f"{{event}} {{arguments}}") if event == "import" else None)
keep_token(Path({str(place)!r}))
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert read_token(place, US)
