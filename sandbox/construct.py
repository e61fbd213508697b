"""One sandbox, from a spec to a running command: the one construction path of `run` and of the runner.

In this order: survey the workspace and hold its absent names, lay the plan out, launch it held, compare what was
mounted with what was judged, bound it, let the command begin. Nothing of the command runs before all of that is done,
and a step that fails undoes those before it. What is to be done when everything of the sandbox is dead: `Built.settle`.

A parked sandbox (`sandbox.parked`) takes the same steps, those without a workspace ahead of time: `park`, and the begin
of a program that waits for a word; then `occupy`, where the workspace is surveyed, shown and compared.
"""

import contextlib
import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from netns import kernel
from sandbox.births import Entry
from sandbox.bounds import bound, inner, make_group, members, outer, remove_group, triples
from sandbox.errors import Code, LaunchError
from sandbox.forking import Here, Starter
from sandbox.ground import Ground
from sandbox.guarding import Guard, guard_workspace, verify_workspace
from sandbox.held import find_held, wait_held
from sandbox.host import Host
from sandbox.launch import Launched, launch
from sandbox.limits import OOM_SCORE_ADJ, Limits, Rlimit
from sandbox.plan import HostLayout, Operation, plan
from sandbox.spec import Mode, SandboxSpec

if TYPE_CHECKING:  # loaded where there is a workspace or a control group: a command without them starts faster
    from sandbox import cgroups
    from sandbox.protect import Finding
    from sandbox.workspace import Workspace


