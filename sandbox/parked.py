"""A sandbox that is built ahead and waits: mounted, confined and bounded, with a shell in it that waits for a word.

Nothing else ever ran in it. It serves one session and dies with it. What it was built with is its shape: the whole
authority but for the workspace and the time, and the limits. Whoever releases it has laid out the authority of the
session; only where that has the same shape, and the files of the host are those that were mounted, it is used. The rest
is applied at the release: the workspace (surveyed, shown and compared as in a start without it), the lease on the
broker, the environment, the command and its streams, which come by descriptors that nobody else ever had.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from netns.bridge import Bridge
from sandbox import construct
from sandbox.bridge import open_bridge
from sandbox.children import Child
from sandbox.construct import Built
from sandbox.errors import Code, LaunchError
from sandbox.ground import Ground
from sandbox.held import HOLD_SECONDS, find_waiting, is_waiting
from sandbox.limits import Limits
from sandbox.output import readable
from sandbox.plan import Bind, plan
from sandbox.release import APART, GO, MERGED, NOWHERE, SCRIPT_FD, STDIN_FD, WAITS, WORD_FD, script
from sandbox.spec import Authority, Call, Mode, Network, SandboxSpec
from sandbox.streams import Ready, Streams
from sandbox.workspace import Workspace

POLL = 0.002
_PROGRAMS = ("/usr/", "/bin/")

# Which files of the host stand behind the mounts: device and inode; one that is not there has -1.
type Sources = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All that a parked sandbox is built with. `authority` has neither workspace nor timeout."""

    authority: Authority
    limits: Limits


def shape_of(authority: Authority, limits: Limits) -> Shape:
    """The shape that serves an authority."""
    return Shape(authority=structs.replace(authority, workspace=None, timeout=None), limits=limits)


def can_be_parked(shape: Shape) -> bool:
    """Full access shows the host's tree as it is at the start, and so is never built ahead."""
    return shape.authority.mode is Mode.SANDBOX


