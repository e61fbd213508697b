"""A virtual machine with Debian's own kernel, for what this machine's kernel cannot show: AppArmor, control groups v2.

Without hardware acceleration, so that it runs wherever qemu does. Its disk is a snapshot that goes with it, it has no
network card, and it ends with the process that started it.
"""

import base64
import contextlib
import json
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.tree import ROOT

BOOT_SECONDS: Final = 180.0
# Few features: what an emulation gets wrong is among the rare ones (five-level page tables, wide vectors).
CPU: Final = "qemu64"
MEMORY: Final = "1536"  # MiB


class MachineError(Exception):
    """The machine did not start, or did not answer; the text ends with what its console said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command in the machine ended. `code` is None when its time was over."""

    code: int | None
    stdout: str
    stderr: str


@dataclass(slots=True, kw_only=True)
class Machine:
    """A machine that is up."""

    line: socket.socket
    console: Path
    heard: bytes = b""

    def run(
        self,
        *argv: str,
        given: bytes = b"",
        seconds: float = 60,
        environment: Mapping[str, str] | None = None,
        directory: str = "/project",
    ) -> Done:
        """Run a command as root. It knows nothing of this machine but what was copied to /project."""
        order = {
            "argv": argv,
            "given": base64.b64encode(given).decode(),
            "seconds": seconds,
            "environment": dict(environment or {}),
            "directory": directory,
        }
        self.line.sendall(json.dumps(order).encode() + b"\n")
        answer = self.hear(seconds + 30)
        stdout, stderr = (base64.b64decode(answer[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        return Done(code=answer["code"], stdout=stdout, stderr=stderr)

    def has_gone(self) -> bool:
        """Whether nobody is at the other end any more."""
        if not select.select([self.line], [], [], 0)[0]:
            return False
        try:
            return not self.line.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def check(self, *argv: str, **options: Any) -> str:
        """Run a command that must succeed; what it printed."""
        done = self.run(*argv, **options)
        assert done.code == 0, f"{argv}: {done}"
        return done.stdout

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises MachineError when none comes in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.heard:
            if not select.select([self.line], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise MachineError(f"no answer in {seconds} seconds\n{self._last_words()}")
            if not (more := self.line.recv(1 << 20)):
                raise MachineError(f"the machine has gone\n{self._last_words()}")
            self.heard += more
        first, _, self.heard = self.heard.partition(b"\n")
        return dict(json.loads(first))

    def _last_words(self) -> str:
        return self.console.read_text(errors="replace")[-3000:] if self.console.exists() else ""


def make_machine() -> Path:
    """What a machine starts from (scripts/debian-machine makes it where it is missing)."""
    done = subprocess.run([ROOT / "scripts/debian-machine"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


@contextlib.contextmanager
def start_machine(made: Path, project: Path, work: Path) -> Iterator[Machine]:
    """Start a machine with a copy of the directory `project` in /project; wait until it obeys."""
    packed = work / "project.tar"
    subprocess.run(["tar", "-C", str(project), "--owner=0", "--group=0", "-cf", str(packed), "."], check=True)
    mine, theirs = socket.socketpair()
    console = work / "console"
    with theirs:
        qemu = subprocess.Popen(
            _command(made, packed, console, theirs.fileno()),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=(work / "qemu").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    machine = Machine(line=mine, console=console)
    try:
        machine.hear(BOOT_SECONDS)
        yield machine
    finally:
        mine.close()
        qemu.kill()
        qemu.wait()


def _command(made: Path, packed: Path, console: Path, line: int) -> list[str]:
    setpriv = ["setpriv", "--pdeathsig", "KILL", "--"]
    # One emulated processor: with two, the guest's kernel has crashed now and then, in places that are not ours.
    emulator = ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=single"]
    machine = [*emulator, "-cpu", CPU, "-smp", "1", "-m", MEMORY]
    bare = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none"]
    system = ["-kernel", f"{made}.kernel", "-initrd", f"{made}.initrd", "-append"]
    words = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on tsc=reliable"
    drives = [
        *("-drive", f"file={made}.disk,if=virtio,format=raw,snapshot=on,cache=unsafe"),
        *("-drive", f"file={packed},if=virtio,format=raw,readonly=on"),
    ]
    port = [
        *("-serial", f"file:{console}"),
        *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=line,nr=1"),
        *("-chardev", f"socket,id=line,fd={line}"),
    ]
    return [*setpriv, *machine, *bare, *system, words, *drives, *port]
