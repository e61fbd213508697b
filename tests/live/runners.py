"""A real `wicketgate runner` for tests: started, stopped, killed; and a look at who is alive."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.runs import KEEPER, PATIENCE, STARTER, children, name, until
from tests.tree import ROOT
from wicketgate.runner.client import Runner

FALLBACK_ID = 64321  # who serves where root starts it and no account is made for it


def serving_uid() -> int:
    if os.geteuid():
        return os.geteuid()
    try:
        return pwd.getpwnam("wicketgate").pw_uid
    except KeyError:
        return FALLBACK_ID


@dataclass(slots=True)
class Daemon:
    """A runner in a directory of its own."""

    directory: Path
    extra: str = ""
    limits: str = ""
    access: str = ""
    prefix: tuple[str, ...] = ()  # words that change what it runs on, and then are it
    program: tuple[str, ...] = ("-m", "wicketgate")
    process: "subprocess.Popen[bytes] | None" = None
    workspaces: list[Path] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "runner.sock"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def client(self) -> Runner:
        return Runner(self.socket)

    def workspace(self, name: str = "work") -> Path:
        """A directory that the serving user owns."""
        made = self.directory / name
        made.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.chown(made, serving_uid(), serving_uid())
        return made

    def write_config(self) -> Path:
        config = self.directory / "runner.toml"
        places = f'state = "{self.state}"\nruntime = "{self.directory}/run"\n'
        config.write_text(
            f"version = 1\n[runner]\n{places}{self.extra}\n[access]\n{self.access}\n[limits]\n{self.limits}\n"
        )
        config.chmod(0o644)
        return config

    def launch(self) -> "subprocess.Popen[bytes]":
        """Start it and do not wait until it answers."""
        words = (*self.prefix, sys.executable, *self.program, "runner", "--config", str(self.write_config()))
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self.process

    def start(self) -> None:
        self.launch()
        until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        if not self.socket.exists():  # a look costs nothing, a curl every few milliseconds does
            return False
        ask = ["curl", "-s", "--unix-socket", str(self.socket), "http://localhost/v1/health"]
        return subprocess.run(ask, capture_output=True, check=False).returncode == 0

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def processes(self) -> list[int]:
        """The gate, the process between, the runner itself, and the keeper."""
        assert self.process is not None
        keeper, between = sorted(children(self.process.pid), key=lambda pid: name(pid) != KEEPER)
        return [self.process.pid, between, children(between)[0], keeper]

    def starter(self) -> int:
        """The process that forks for the runner: its oldest child of that name."""
        return min(pid for pid in children(self.processes()[2]) if name(pid) == STARTER)


@contextmanager
def daemon(**options: Any) -> Iterator[Daemon]:
    directory = Path(tempfile.mkdtemp(prefix="wicketgate-runner-"))
    directory.chmod(0o755)
    made = Daemon(directory, **options)
    try:
        made.start()
        yield made
        assert "Traceback" not in made.log, made.log[-3000:]
    finally:
        if made.process is not None:
            made.process.kill()
            made.process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def alive(mark: str) -> list[int]:
    """The processes, in whatever namespace, that have `mark` on their command line; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