def suits(call: Call) -> bool:
    """Whether a command starts from a parked sandbox exactly as it would from one of its own.

    Not if bubblewrap may have to say why it cannot: a directory or a program that may be missing; nor what cannot be
    executed at all.
    """
    program = call.argv[0]
    if call.directory or "=" in program or any("\0" in word for word in call.argv):
        return False
    return "/" not in program or (
        program.startswith(_PROGRAMS)
        and os.path.normpath(program) == program
        and os.path.isfile(program)  # noqa: PTH113  False where it cannot be looked at
        and os.access(program, os.X_OK)
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Parked:
    """One of them. `ready`, `script`, `word` and `bridge` are its own until it is released. `since`: the loop's time.

    `waiting`: the pid of the shell that waits, `shell`: which program that is.
    """

    shape: Shape
    built: Built
    child: Child
    bridge: Bridge | None
    ready: Ready
    script: int
    word: int
    waiting: int
    shell: str
    sources: Sources
    since: float

    def serves(self, shape: Shape) -> bool:
        """Whether a session of this shape would be built with exactly what this one was built with."""
        return self.shape == shape and self.is_alive and self.sources == _identities(self.sources)

    @property
    def is_alive(self) -> bool:
        """Whether its processes are there, and it was not released yet."""
        return (
            self.word >= 0
            and not self.child.has_ended()
            and is_waiting(self.built.launched, self.built.init, self.waiting)
        )

    def release(self, spec: SandboxSpec, ground: Ground, workspace: Workspace | None, streams: Streams | None) -> Built:
        """Let it become the sandbox of `spec`. Without `streams` the command reads and writes /dev/null.

        Raises LaunchError, OSError or ValueError: nothing was executed; discard it.
        """
        if not self.serves(shape_of(spec.authority, self.shape.limits)):
            raise LaunchError(Code.SANDBOX_FAILED, "The parked sandbox is not of this shape.", "Start another one.")
        left = [name for name, _ in self.built.environment]
        construct.occupy(self.built, spec, ground, workspace)
        outlets = NOWHERE if streams is None else MERGED if streams.merged else APART
        told = script(
            spec.call.argv,
            self.built.environment,
            directory=self.built.directory,
            stdin=streams is not None and bool(streams.content),
            outlets=outlets,
            shell=self.shell,
            left=left,
        )
        if os.pwrite(self.script, told, 0) != len(told):
            raise OSError(0, "the command was not taken whole")
        os.write(self.word, GO)
        self._close()
        if streams is None:
            self.ready.close()
        else:
            streams.take(self.ready)
        return self.built

    async def discard(self) -> None:
        """Kill it and undo it; `bridge` stays, if somebody has taken it by now."""
        self.child.kill()
        await self.child.wait()
        self._close()
        os.close(self.built.launched.status_fd)
        self.ready.close()
        if self.bridge is not None:
            self.bridge.close()
            self.bridge = None
        self.built.settle()

    def _close(self) -> None:
        for fd in (self.script, self.word):
            if fd >= 0:
                os.close(fd)
        self.script = self.word = -1


async def park(shape: Shape, ground: Ground) -> Parked:
    """Build one. Raises LaunchError or OSError; then nothing is left."""
    with contextlib.ExitStack() as undo:
        bridge = _bridge(shape, ground)
        if bridge is not None:
            undo.callback(bridge.close)
        ready = Ready()
        undo.callback(ready.close)
        told = os.memfd_create("wicketgate", os.MFD_CLOEXEC)
        undo.callback(os.close, told)
        hears, word = os.pipe2(os.O_CLOEXEC)
        undo.callback(os.close, word)
        spec = SandboxSpec(call=Call(argv=WAITS), authority=shape.authority)
        sources = _sources(spec, ground)  # before they are mounted: what is exchanged meanwhile then differs
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        streams = {0: null, 1: ready.out.writer, 2: ready.err.writer, STDIN_FD: ready.stdin[0]}
        try:
            built = construct.park(
                spec,
                ground,
                limits=shape.limits,
                network=None if bridge is None else bridge.sandbox_fd,
                stdio={**streams, SCRIPT_FD: told, WORD_FD: hears},
            )
        finally:
            os.close(null)
            os.close(hears)
        undo.callback(built.abandon)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(HOLD_SECONDS):
            if built.launched.mounting is not None:
                await readable(built.launched.mounting.fileno(), loop.create_future())
                built.launched.close_mounting()
            while not construct.is_parked(built, shape.limits):  # noqa: ASYNC110  bubblewrap tells nobody
                await asyncio.sleep(POLL)
            built.begin()
            while (waiting := find_waiting(built.launched, built.init)) is None:  # noqa: ASYNC110  nor is this told
                await asyncio.sleep(POLL)
        shell = os.path.basename(os.readlink(f"/proc/{waiting}/exe"))  # noqa: PTH115, PTH119  no path of ours
        child = Child(built.launched.pid)
        undo.pop_all()
    return Parked(
        shape=shape,
        built=built,
        child=child,
        bridge=bridge,
        ready=ready,
        script=told,
        word=word,
        waiting=waiting,
        shell=shell,
        sources=sources,
        since=loop.time(),
    )


def _bridge(shape: Shape, ground: Ground) -> Bridge | None:
    if shape.authority.network is Network.NONE:
        return None
    assert ground.namespaces is not None
    try:
        return open_bridge()
    finally:
        os.setns(ground.namespaces.net, os.CLONE_NEWNET)


def _sources(spec: SandboxSpec, ground: Ground) -> Sources:
    mounted = plan(spec, ground.host.layout).operations
    return _identities(str(operation.source) for operation in mounted if isinstance(operation, Bind))


def _identities(paths: Iterable[str]) -> Sources:
    return {path: _identity(path) for path in paths}


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116  as bubblewrap: links are followed
    except OSError:
        return -1, -1
    return status.st_dev, status.st_ino
