import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.audit.log import AuditLog
from broker.audit.records import Event, Kind, Record
from broker.policy.reasons import Reason
from tests.broker.audit.logs import decision, files, write_log
from wicketgate.commands.audit import audit


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(Record(kind=Kind.SESSION, event=Event.START, session="s-1"))
        for number in range(1, 7):
            ref = log.append(decision(number, allow=number % 2 == 0))
            if number % 2 == 0:
                close = Record(
                    kind=Kind.CLOSE,
                    ref=ref,
                    session="s-1",
                    authority="api.example.com:443",
                    reason=Reason.FINISHED,
                    bytes_up=10,
                    bytes_down=1500,
                )
                log.append(close)
    return tmp_path


def run(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(audit, [*arguments, "--state-dir", str(state)], catch_exceptions=False)


def document(state: Path, *arguments: str) -> Any:
    result = run(state, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_tail(state: Path) -> None:
    lines = run(state, "tail", "-n", "3").stdout.splitlines()
    assert len(lines) == 3
    assert "allow" in lines[0]
    assert "GET https://api.example.com:443/items/6?page=*" in lines[0]
    assert "checkpoint closed" in lines[2]
    assert len(run(state, "tail").stdout.splitlines()) == 12
    assert run(state, "tail", "-n", "0").stdout == ""


def test_tail_as_json_is_one_object_a_line(state: Path) -> None:
    lines = run(state, "tail", "-n", "3", "--json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["decision", "close", "checkpoint"]


def test_search(state: Path) -> None:
    lines = run(state, "search", "--verdict", "deny", "--host", "example.com").stdout.splitlines()
    assert [line.split("/items/")[1][0] for line in lines] == ["5", "3", "1"]
    assert document(state, "search", "--text", "nowhere") == {"records": [], "next_page": None}


def test_search_pages(state: Path) -> None:
    first = document(state, "search", "--kind", "decision", "--limit", "4")
    second = document(state, "search", "--kind", "decision", "--limit", "4", "--page", first["next_page"])
    calls = [record["call"] for page in (first, second) for record in page["records"]]
    assert calls == [f"call-{number}" for number in range(6, 0, -1)]
    assert second["next_page"] is None
    hint = run(state, "search", "--kind", "decision", "--limit", "4")
    assert first["next_page"] in hint.stderr
    assert first["next_page"] not in hint.stdout


def test_show(state: Path) -> None:
    record = document(state, "search", "--verdict", "deny", "--limit", "1")["records"][0]
    shown = document(state, "show", record["id"])
    assert shown["entry"] == record
    assert (shown["linked"], shown["next_linked"]) == (True, True)
    text = run(state, "show", record["id"]).stdout
    assert "host_not_allowed" in text
    assert text.count("the hash follows") == 2


def test_show_of_a_changed_record_fails(state: Path) -> None:
    record = document(state, "search", "--verdict", "deny", "--limit", "1")["records"][0]
    file = files(state / "audit")[0]
    file.write_bytes(file.read_bytes().replace(b"/items/5", b"/items/9"))
    result = run(state, "show", record["id"])
    assert result.exit_code == 1
    assert "DOES NOT FOLLOW" in result.stdout


def test_show_of_no_record(state: Path) -> None:
    result = run(state, "show", "nothing-1")
    assert result.exit_code == 2
    assert "no record nothing-1" in result.stderr


def test_summary(state: Path) -> None:
    rows = document(state, "summary")["rows"]
    assert [(row["session"], row["host"], row["allowed"], row["denied"], row["bytes_down"]) for row in rows] == [
        ("s-1", "api.example.com", 3, 3, 4500)
    ]
    text = run(state, "summary").stdout
    assert "session s-1" in text
    assert "4.5 kB" in text
    assert run(state, "summary", "--session", "none").stdout == "no records\n"


def test_verify(state: Path) -> None:
    result = run(state, "verify", "--strict")
    assert result.exit_code == 0
    assert "nothing is wrong" in result.stdout
    assert document(state, "verify")["ok"] is True


def test_verify_names_file_line_and_fault(state: Path) -> None:
    file = files(state / "audit")[0]
    file.write_bytes(file.read_bytes().replace(b"/items/3", b"/items/9"))
    result = run(state, "verify")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{file.name}:6: changed")
    plain = run(state, "verify", "--json")
    assert plain.exit_code == 1
    assert json.loads(plain.stdout)["findings"][0]["line"] == 6


def test_verify_against_what_was_noted(state: Path, tmp_path: Path) -> None:
    noted = tmp_path / "noted.json"
    noted.write_text(run(state, "verify", "--json").stdout)
    assert run(state, "verify", "--against", str(noted)).exit_code == 0
    files(state / "audit")[0].unlink()
    assert run(state, "verify").exit_code == 0
    result = run(state, "verify", "--against", str(noted))
    assert result.exit_code == 1
    assert "missing_head" in result.stdout


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"logs":[{"head":{}}]}', '{"logs":[{"head":{"log":1}}]}'])
def test_a_note_that_is_none_is_refused(state: Path, tmp_path: Path, content: str) -> None:
    noted = tmp_path / "noted.json"
    noted.write_text(content)
    result = run(state, "verify", "--against", str(noted))
    assert result.exit_code == 2
    assert "verify --json" in result.stderr


def test_verify_with_a_key_kept_elsewhere(state: Path, tmp_path: Path) -> None:
    public = next((state / "audit" / "keys").glob("*.pub"))
    assert run(state, "verify", "--key", str(public)).exit_code == 0
    write_log(tmp_path / "other" / "audit", 1)
    other = next((tmp_path / "other" / "audit" / "keys").glob("*.pub"))
    assert run(state, "verify", "--key", str(other)).exit_code == 1
    assert run(state, "verify", "--key", str(tmp_path / "nothing")).exit_code == 2


def test_strict_wants_a_signature(tmp_path: Path) -> None:
    write_log(tmp_path / "audit", 2, sign=False)
    assert run(tmp_path, "verify").exit_code == 0
    result = run(tmp_path, "verify", "--strict")
    assert result.exit_code == 1
    assert "unsigned" in result.stdout


def test_strict_misses_a_log_that_another_names(tmp_path: Path) -> None:
    for _ in range(2):
        write_log(tmp_path / "audit", 2)
    assert run(tmp_path, "verify", "--strict").exit_code == 0
    next(file for file in files(tmp_path / "audit") if b'"beside":"' not in file.read_bytes()).unlink()
    plain = run(tmp_path, "verify")
    assert plain.exit_code == 0
    assert "taken away" in plain.stdout
    result = run(tmp_path, "verify", "--strict")
    assert result.exit_code == 1
    assert "gone" in result.stdout


def test_export(state: Path, tmp_path: Path) -> None:
    lines = run(state, "export", "--kind", "decision").stdout.splitlines()
    assert [json.loads(line)["call"] for line in lines] == [f"call-{number}" for number in range(1, 7)]
    events = [json.loads(line) for line in run(state, "export", "--format", "ocsf").stdout.splitlines()]
    assert [event["class_uid"] for event in events].count(4002) == 6
    rows = list(csv.DictReader(io.StringIO(run(state, "export", "--format", "csv").stdout)))
    assert len(rows) == 12
    out = tmp_path / "out.csv"
    assert run(state, "export", "--format", "csv", "-o", str(out)).exit_code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    again = run(state, "export", "-o", str(out))
    assert again.exit_code == 2
    assert "cannot make" in again.stderr


@pytest.mark.parametrize("command", [["tail"], ["search"], ["summary"], ["verify"], ["export"], ["show", "x-1"]])
def test_no_log_is_said_in_one_line(tmp_path: Path, command: list[str]) -> None:
    result = run(tmp_path / "nothing", *command)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "--state-dir" in result.stderr
    assert not (tmp_path / "nothing").exists()


@pytest.mark.root_only
def test_root_asks_as_the_owner_of_the_log(tmp_path: Path) -> None:
    """What is made there belongs to the service, and a link that the service planted leads root nowhere."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        state.chmod(0o755)
        write_log(state / "audit", 3)
        for path in (state, *state.rglob("*")):
            os.chown(path, 64321, 64321)
        assert run(state, "verify", "--strict").exit_code == 0
        assert len(run(state, "search", "--kind", "decision").stdout.splitlines()) == 3
        index = state / "audit" / "index.sqlite3"
        assert index.stat().st_uid == 64321
        index.unlink()
        index.symlink_to(tmp_path / "planted")
        assert len(run(state, "search", "--kind", "decision").stdout.splitlines()) == 3
        assert not (tmp_path / "planted").exists()
        out = tmp_path / "out.jsonl"
        assert run(state, "export", "-o", str(out)).exit_code == 0
        assert out.stat().st_uid == 0
        assert (os.geteuid(), os.getegid()) == (0, 0)


def test_what_only_looks_like_a_log_does_not_stop_the_questions(state: Path) -> None:
    os.mkfifo(state / "audit" / "20200101T000000Z-aaaaaaaaaaaa-000001.open.jsonl")
    (state / "audit" / "20200101T000000Z-bbbbbbbbbbbb-000001.jsonl").symlink_to("/etc/passwd")
    (state / "audit" / "20200101T000000Z-cccccccccccc-000001.jsonl").mkdir()
    assert len(run(state, "search").stdout.splitlines()) == 12
    assert len(run(state, "tail", "-n", "3").stdout.splitlines()) == 3
    result = run(state, "verify")
    assert result.exit_code == 1
    assert result.stdout.count("unreadable") == 3


def test_a_bad_time_is_said_with_what_is_expected(state: Path) -> None:
    result = run(state, "search", "--since", "yesterday")
    assert result.exit_code == 2
    assert "15m, 2h, 7d" in result.stderr


def test_a_tampered_log_cannot_drive_the_terminal(tmp_path: Path) -> None:
    write_log(tmp_path / "audit", 1)
    evil = {
        "id": "x-1\x1b[2J",
        "time": "2023-01-01T00:00:00Z",
        "kind": "decision",
        "authority": "a\u202eb\x9b31m\nforged",
    }
    with files(tmp_path / "audit")[0].open("a") as file:
        file.write(json.dumps(evil) + "\n")
    for command in (["tail"], ["search"], ["summary"], ["verify"], ["show", "x-1\x1b[2J"]):
        output = run(tmp_path, *command).output
        assert all(character.isprintable() or character == "\n" for character in output), command


def test_follow_shows_records_as_they_come(tmp_path: Path) -> None:
    """The real command in a process of its own, stopped as a person stops it."""
    script = "from wicketgate.commands.audit import audit; audit()"
    with AuditLog.open(tmp_path / "audit") as log:
        log.append(decision(1))
        log.flush()
        command = [sys.executable, "-c", script, "tail", "-f", "--json", "--state-dir", str(tmp_path)]
        reader = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
        watchdog = threading.Timer(20, reader.kill)
        watchdog.start()
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())["event"] == "opened"
        assert json.loads(reader.stdout.readline())["call"] == "call-1"
        log.append(decision(2))
        log.flush()
        assert json.loads(reader.stdout.readline())["call"] == "call-2"
        reader.send_signal(signal.SIGINT)
        assert reader.wait() == 0
        watchdog.cancel()
        reader.stdout.close()


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    with AuditLog.open(tmp_path / "audit") as log:
        for number in range(2000):  # far more than a pipe holds
            log.append(decision(number))
    script = "from wicketgate.commands.audit import audit; audit()"
    shell = f"{sys.executable} -c '{script}' export --state-dir {tmp_path} | head -c 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{", "")
