"""A live sandbox in the runner: built, supplied with a cable, stopped, settled.

Stopping kills process 1 of the outer pid namespace; the kernel ends everything that was ever forked in it. Only then
is the workspace looked after, so nothing can be planted behind that look.
"""

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sandbox import census
from sandbox.births import Entry
from sandbox.cable import Cable, Lease, lay_cable, return_to
from sandbox.children import Child
from sandbox.construct import Built, build
from sandbox.entering import BEGIN, SECONDS, enter
from sandbox.errors import AGAIN, Code, LaunchError
from sandbox.execution import ENTER_DIRECTORY
from sandbox.forking import Spare
from sandbox.ground import Ground
from sandbox.host import find_command
from sandbox.last_words import with_last_words
from sandbox.lot import AFTER_A_START, MAX_AGE, Lot
from sandbox.next_bridge import NextBridge
from sandbox.parked import Parked, shape_of, suits
from sandbox.protect import Finding
from sandbox.rights import Command, Rights
from sandbox.spec import Authority, Call, Mode, Network, SandboxSpec, Terminal
from sandbox.streams import Streams
from sandbox.supervise import signal_command

NOT_EXECUTED = 127
GRACE = 0.5  # seconds between the polite and the final signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What the runner builds on. `attach` is the broker's attach socket, `state` the runner's own directory.

    `hidden`: directories that full access does not show either. `lot`: the sandboxes that are parked, if any are.
    `next_bridge`: for one that is built.
    """

    ground: Ground
    state: Path
    attach: Path | None = None
    hidden: tuple[Path, ...] = ()
    lot: Lot | None = None
    next_bridge: NextBridge | None = None


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
    processes: census.Processes = field(default_factory=census.Processes)
    done: asyncio.Task[int] = field(init=False)
    _spare: Spare | None = None

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

    def count(self) -> census.Census:
        """Its processes. Raises LaunchError."""
        try:
            return self.processes.count()
        except OSError as error:
            cause = f"The session's processes cannot be counted ({error.strerror})."
            raise LaunchError(
                Code.SANDBOX_FAILED, cause, "Try again; start a new one if that does not help."
            ) from error

    async def enter(self, argv: tuple[str, ...], stdio: Mapping[int, int], *, directory: str = "") -> Child:
        """Start a further command in it. Raises LaunchError, and OSError for what the runner itself lacks."""
        return await self.start(self.built.entry(argv, stdio, directory=directory))

    async def start(self, entry: Entry) -> Child:
        """Start an entry. Raises as `enter` does."""
        if self.child.ended.done() or self.stopped:
            raise LaunchError(Code.SESSION_OVER, "The session has ended.", "Start a new one.")
        try:
            return await enter(entry, self._join)
        except OSError as error:
            if error.errno and not error.filename:
                raise
            raise self._not_entered(entry, error) from error

    def _join(self, entry: Entry, reset: tuple[int, ...], report: int) -> int:
        spare, self._spare = self._spare, None
        if spare is None:
            return self.built.starter.join(entry, reset, report)
        asyncio.get_running_loop().call_later(AFTER_A_START, self.expect_entries)
        return spare.join(entry, reset, report)

    def expect_entries(self) -> None:
        """Have a process wait for the next one: to go into the groups takes longer than all the rest of an entry."""
        if self.built.members() and self._spare is None and not (self.child.ended.done() or self.stopped):
            with contextlib.suppress(OSError):  # without one it takes longer, that is all
                self._spare = self.built.starter.prepare(self.built.members())

    def _not_entered(self, entry: Entry, error: OSError) -> LaunchError:
        if error.filename == ENTER_DIRECTORY:
            cause = f"The directory {entry.directory!r} cannot be entered in the sandbox ({error.strerror})."
            return LaunchError(Code.BAD_CALL, cause, "Name a directory of the workspace.")
        if error.filename == "execute":
            return LaunchError(Code.COMMAND_NOT_FOUND, f"{entry.argv[0]} cannot be executed ({error.strerror}).", "")
        if error.filename == BEGIN:
            cause = f"Processes of the session have kept the command from beginning for {SECONDS:g} seconds."
            return LaunchError(Code.SANDBOX_FAILED, cause, "Start a new one.")
        # Of a process that ends just now everything but the number may be gone.
        if error.errno in {errno.ENOENT, errno.ESRCH} or not Path(f"/proc/{entry.init}").exists():
            return LaunchError(Code.SESSION_OVER, "The session has ended.", "Start a new one.")
        cause = f"The session cannot be entered: the kernel refused to {error.filename} ({error.strerror})."
        return LaunchError(Code.SANDBOX_FAILED, cause, "Start a new one.")

    async def _see_to_the_end(self) -> int:
        code = await self.child.wait()
        if self._spare is not None and (pid := self._spare.discard()):
            await Child(pid).wait()  # it is in the groups that are to be removed
        self._spare = None
        self.processes.close()
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
    workshop: Workshop,
    command: Command,
    rights: Rights,
    *,
    streams: Streams | None = None,
    terminal: Terminal | None = None,
) -> Live:
    """Build a sandbox and start its command, or release a parked one with it. Without `streams`: /dev/null.

    Raises LaunchError; then nothing was executed and nothing is left.
    """
    if "/" not in command.argv[0]:
        find_command(command.argv[0], None)  # a path is the sandbox's to resolve: its links are the payload's
    identity = secrets.token_hex(8)
    call = Call(argv=command.argv, timeout=command.timeout, directory=command.directory)
    parked = _take(workshop, call, rights)
    try:
        cable = await _cable(workshop, identity, rights, parked)
    except BaseException:
        _discard(workshop, parked)
        raise
    try:
        spec = SandboxSpec(call=call, authority=_authority(workshop, rights, cable), terminal=terminal or Terminal())
        built = _release(workshop, parked, spec, rights, streams)
        if built is None:
            built = _build(workshop, spec, rights, cable, streams)
        child = parked.child if parked is not None and built is parked.built else _watch(built)
    except BaseException:
        if cable is not None:
            await cable.take_up()
        raise
    if workshop.lot is not None:
        workshop.lot.want(shape_of(spec.authority, rights.limits))
    asyncio.get_running_loop().call_later(AFTER_A_START, built.starter.expect_birth)
    live = Live(id=identity, rights=rights, built=built, child=child, cable=cable)
    try:
        live.processes.hold(built.init, parent=built.launched.pid)
    except OSError as error:
        await live.close()
        cause = f"The sandbox's processes cannot be held on to ({error.strerror})."
        raise LaunchError(Code.SANDBOX_FAILED, cause, AGAIN) from error
    return live


def _watch(built: Built) -> Child:
    try:
        return Child(built.launched.pid)
    except OSError:  # it was killed for that
        os.close(built.launched.status_fd)
        built.settle()
        raise


def _take(workshop: Workshop, call: Call, rights: Rights) -> Parked | None:
    if workshop.lot is None or rights.mode is not Mode.SANDBOX or not suits(call):
        return None
    return workshop.lot.take(rights.network, rights.limits)


def _authority(workshop: Workshop, rights: Rights, cable: Cable | None) -> Authority:
    return Authority(
        workspace=None if rights.workspace is None else rights.workspace.path,
        network=rights.network,
        mode=rights.mode,
        hidden=workshop.hidden,
        trust=() if cable is None else cable.trust,
        trust_environment=() if cable is None else cable.environment,
        home=() if cable is None else cable.home,
        timeout=rights.timeout,
    )


def _release(
    workshop: Workshop, parked: Parked | None, spec: SandboxSpec, rights: Rights, streams: Streams | None
) -> Built | None:
    """The parked sandbox with the command in it. None: it could not be used. Building one then succeeds or says why."""
    if parked is None or workshop.lot is None:
        return None
    try:
        built = parked.release(spec, workshop.ground, rights.workspace, streams)
    except (LaunchError, OSError, ValueError):
        workshop.lot.discard(parked)
        return None
    except BaseException:
        workshop.lot.discard(parked)
        raise
    workshop.lot.served += 1
    return built


def _build(
    workshop: Workshop, spec: SandboxSpec, rights: Rights, cable: Cable | None, streams: Streams | None
) -> Built:
    with contextlib.ExitStack() as undo:
        if streams is None:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, null)
            errors, writer = os.pipe2(os.O_CLOEXEC)  # bubblewrap's; what it then becomes here writes nothing
            undo.callback(os.close, errors)
            undo.callback(os.close, writer)
            stdio = {0: null, 1: null, 2: writer}
        else:
            stdio, errors = streams.stdio, (streams.err or streams.out).reader
        try:
            return build(
                spec,
                workshop.ground,
                limits=rights.limits,
                workspace=rights.workspace,
                network=None if cable is None else cable.bridge.sandbox_fd,
                stdio=stdio,
            )
        except LaunchError as error:
            raise with_last_words(error, errors) from error


def _discard(workshop: Workshop, parked: Parked | None) -> None:
    if parked is not None and workshop.lot is not None:
        workshop.lot.discard(parked)


async def _cable(workshop: Workshop, session: str, rights: Rights, parked: Parked | None) -> Cable | None:
    """Lay the cable; from a parked sandbox it takes the bridge, in which that sandbox was born."""
    if rights.network is Network.NONE:
        return None
    namespaces = workshop.ground.namespaces
    if workshop.attach is None or namespaces is None:
        cause = "A brokered session was asked for, and the runner's configuration names no broker."
        raise LaunchError(Code.BROKER_GONE, cause, "Set attach in [runner] to the broker's attach socket.")
    lease = Lease(session=session, call=rights.call, grant=rights.grant)
    bridge = None
    if parked is not None:
        bridge, parked.bridge = parked.bridge, None
    elif workshop.next_bridge is not None:
        bridge = workshop.next_bridge.take()
        workshop.next_bridge.expect(after=AFTER_A_START, unused=MAX_AGE)
    back = partial(return_to, namespaces.net)
    return await lay_cable(lease, attach=workshop.attach, state=workshop.state, back=back, bridge=bridge)
