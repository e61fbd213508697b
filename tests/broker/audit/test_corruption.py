"""A log that somebody tampered with: the verifier says what was done, and where."""

import json
import tomllib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.audit.chain import seal, split_line
from broker.audit.verifier import Fault, Position
from tests.broker.audit.logs import files, verify, write_log

CASES = tomllib.loads((Path(__file__).parents[2] / "cases" / "audit_corruption.toml").read_text())["case"]


class Tamper:
    """The operations of the table, on the lines of one file."""

    def __init__(self, directory: Path) -> None:
        self.files = files(directory)
        self.file = self.files[0]

    def run(self, step: str) -> None:
        name, *arguments = step.split(" ")
        if name in ("in", "unlink", "exchange", "empty", "cut"):
            getattr(self, f"do_{name}")(*map(int, arguments))
            return
        lines = self.file.read_bytes().splitlines()
        if name == "replace":
            self.do_replace(lines, int(arguments[0]), *arguments[1:])
        else:
            getattr(self, f"do_{name}")(lines, *map(int, arguments))
        self.file.write_bytes(b"".join(line + b"\n" for line in lines))

    def pick(self, number: int) -> Path:
        return self.files[number - 1 if number > 0 else number]

    def do_in(self, number: int) -> None:
        self.file = self.pick(number)

    def do_unlink(self, number: int) -> None:
        self.pick(number).unlink()

    def do_exchange(self, left: int, right: int) -> None:
        one, other = self.pick(left).read_bytes(), self.pick(right).read_bytes()
        self.pick(left).write_bytes(other)
        self.pick(right).write_bytes(one)

    def do_empty(self, number: int) -> None:
        self.pick(number).write_bytes(b"")

    def do_cut(self, number: int, count: int) -> None:
        self.pick(number).write_bytes(self.pick(number).read_bytes()[:-count])

    def do_change(self, lines: list[bytes], at: int) -> None:
        changed = lines[at - 1].replace(b"api.example.com", b"bad.example.com")
        assert changed != lines[at - 1]
        lines[at - 1] = changed

    def do_replace(self, lines: list[bytes], at: int, old: str, new: str) -> None:
        assert old.encode() in lines[at - 1]
        lines[at - 1] = lines[at - 1].replace(old.encode(), new.encode(), 1)

    def do_space(self, lines: list[bytes], at: int) -> None:
        lines[at - 1] = lines[at - 1].replace(b":", b": ", 1)

    def do_hash(self, lines: list[bytes], at: int) -> None:
        line = lines[at - 1]
        lines[at - 1] = line[:-3] + (b"0" if line[-3:-2] != b"0" else b"1") + b'"}'

    def do_forge(self, lines: list[bytes], at: int, last: int) -> None:
        self.do_change(lines, at)
        self._chain(lines, at, last)

    def do_resign(self, lines: list[bytes], at: int) -> None:
        fields = json.loads(lines[at - 1])
        fields["head"] = json.loads(lines[at - 2])["hash"]
        lines[at - 1] = json.dumps(fields, separators=(",", ":")).encode()
        self._chain(lines, at, at)

    def _chain(self, lines: list[bytes], first: int, last: int) -> None:
        previous = json.loads(lines[first - 2])["hash"]
        for at in range(first - 1, last):
            parts = split_line(lines[at])
            assert parts is not None
            line, previous = seal(previous, parts[0])
            lines[at] = line[:-1]

    def do_remove(self, lines: list[bytes], at: int) -> None:
        del lines[at - 1 if at > 0 else at]

    def do_swap(self, lines: list[bytes], left: int, right: int) -> None:
        lines[left - 1], lines[right - 1] = lines[right - 1], lines[left - 1]

    def do_move(self, lines: list[bytes], at: int, to: int) -> None:
        lines.insert(to - 1, lines.pop(at - 1))

    def do_copy(self, lines: list[bytes], at: int, to: int) -> None:
        lines.insert(to - 1, lines[at - 1])

    def do_foreign(self, lines: list[bytes], at: int) -> None:
        name = json.loads(lines[at - 1])["id"].partition("-")[0].encode()
        lines.insert(at - 1, lines[at - 1].replace(name, b"zzzzzzzzzzzz"))

    def do_noise(self, lines: list[bytes], at: int) -> None:
        lines.insert(at - 1, b'{"kind":"decision","verdict":"allow"}')

    def do_blank(self, lines: list[bytes], at: int) -> None:
        lines.insert(at - 1, b"")

    def do_zeros(self, lines: list[bytes], at: int) -> None:
        lines[at - 1] = bytes(len(lines[at - 1]))


def place(directory_files: list[Path], expected: str) -> str:
    """Turn numbers that count from the end into the real ones."""
    file, line, fault = expected.split(":")
    number = int(file) if int(file) > 0 else len(directory_files) + 1 + int(file)
    if int(line) < 0:
        line = str(len(directory_files[number - 1].read_bytes().splitlines()))
    return f"{number}:{line}:{fault}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_tampering_is_found(directory: Path, case: dict[str, Any]) -> None:
    write_log(directory, 10 if case["log"] == "one" else 30, max_bytes=1 << 30 if case["log"] == "one" else 2500)
    tamper = Tamper(directory)
    for step in case["steps"]:
        tamper.run(step)
    numbers = {file.name: at for at, file in enumerate(tamper.files, 1)}
    report = verify(directory)
    said = [f"{numbers[finding.file]}:{finding.line}:{finding.fault}" for finding in report.findings]
    assert said == [place(tamper.files, expected) for expected in case["says"]]
    assert report.ok == (not case["says"])


def test_any_single_flipped_bit_is_found(directory: Path) -> None:
    write_log(directory, 3)
    file = files(directory)[0]
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        assert not verify(directory).ok, f"byte {at}"
    file.write_bytes(content)
    assert verify(directory).ok


