"""`wicketgate certs`, as its operator types it."""

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from certs.authority import CertificateAuthority
from certs.store import STATE_NAME


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # below a directory that the serving user may enter: started as root, the command becomes that user
    path = tmp_path_factory.mktemp("state")
    for parent in (path, *path.parents):
        mode = stat.S_IMODE(parent.stat().st_mode)
        if not mode & 0o001:  # where others may enter already, nothing is changed: it may be nobody's of ours
            parent.chmod(mode | 0o011)
    return path / "wicketgate"


def run(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wicketgate", "certs", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert "PRIVATE" not in done.stdout + done.stderr
    return done


def document(*words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json").stdout)
    return found


def test_show_makes_nothing(state: Path) -> None:
    assert "when inspection first needs one" in run("show", "--state-dir", state).stdout
    assert document("show", "--state-dir", state)["authorities"] == []
    assert run("show", "--pem", "--state-dir", state).stdout == ""
    assert not state.exists()


def test_the_first_rotation_makes_the_authority_private_to_the_serving_user(state: Path) -> None:
    assert [each["signs"] for each in document("rotate", "--state-dir", state)["authorities"]] == [True]
    file = state / "certs" / STATE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == state.stat().st_uid
    assert file.stat().st_uid != 0


def test_rotation_keeps_the_old_one_for_the_overlap(state: Path) -> None:
    run("rotate", "--state-dir", state)
    old = document("show", "--state-dir", state)["authorities"][0]
    new, kept = document("rotate", "--overlap", "3", "--state-dir", state)["authorities"]
    assert kept["sha256"] == old["sha256"] != new["sha256"]
    assert (new["signs"], kept["signs"]) == (True, False)
    left = datetime.fromisoformat(kept["trusted_until"]) - datetime.now(UTC)
    assert timedelta(days=2, hours=23) < left <= timedelta(days=3)
    text = run("show", "--state-dir", state).stdout
    assert text.index(new["sha256"]) < text.index(kept["sha256"])
    assert f"trusted until {kept['trusted_until']}" in text
    pem = run("show", "--pem", "--state-dir", state).stdout
    assert len(x509.load_pem_x509_certificates(pem.encode())) == 2


def test_no_overlap_drops_all_older_ones(state: Path) -> None:
    run("rotate", "--state-dir", state)
    run("rotate", "--state-dir", state)
    assert len(document("rotate", "--overlap", "0", "--state-dir", state)["authorities"]) == 1


@pytest.mark.ordinary_only
def test_a_running_broker_takes_the_rotation_over(state: Path) -> None:
    now = datetime.now(UTC)
    state.mkdir(mode=0o700)
    running = CertificateAuthority.load_or_create(state / "certs", now)
    assert not running.reload(now)
    run("rotate", "--state-dir", state)
    assert running.reload(now)
    assert not running.reload(now)
    assert len(running.certificates(now)) == 2


@pytest.mark.parametrize("words", [["show"], ["rotate"]])
def test_a_directory_open_to_others_is_one_sentence_and_125(state: Path, words: list[str]) -> None:
    run("rotate", "--state-dir", state)
    (state / "certs").chmod(0o755)
    refused = run(*words, "--state-dir", state, code=125)
    assert refused.stdout == ""
    assert refused.stderr.startswith("wicketgate: ")
    assert "mode 0755" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["rotate", "--overlap", "-1"], ["rotate", "--overlap", "x"], ["sho"], ["show", "x"]])
def test_bad_words_are_125(words: list[str]) -> None:
    assert run(*words, code=125).stderr.startswith("wicketgate: ")


def test_a_state_directory_that_cannot_be_is_said(state: Path) -> None:
    state.write_text("a file")
    refused = run("rotate", "--state-dir", state, code=125)
    assert str(state) in refused.stderr
    assert os.path.isfile(state)