class Built(msgspec.Struct, kw_only=True):
    """A running sandbox. `init` is its process 1, `launched.pid` the bubblewrap outside of it."""

    spec: SandboxSpec
    launched: Launched
    init: int
    seccomp: bytes
    rlimits: tuple[Rlimit, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    starter: Starter
    group: "cgroups.Group | None" = None
    guard: Guard | None = None

    def begin(self) -> None:
        """Let the command begin. Once."""
        os.write(self.launched.release_fd, b"\n")
        os.close(self.launched.release_fd)
        self.launched.release_fd = -1

    def abandon(self) -> None:
        """Kill a sandbox whose command has not begun, and undo what it needed."""
        _abandon(self.launched)
        self.settle()

    def entry(self, argv: tuple[str, ...], stdio: Mapping[int, int], *, directory: str = "") -> Entry:
        """A further command in it, under the very same restrictions. `directory` is relative to the first command's."""
        return Entry(
            init=self.init,
            parent=self.launched.pid,
            argv=argv,
            environment=self.environment,
            directory=os.path.normpath(os.path.join(self.directory, directory)),  # noqa: PTH118  a path inside
            seccomp=self.seccomp,
            rlimits=triples(self.rlimits),
            stdio=stdio,
            groups=self.members(),
            oom_score_adj=OOM_SCORE_ADJ,
        )

    def members(self) -> tuple[str, ...]:
        """The files that name the members of its groups."""
        return members(self.group)

    def settle(self) -> "tuple[Finding, ...]":
        """Undo what the sandbox needed outside of itself, and make harmless what it planted in its workspace.

        Call it once, when all its processes are dead. The findings say what was set aside.
        """
        findings: tuple[Finding, ...] = ()
        if self.group is not None:
            remove_group(self.group)
        if self.guard is not None:
            guard, self.guard = self.guard, None
            findings = guard.settle()
        return findings


def build(  # noqa: PLR0913  one parameter a part
    spec: SandboxSpec,
    ground: Ground,
    *,
    limits: Limits | None = None,
    workspace: "Workspace | None" = None,
    network: int | None = None,
    stdio: Mapping[int, int] | None = None,
) -> Built:
    """Build the sandbox and start its command. Raises LaunchError: then nothing was executed and nothing is left.

    `workspace` is the judged value behind the spec's path; `network` a namespace for the sandbox, None where the spec
    wants none or the calling thread is in it already; `stdio` as for `launch`.
    """
    limits = limits or Limits()
    with contextlib.ExitStack() as undo:
        found, operations = guard_workspace(workspace, ground, undo)
        built = _start(spec, ground, limits, operations, network, stdio, undo)
        built.init, built.guard = wait_held(built.launched), found
        verify_workspace(built.init, found, workspace)
        if spec.call.directory:
            _check_directory(built)
        bound(built.init, built.group, limits)
        built.begin()
        undo.pop_all()
    return built


def park(spec: SandboxSpec, ground: Ground, *, limits: Limits, network: int | None, stdio: Mapping[int, int]) -> Built:
    """Start building a sandbox without a workspace, held: ask `is_parked` until it is. Raises LaunchError."""
    with contextlib.ExitStack() as undo:
        built = _start(spec, ground, limits, (), network, stdio, undo, urgent=False)
        undo.pop_all()
    return built


def is_parked(built: Built, limits: Limits) -> bool:
    """Whether everything is mounted and given up; from then on it is bounded, too. Raises LaunchError: abandon it."""
    init = find_held(built.launched)
    if init is None:
        return False
    built.init = init
    bound(built.init, built.group, limits)
    return True


def occupy(built: Built, spec: SandboxSpec, ground: Ground, workspace: "Workspace | None") -> None:
    """Make a waiting sandbox that of `spec`, whose authority but for the workspace it was built with.

    Raises LaunchError or OSError: nothing was executed; abandon it.
    """
    with contextlib.ExitStack() as undo:
        found, operations = guard_workspace(workspace, ground, undo)
        laid_out = plan(spec, _layout(spec, ground.host), operations)
        if workspace is not None:
            from sandbox.show import show  # noqa: PLC0415

            show(built.init, laid_out.workspace)
        verify_workspace(built.init, found, workspace)
        undo.pop_all()
    built.spec, built.guard = spec, found
    built.environment, built.directory = laid_out.environment, laid_out.directory


def _start(  # noqa: PLR0913, PLR0917  one parameter a part
    spec: SandboxSpec,
    ground: Ground,
    limits: Limits,
    operations: tuple[Operation, ...],
    network: int | None,
    stdio: Mapping[int, int] | None,
    undo: contextlib.ExitStack,
    *,
    urgent: bool = True,
) -> Built:
    """Launch it held; its `init` is not known yet."""
    starter = ground.starter or Here(announce=None if ground.keeper is None else ground.keeper.announce)
    group = make_group(ground.support, limits, undo)
    for path in members(group)[:1]:  # the kernel takes one lock for all of them
        starter.expect_move(path)
    rlimits = outer(limits, group=group, support=ground.support)
    authority = structs.replace(spec.authority, rlimits=triples(rlimits), tmp_bytes=limits.tmp_bytes)
    laid_out = plan(structs.replace(spec, authority=authority), _layout(spec, ground.host), operations)
    seccomp = _filter(spec, ground.host)
    launched = launch(
        laid_out,
        bwrap_fd=ground.host.bwrap_fd,
        seccomp=seccomp,
        stdio=stdio,
        held=True,
        network=network,
        starter=starter,
        urgent=urgent,
    )
    undo.callback(_abandon, launched)
    return Built(
        spec=spec,
        launched=launched,
        init=0,
        seccomp=seccomp,
        rlimits=(*rlimits, *inner(limits)),
        environment=laid_out.environment,
        directory=laid_out.directory,
        starter=starter,
        group=group,
    )


def _filter(spec: SandboxSpec, host: Host) -> bytes:
    """The system call filter; under full access no unix socket can be made, so none of the host's can be reached."""
    if spec.authority.mode is Mode.SANDBOX:
        return host.seccomp
    from sandbox.seccomp.no_sockets import before  # noqa: PLC0415

    return before(host.seccomp, os.uname().machine)


def _layout(spec: SandboxSpec, host: Host) -> HostLayout:
    if spec.authority.mode is Mode.SANDBOX:
        return host.layout
    own = {str(path) for path in spec.authority.hidden if os.path.isdir(path)}  # noqa: PTH112  False where it may not be seen
    return structs.replace(host.layout, present=host.layout.present | own)


def _check_directory(built: Built) -> None:
    """Refuse a directory that is not there, which bubblewrap would say where the command speaks."""
    try:
        root = os.open(f"/proc/{built.init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(kernel.open_in_root(root, built.directory, os.O_PATH | os.O_DIRECTORY))
        finally:
            os.close(root)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return  # a container's filter of before Linux 5.6: bubblewrap says it
        cause = f"The directory {built.directory!r} cannot be entered in the sandbox ({error.strerror})."
        raise LaunchError(Code.BAD_CALL, cause, "Name a directory of the workspace.") from error


def _abandon(launched: Launched) -> None:
    """Kill a sandbox whose command has not begun."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(launched.pid, 9)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(launched.pid, 0)
    launched.close()
