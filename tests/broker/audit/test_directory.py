import os
import stat
from pathlib import Path

import pytest

from broker.audit.directory import open_directory
from broker.audit.errors import AuditDirectoryError


def refusal(path: Path, *, reading: bool = False) -> str:
    with pytest.raises(AuditDirectoryError) as caught:
        os.close(open_directory(path, reading=reading))
    return str(caught.value)


def test_it_is_made_for_us_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "audit"
    before = os.umask(0)
    try:
        os.close(open_directory(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not stat.S_IMODE(path.parent.stat().st_mode) & 0o022


def test_reading_makes_nothing(tmp_path: Path) -> None:
    assert "no audit log" in refusal(tmp_path / "audit", reading=True)
    assert not (tmp_path / "audit").exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "audit").symlink_to(tmp_path / "real")
    assert "symbolic link" in refusal(tmp_path / "audit")


def test_a_link_as_state_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "real")
    assert "symbolic link" in refusal(tmp_path / "state" / "audit")


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit").symlink_to(tmp_path / "nowhere")
    assert "symbolic link" in refusal(tmp_path / "audit")


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("")
    assert "not a directory" in refusal(tmp_path / "audit")


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o770, 0o777])
def test_a_directory_that_others_can_enter_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "audit"
    path.mkdir()
    path.chmod(mode)
    assert f"chmod 0700 {path}" in refusal(path)


def test_a_parent_that_others_can_write_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "state"
    parent.mkdir()
    parent.chmod(0o777)
    assert f"chmod go-w {parent}" in refusal(parent / "audit")


@pytest.mark.root_only
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.mkdir(mode=0o700)
    os.chown(path, 1234, 1234)
    assert "belongs to uid 1234" in refusal(path)
    os.close(open_directory(path, reading=True))  # root may look


@pytest.mark.ordinary_only
def test_an_unwritable_place_is_refused() -> None:
    assert "--state-dir" in refusal(Path("/proc/audit"))
