"""Starts `wicketgate broker` in directories that its serving user can reach, and plays the runner beside it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.tree import ROOT

PATIENCE: Final = 120.0  # seconds: a start takes two of them where the machine is at rest
HEAD: Final = "version = 1\n[egress]\nenabled = {flag}\n"


@dataclass
class Daemon:
    """A broker and where it lives. `policy` and `config` are the texts that it is started with."""

    directory: Path
    rules: str
    extra: str = ""
    enabled: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    process: "subprocess.Popen[str] | None" = None

    @property
    def control(self) -> Path:
        return self.directory / "run" / "control.sock"

    @property
    def attach(self) -> Path:
        return self.directory / "run" / "attach.sock"

    @property
    def policy(self) -> Path:
        return self.directory / "policy.toml"

    def write_policy(self, rules: str | None = None, *, enabled: bool | None = None, limits: str = "") -> None:
        """Replace the policy file whole."""
        self.rules = self.rules if rules is None else rules
        self.enabled = self.enabled if enabled is None else enabled
        flag = "true" if self.enabled else "false"
        self.write_file(self.policy, HEAD.format(flag=flag) + limits + self.rules)

    def write_file(self, path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o644)
        new.rename(path)

    def launch(self) -> None:
        """Start it."""
        place = self.directory
        config = f'version = 1\n[broker]\npolicy = "{self.policy}"\nstate = "{place}/state"\nruntime = "{place}/run"\n'
        self.write_file(place / "broker.toml", config + self.extra)
        self.process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "wicketgate", "broker", "--config", str(place / "broker.toml")],
            cwd=ROOT,
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stderr=(place / "stderr").open("a"),
            text=True,
        )

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        self.launch()
        assert self.process is not None
        errors = self.directory / "stderr"
        deadline = time.monotonic() + PATIENCE
        while not self.is_ready():
            assert self.process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Whether the control socket answers that it is."""
        if not self.control.exists():  # a look costs nothing, a curl every few milliseconds does
            return False
        try:
            return bool(self.ask("GET", "/v1/health")[1]["ready"])
        except (OSError, KeyError, ValueError):
            return False

    def ask(self, method: str, path: str, body: Any = None, *, headers: Sequence[str] = ()) -> tuple[int, Any]:
        """One request with curl: a client that is none of ours."""
        words = ["curl", "-sS", "--unix-socket", str(self.control), "-X", method, f"http://localhost{path}"]
        words += ["-w", "\n%{http_code}", "--max-time", "30"]
        for header in headers:
            words += ["-H", header]
        if body is not None:
            words += ["-H", "Content-Type: application/json", "-d", body if isinstance(body, str) else json.dumps(body)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
        if done.returncode:
            raise OSError(done.stderr)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(text) if text else None

    def kill(self) -> None:
        """As a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """As a service manager does; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def records(self, **wanted: str) -> list[dict[str, Any]]:
        """What the log says, of all brokers that lived here, in order of time."""
        found = []
        for path in (self.directory / "state" / "audit").glob("*.jsonl"):
            try:
                text = path.read_text("utf-8")
            except FileNotFoundError:  # its writer has just finished it
                text = path.with_name(path.name.replace(".open.", ".")).read_text("utf-8")
            found += [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        found.sort(key=lambda record: record["time"])
        return [one for one in found if all(one.get(name) == value for name, value in wanted.items())]


@contextmanager
def broker_daemon(
    rules: str,
    *,
    extra: str = "",
    enabled: bool = True,
    limits: str = "",
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Daemon]:
    """A running broker. `extra` is the rest of its configuration, from the keys of [broker] on."""
    # pytest's own directories are closed to the user that a broker of root's serves as.
    place = Path(tempfile.mkdtemp(prefix="wicketgate-test-"))
    place.chmod(0o755)
    daemon = Daemon(place, rules, extra, enabled, environ or {}, prefix)
    try:
        daemon.write_policy(limits=limits)
        daemon.start()
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.process.kill()
            daemon.process.wait(PATIENCE)
        shutil.rmtree(place, ignore_errors=True)


class PlayedRunner:
    """A process that builds a bridge, attaches it and makes requests from inside; see `attached_runner`."""

    def __init__(self, daemon: Daemon, session: str, grant: str, *, call: str = "") -> None:
        words = [str(daemon.attach), session, grant, call]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.attached_runner", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have it do something; its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        line = self.process.stdout.readline()
        assert line, f"the runner ended with {self.process.wait(PATIENCE)}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def played_runner(daemon: Daemon, session: str, grant: str = "", *, call: str = "") -> Iterator[PlayedRunner]:
    """A runner that is killed at the end."""
    runner = PlayedRunner(daemon, session, grant, call=call)
    try:
        yield runner
    finally:
        runner.end()
