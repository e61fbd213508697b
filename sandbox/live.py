"""A live sandbox in the runner: built, supplied with a cable, stopped, settled.

Stopping kills process 1 of the outer pid namespace; the kernel ends everything that was ever forked in it. Only then
is the workspace looked after, so nothing can be planted behind that look.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sandbox.cable import Cable, Lease, lay_cable, return_to
from sandbox.children import Child
from sandbox.construct import Built, Ground, build
from sandbox.errors import Code, LaunchError
from sandbox.host import find_command
from sandbox.launch import Entry, enter
from sandbox.protect import Finding
from sandbox.rights import Command, Rights
from sandbox.spec import Authority, Call, Network, SandboxSpec, Terminal
from sandbox.supervise import signal_command

NOT_EXECUTED = 127
GRACE = 0.5  # seconds between the polite and the final signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What the runner builds on. `attach` is the broker's attach socket, `state` the runner's own directory.

    `hidden`: directories that full access does not show either.
    """

    ground: Ground
    state: Path
    attach: Path | None = None
    hidden: tuple[Path, ...] = ()


@dataclass(slots=True, kw_only=True)
class Live:
    """One live sandbox. `done` resolves when everything of it is dead and undone, to the exit code of its command."""

    id: str
    rights: Rights
    built: Built
    child: Child
    cable: Cable | None
    findings: tuple[Finding, ...] = ()
    stopped: bool = False
    started: bool = False
    done: asyncio.Task[int] = field(init=False)

    def __post_init__(self) -> None:
        self.done = asyncio.create_task(self._see_to_the_end())

    def ask_to_end(self) -> None:
        """Send the first command SIGTERM."""
        signal_command(self.built.launched.pid, 15)

    def stop(self) -> None:
        """Kill everything in it, now."""
        if not self.child.ended.done():
            self.stopped = True
            self.child.kill()

    async def close(self) -> int:
        """Stop it, and wait until it is undone."""
        self.stop()
        return await asyncio.shield(self.done)

    def enter(self, argv: tuple[str, ...], stdio: Mapping[int, int], *, directory: str = "") -> Child:
        """Start a further command in it. Raises LaunchError."""
        return Child(self.start(self.built.entry(argv, stdio, directory=directory)))

    def start(self, entry: Entry) -> int:
        """Start an entry; its pid. Raises LaunchError."""
        if self.child.ended.done() or self.stopped:
            raise LaunchError(Code.SESSION_OVER, "The session has ended.", "Start a new one.")
        try:
            return enter(entry)
        except OSError as error:
            raise self._not_entered(entry, error) from error

    def _not_entered(self, entry: Entry, error: OSError) -> LaunchError:
        if str(error.filename).startswith("enter /"):
            cause = f"The directory {entry.directory!r} cannot be entered in the sandbox ({error.strerror})."
            return LaunchError(Code.BAD_CALL, cause, "Name a directory of the workspace.")
        if error.filename == "execute":
            return LaunchError(Code.COMMAND_NOT_FOUND, f"{entry.argv[0]} cannot be executed ({error.strerror}).", "")
        if not Path(f"/proc/{entry.init}").exists():
            return LaunchError(Code.SESSION_OVER, "The session has ended.", "Start a new one.")
        cause = f"The session cannot be entered: the kernel refused to {error.filename} ({error.strerror})."
        return LaunchError(Code.SANDBOX_FAILED, cause, "Start a new one.")

    async def _see_to_the_end(self) -> int:
        code = await self.child.wait()
        status = self.built.launched.status_fd
        self.started = b'"exit-code"' in os.read(status, 4096)
        os.close(status)
        if not self.started and not self.stopped and code == 1:
            code = NOT_EXECUTED  # bubblewrap's own word; what it said is on the command's standard error
        try:
            self.findings = self.built.settle()
        finally:
            if self.cable is not None:
                with contextlib.suppress(OSError):
                    await self.cable.take_up()
        return code


async def open_live(
    workshop: Workshop, command: Command, rights: Rights, *, stdio: Mapping[int, int], terminal: Terminal | None = None
) -> Live:
    """Build a sandbox and start its command. Raises LaunchError; then nothing was executed and nothing is left."""
    if "/" not in command.argv[0]:
        find_command(command.argv[0], None)  # a path is the sandbox's to resolve: its links are the payload's
    identity = secrets.token_hex(8)
    cable = await _cable(workshop, identity, rights)
    try:
        spec = SandboxSpec(
            call=Call(argv=command.argv, timeout=command.timeout, directory=command.directory),
            authority=Authority(
                workspace=None if rights.workspace is None else rights.workspace.path,
                network=rights.network,
                mode=rights.mode,
                hidden=workshop.hidden,
                trust=() if cable is None else cable.trust,
                trust_environment=() if cable is None else cable.environment,
                home=() if cable is None else cable.home,
                timeout=rights.timeout,
            ),
            terminal=terminal or Terminal(),
        )
        built = build(
            spec,
            workshop.ground,
            limits=rights.limits,
            workspace=rights.workspace,
            network=None if cable is None else cable.bridge.sandbox_fd,
            stdio=stdio,
        )
    except BaseException:
        if cable is not None:
            await cable.take_up()
        raise
    return Live(id=identity, rights=rights, built=built, child=Child(built.launched.pid), cable=cable)


async def _cable(workshop: Workshop, session: str, rights: Rights) -> Cable | None:
    if rights.network is Network.NONE:
        return None
    namespaces = workshop.ground.namespaces
    if workshop.attach is None or namespaces is None:
        cause = "A brokered session was asked for, and the runner's configuration names no broker."
        raise LaunchError(Code.BROKER_GONE, cause, "Set attach in [runner] to the broker's attach socket.")
    lease = Lease(session=session, call=rights.call, grant=rights.grant)
    return await lay_cable(lease, attach=workshop.attach, state=workshop.state, back=partial(return_to, namespaces.net))
