"""A container engine for tests: Docker's own daemon from a tree of Debian, in namespaces of its own.

Nothing of it is the machine's: its data, sockets, processes, bridges and packet rules go with its first process, its
control groups and data are removed afterwards. It must not be pointed at an engine that was there before.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.compose.processes import below, status
from tests.tree import ROOT

ENTER: Final = Path(__file__).with_name("enter.sh")
BUNDLES: Final = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby"
ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DOCKER_HOST": "unix:///run/docker.sock",
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
}
PATIENCE: Final = 120.0  # seconds until the engine answers
# For building: the packages come through the machine's own network, in which the engine must change nothing.
ON_THE_MACHINES_NETWORK: Final = (
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
)


class EngineError(Exception):
    """A command of the engine failed; the text is what it said."""


def debian_tree(name: str) -> Path:
    """A tree made by scripts/debian-tree, which makes it where it is missing."""
    done = subprocess.run([ROOT / "scripts/debian-tree", name], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


@dataclass(slots=True, kw_only=True)
class Engine:
    """A running engine. `init` is the pid of its first process, seen from here; `work` is /run/work inside."""

    start: list[str]
    work: Path
    log: Path
    outer: "subprocess.Popen[bytes] | None" = None
    init: int = 0

    def launch(self) -> None:
        """Start it and wait until it answers. Raises EngineError."""
        with self.log.open("ab") as output:
            self.outer = subprocess.Popen(
                self.start, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._wait(self.outer)

    def crash(self) -> None:
        """End it and all that runs in it at once, as a machine that loses its power."""
        if self.outer is not None:
            self.outer.kill()  # and the kernel kills its child, the first process of the pid namespace
            self.outer.wait()
            self.outer = None

    def _wait(self, outer: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and outer.poll() is None:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            if children:
                self.init = int(children[0])
                if self.run("docker", "version").returncode == 0:
                    return
            select.select([], [], [], 0.05)
        raise EngineError(f"the engine did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def run(
        self, *command: str, given: bytes | None = None, directory: str = "/", seconds: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command beside the engine, in its namespaces and tree."""
        enter = ["nsenter", "--target", str(self.init), "--mount", "--pid", "--net", "--root", f"--wdns={directory}"]
        return subprocess.run(
            [*enter, "--", *command],
            check=False,
            capture_output=True,
            input=given or b"",
            env=dict(ENVIRONMENT),
            timeout=seconds,
        )

    def docker(self, *words: str, given: bytes | None = None, seconds: float = 120) -> str:
        """Run `docker`; what it printed. Raises EngineError."""
        return self._checked(self.run("docker", *words, given=given, seconds=seconds), words)

    def compose(
        self,
        *words: str,
        settings: Sequence[str] = (),
        seconds: float = 120,
        check: bool = True,
        directory: str = "/run/project",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `docker-compose` in the project's directory. `settings`: variables that its files name, "NAME=VALUE"."""
        done = self.run("env", *settings, "docker-compose", *words, directory=directory, seconds=seconds)
        if check:
            self._checked(done, words)
        return done

    def inspect(self, container: str) -> dict[str, Any]:
        """What the engine says of a container."""
        return dict(json.loads(self.docker("inspect", "--type", "container", container))[0])

    def host_pid(self, container: str) -> int:
        """The pid of a container's first process, seen from here."""
        inner = str(self.inspect(container)["State"]["Pid"])
        for pid in below(self.init):  # others on this machine have namespaces, and the same numbers in them
            with contextlib.suppress(OSError):
                if status(pid)["NSpid"].split()[1:2] == [inner]:
                    return pid
        raise EngineError(f"the first process of {container} ({inner}) was not found")

    def bundle(self, container: str) -> dict[str, Any]:
        """The runtime configuration that a running container was really started with (config.json of the OCI)."""
        number = self.inspect(container)["Id"]
        done = self.run("cat", f"{BUNDLES}/{number}/config.json")
        return dict(json.loads(self._checked(done, ("config.json",))))

    def _checked(self, done: subprocess.CompletedProcess[bytes], words: Sequence[str]) -> str:
        if done.returncode != 0:
            said = (done.stdout[-2000:] + done.stderr[-4000:]).decode(errors="replace")
            raise EngineError(f"{' '.join(words)[:200]}: exit code {done.returncode}\n{said}")
        return done.stdout.decode().strip()


@contextlib.contextmanager
def start_engine(tree: Path, work: Path, project: Path, *, network: bool = False) -> Iterator[Engine]:
    """Start an engine whose data lies in `work`, and end it with everything that it made but the data.

    `project` is shown to it as /run/project. `network`: on the machine's own network, for building; else on none but
    its own bridges. After building it may put its data in order; else they are of no use to anybody any more.
    """
    group = f"/wicketgate-test-{os.getpid()}"
    (work / "data").mkdir(exist_ok=True)
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    own = [] if network else ["--net"]
    options = list(ON_THE_MACHINES_NETWORK) if network else []
    start = [*apart, *own, str(ENTER), str(tree), str(work), str(project), "--cgroup-parent", group, *options]
    engine = Engine(start=start, work=work, log=work / "engine.log")
    try:
        engine.launch()
        yield engine
        if network:
            _end(engine)
    finally:
        engine.crash()
        _remove_groups(group)


def _end(engine: Engine) -> None:
    """Let it put its data in order: the next start uses them."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(engine.init)
        try:
            os.kill(engine.init, signal.SIGTERM)
            select.select([pidfd], [], [], 20)
        finally:
            os.close(pidfd)


def _remove_groups(name: str) -> None:
    """Control groups outlive their processes; the deepest go first."""
    for place in [*Path("/sys/fs/cgroup").glob(f"*{name}"), Path(f"/sys/fs/cgroup{name}")]:
        for directory, _, _ in place.walk(top_down=False):
            with contextlib.suppress(OSError):
                directory.rmdir()
