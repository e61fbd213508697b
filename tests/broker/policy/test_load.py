"""Opening the policy file: whose file it is, what kind of file, and that only the file itself is believed."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.policy.load import MAX_BYTES, load_policy, local_machine
from broker.policy.problems import PolicyError

GOOD = 'version = 1\n[[rule]]\nname = "api"\naction = "allow"\nhosts = ["api.example.com"]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    found = tmp_path / "policy.toml"
    found.write_text(GOOD)
    found.chmod(0o644)
    return found


def refused(path: Path | str) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    (problem,) = caught.value.problems
    return problem.format(str(path))


def test_a_good_file(file: Path) -> None:
    assert [rule.name for rule in load_policy(file).rules] == ["api"]
    assert load_policy(str(file)) == load_policy(file)


def test_a_relative_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_policy("policy.toml").rules


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646, 0o662, 0o622])
def test_a_file_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert f"mode {mode:04o}" in refused(file)
    assert f"write: chmod go-w {file}" in refused(file)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_file_in_a_directory_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    assert f"{file.parent} has mode {mode:04o}" in refused(file)


def test_so_is_one_further_up(file: Path) -> None:
    inner = file.parent / "inner"
    inner.mkdir(mode=0o755)
    moved = inner / "policy.toml"
    file.rename(moved)
    file.parent.chmod(0o777)
    assert f"{file.parent} has mode 0777" in refused(moved)


def test_a_sticky_directory_is_no_danger(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert load_policy(file).rules


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(file: Path) -> None:
    os.chown(file, 12345, 0)
    assert "belongs to user 12345" in refused(file)
    os.chown(file, 0, 0)
    os.chown(file.parent, 12345, 0)
    assert f"{file.parent} belongs to user 12345" in refused(file)


def test_a_symbolic_link_is_not_followed(file: Path) -> None:
    link = file.parent / "link.toml"
    link.symlink_to(file)
    assert "symbolic link" in refused(link)


def test_a_directory_may_be_reached_by_a_link(file: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("other") / "link"
    link.symlink_to(file.parent)
    assert load_policy(link / "policy.toml").rules


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_directory(path: Path) -> None:
    path.mkdir(mode=0o755)


@pytest.mark.parametrize("make", [make_fifo, make_directory])
def test_what_is_not_a_file_is_refused_without_waiting(file: Path, make: Callable[[Path], None]) -> None:
    file.unlink()
    make(file)
    assert "not a regular file" in refused(file)


def test_a_device_is_refused() -> None:
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert "error" in refused("/dev/null")


def test_a_huge_file_is_refused_before_it_is_read(file: Path) -> None:
    os.truncate(file, MAX_BYTES + 1)
    assert f"at most {MAX_BYTES}" in refused(file)


def test_a_missing_file_and_a_missing_directory(file: Path) -> None:
    assert "No such file" in refused(file.parent / "absent.toml")
    assert "No such file" in refused(file.parent / "absent" / "policy.toml")
    assert "Not a directory" in refused(file / "policy.toml")


def test_bytes_that_are_no_text_have_a_line(file: Path) -> None:
    file.write_bytes(b"version = 1\n# \xff\xfe\n")
    assert refused(file) == f"{file}:2: error: not UTF-8; expected: a UTF-8 text"


def test_a_byte_order_mark_is_said_to_be_no_toml(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert "not TOML" in refused(file)


def test_this_machine_is_read_with_patience(file: Path) -> None:
    machine = local_machine()
    assert machine.read(str(file)) == GOOD
    assert machine.read(str(file.parent / "absent")) is None
    assert machine.read(str(file.parent)) is None
    assert machine.names(str(file.parent)) == ["policy.toml"]
    assert machine.names(str(file.parent / "absent")) == ()
    fifo = file.parent / "fifo"
    os.mkfifo(fifo)
    assert machine.read(str(fifo)) == ""


def test_a_preset_reads_this_machines_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = file.parent / "pip.conf"
    settings.write_text("[global]\nindex-url = https://index.corp.example:8443/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    file.write_text('version = 1\n[[rule]]\nname = "pip"\naction = "allow"\npreset = "pip"\n')
    hosts = {(host.text, port) for rule in load_policy(file).rules for host in rule.hosts for port in rule.ports or ()}
    assert ("index.corp.example", 8443) in hosts