@pytest.fixture(scope="module")
def signed_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("signed") / "audit"
    write_log(directory, 4)
    return directory


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_edit_of_a_signed_log_is_found(signed_log: Path, data: st.DataObject) -> None:
    directory, file = signed_log, files(signed_log)[0]
    content = file.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = min(len(content), start + data.draw(st.integers(0, 600)))
    there = st.sampled_from([content[start : end + 7], content[end:start], content[:90], b"\n", b'"', b"}\n", b"0"])
    new = data.draw(st.one_of(st.binary(max_size=40), there))
    edited = content[:start] + new + content[end:]
    try:
        file.write_bytes(edited)
        assert verify(directory).ok == (edited == content)
    finally:
        file.write_bytes(content)


def test_lines_that_leave_out_very_many_numbers_are_told_in_bounded_memory(directory: Path) -> None:
    log = write_log(directory, 3)
    file = files(directory)[0]
    kept = file.read_bytes().splitlines(keepends=True)
    forged = [kept[1].replace(b'-1"', b'-%d"' % (number * 1_000_000)) for number in range(1, 2000)]
    back = kept[1].replace(b'-1"', b'-1500000"')
    file.write_bytes(b"".join([*kept[:3], *forged, back, *kept[3:]]))
    tracemalloc.start()
    try:
        findings = verify(directory).findings
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()
    gaps = [finding for finding in findings if finding.fault is Fault.REMOVED]
    assert [finding.detail for finding in gaps[:3]] == [
        f"999995 records missing: {log}-5 to {log}-999999",
        f"499999 records missing: {log}-1000001 to {log}-1499999",
        f"499999 records missing: {log}-1500001 to {log}-1999999",
    ]


def test_a_log_forged_with_another_key_is_found(directory: Path, tmp_path: Path) -> None:
    """Who can write the directory can make a key of his own; the public key kept elsewhere does not know it."""
    write_log(directory, 3)
    public = next((directory / "keys").glob("*.pub"))
    for path in (directory / "keys").iterdir():
        path.rename(tmp_path / path.name)
    write_log(directory, 3)
    for path in (directory / "keys").glob("*.pub"):
        path.unlink()
    (directory / "keys" / public.name).write_bytes((tmp_path / public.name).read_bytes())
    assert [str(finding.fault) for finding in verify(directory).findings] == ["forged"]


def heads(directory: Path) -> tuple[Position, ...]:
    return tuple(log.head for log in verify(directory).logs)


def test_noted_heads_show_a_removed_log(directory: Path) -> None:
    write_log(directory, 3)
    write_log(directory, 3)
    noted = heads(directory)
    assert verify(directory, noted).ok
    files(directory)[0].unlink()
    assert verify(directory).ok
    assert [str(finding.fault) for finding in verify(directory, noted).findings] == ["missing_head"]


def test_noted_heads_show_a_whole_rewritten_or_shorter_log(directory: Path) -> None:
    write_log(directory, 10, sign=False)
    noted = heads(directory)
    tamper = Tamper(directory)
    tamper.run("forge 5 12")
    assert verify(directory).ok  # nothing was signed: only the note can tell
    assert [str(finding.fault) for finding in verify(directory, noted).findings] == ["forged"]


def test_a_copied_log_is_found(directory: Path) -> None:
    write_log(directory, 3)
    file = files(directory)[0]
    (directory / f"20200101T000000Z{file.name[16:]}").write_bytes(file.read_bytes())
    assert [str(finding.fault) for finding in verify(directory).findings] == ["inserted"]


def test_what_is_no_log_file_is_left_alone(directory: Path) -> None:
    write_log(directory, 1)
    (directory / "notes.txt").write_text("x")
    (directory / "x.jsonl").write_text("x")
    assert verify(directory).ok


def test_a_link_in_place_of_a_log_is_not_followed(directory: Path, tmp_path: Path) -> None:
    write_log(directory, 1)
    file = files(directory)[0]
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert [str(finding.fault) for finding in verify(directory).findings] == ["unreadable"]


def test_a_log_that_was_taken_away_is_named_by_the_one_that_began_after_it(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    names = [write_log(directory, 2) for _ in range(3)]
    assert verify(directory).absent == ()
    opened = {file.name.split("-")[1]: json.loads(file.read_bytes().splitlines()[0]) for file in files(directory)}
    taken = next(name for name in names if any(line.get("beside") == name for line in opened.values()))
    next(file for file in files(directory) if taken in file.name).unlink()
    report = verify(directory)
    assert report.ok
    assert report.absent == (taken,)
    assert any(taken in note for note in report.notes)


def test_a_name_put_in_for_the_log_before_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    first, second = (write_log(directory, 2) for _ in range(2))
    named = next(file for file in files(directory) if b'"beside":"' in file.read_bytes())
    other = first if second in named.name else second
    named.write_bytes(named.read_bytes().replace(other.encode(), b"000000000000"))
    assert [finding.fault for finding in verify(directory).findings] == ["changed"]


@pytest.mark.parametrize("name", ["audit.jsonl", "20260101T000000Z-aaaaaaaaaaaa-1.jsonl", "LOG.JSONL", "x.jsonl.bak"])
def test_a_file_under_a_name_of_no_log_is_noted(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "audit"
    write_log(directory, 2)
    files(directory)[0].rename(directory / name)
    assert any(name in note for note in verify(directory).notes)


def test_an_end_that_nobody_wrote_is_noted(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    write_log(directory, 5)
    file = files(directory)[0]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-3]))
    file.rename(file.with_name(file.name.replace(".jsonl", ".open.jsonl")))
    assert any("no writer and no end" in note for note in verify(directory).notes)
