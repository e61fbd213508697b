"""Runs commands through `wicketgate run` as a person would, and reads what the log says of them.

It uses nothing of the product but its command line and its log files.
"""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.origins.process import Origin
from tests.tree import ROOT

PYTHON: Final = "/usr/bin/python3"  # the interpreter that payloads find inside
PAYLOADS: Final = ROOT / "tests" / "live" / "payloads"
PATIENCE: Final = 60.0
SUMMARY: Final = re.compile(
    r"^wicketgate: (\d+) allowed, (\d+) denied(?:, (\d+) failed)?; session (\w+) in (.+)$", re.MULTILINE
)
LOCAL: Final = ("--private", "127.0.0.1/32")


@dataclass(frozen=True)
class Ran:
    """A finished run. `summary` is the line that the command ends with: None without a network."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> re.Match[str] | None:
        return SUMMARY.search(self.err)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Allowed, denied, failed, as the last line says."""
        assert self.summary is not None, self.err
        return int(self.summary[1]), int(self.summary[2]), int(self.summary[3] or 0)

    @property
    def log(self) -> Path:
        assert self.summary is not None, self.err
        return Path(self.summary[5])

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """What the log says of this session, in order."""
        assert self.summary is not None, self.err
        return records_of(self.summary[4], self.log)

    def decisions(self, **wanted: str) -> list[dict[str, Any]]:
        """The decisions whose fields are as wanted."""
        found = [record for record in self.records if record["kind"] == "decision"]
        return [one for one in found if all(one.get(name) == value for name, value in wanted.items())]

    def closes(self, **wanted: str) -> list[dict[str, Any]]:
        """The close records whose fields are as wanted."""
        found = [record for record in self.records if record["kind"] == "close"]
        return [one for one in found if all(one.get(name) == value for name, value in wanted.items())]

    @property
    def document(self) -> Any:
        """Standard output, read as JSON."""
        assert self.code == 0, self.err
        return json.loads(self.out)


def records_of(session: str, log: Path) -> list[dict[str, Any]]:
    """A session's records. Other runs write to other files of the same directory."""
    for _ in range(1000):
        with contextlib.suppress(FileNotFoundError):  # another run has ended and given its file the final name
            return _records_of(session, log)
    raise AssertionError(f"the files of {log} change their names without end")


def _records_of(session: str, log: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(log.glob("*.jsonl")):
        text = path.read_text("utf-8")
        if session in text:
            found += [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [record for record in found if record.get("session") == session]


def command_line(command: Sequence[str], options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "wicketgate", "run", *options, "--", *command]


def run(
    *command: str,
    options: Sequence[str] = (),
    stdin: str = "",
    patience: float = PATIENCE,
    env: dict[str, str] | None = None,
) -> Ran:
    """Run a command to its end."""
    done = subprocess.run(
        command_line(command, options),
        cwd=ROOT,
        input=stdin,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=patience,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def payload(name: str, *arguments: str) -> list[str]:
    """A Python program of tests/live/payloads, to be run inside by the interpreter that is there."""
    return [PYTHON, "-I", "-c", (PAYLOADS / f"{name}.py").read_text(), *arguments]


@contextmanager
def started(*command: str, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A running command, with pipes. It is killed at the end if it still runs."""
    process = subprocess.Popen(
        command_line(command, options),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str], stdin: str | None = None) -> Ran:
    """Wait for the end of a started command."""
    out, err = process.communicate(stdin, timeout=PATIENCE)
    return Ran(process.returncode, out, err)


def children(pid: int) -> dict[int, str]:
    """The live children of a process and their command names."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(child)] = Path(f"/proc/{child}/comm").read_text().strip()
    return found


def broker_of(process: subprocess.Popen[str]) -> int:
    """The pid of the broker: the child of `wicketgate run` that is not the sandbox's."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = children(process.pid)
        others = [pid for pid, name in found.items() if name != "bwrap"]
        if len(found) == 2 and len(others) == 1:  # before it is executed, bwrap has its parent's name
            return others[0]
        time.sleep(0.01)
    raise AssertionError("no broker was started")


def resident_mib(pid: int) -> float:
    """The resident set of a process (proc(5), VmRSS)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def reaching(origin: Origin, *names: str, port: int | None = None, allow: bool = True) -> list[str]:
    """Options that let `names` reach the ports of an origin on this machine."""
    options = [*LOCAL, "--cacert", str(origin.cacert)]
    for name in names:
        for one in origin.ports.values() if port is None else (port,):
            options += ["--resolve", f"{name}:{one}:{origin.address}"]
            options += ["--allow", f"{name}:{one}"] if allow else []
    return options
