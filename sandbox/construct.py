"""One sandbox, from a spec to a running command: the one construction path of `run` and of the runner.

In this order: survey the workspace and hold its absent names, lay the plan out, launch it held, compare what was
mounted with what was judged, bound it, let the command begin. Nothing of the command runs before all of that is done,
and a step that fails undoes those before it. What is to be done when everything of the sandbox is dead: `Built.settle`.

A parked sandbox (`sandbox.parked`) takes the same steps, those without a workspace ahead of time: `park`, and the begin
of a program that waits for a word; then `occupy`, where the workspace is surveyed, shown and compared.
"""

import codecs
import contextlib
import errno
import importlib
import os
import resource
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from netns import kernel
from sandbox.births import Entry
from sandbox.errors import Code, LaunchError
from sandbox.forking import Here, Starter
from sandbox.host import Host
from sandbox.launch import Launched, launch
from sandbox.limits import OOM_SCORE_ADJ, Limits, Rlimit, clamp, inner_rlimits, outer_rlimits
from sandbox.plan import HostLayout, Operation, plan
from sandbox.spec import Mode, SandboxSpec
from sandbox.supervise import children, read_process

if TYPE_CHECKING:  # loaded where there is a workspace or a control group: a command without them starts faster
    from sandbox import cgroups, protect
    from sandbox.protect import Finding
    from sandbox.workspace import Workspace

HOLD_SECONDS, POLL_SECONDS = 10.0, 0.0002
HOLD_ATTEMPTS = 5
KEPT_BACK = 1024  # descriptors of the hard limit that no payload may have
GITS = "git"  # below the state: repositories that payloads made at the top of a workspace
_AGAIN = "Start it again."
_TRY = "`wicketgate doctor` tries each step."


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """The runner's own network namespace, as a descriptor to come back to."""

    net: int


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What every sandbox of a process is built on.

    `state`: the server's own directory, for the held names; without one a workspace cannot be protected.
    `namespaces` and `starter`: None where the process builds one sandbox only and has unshared its pid namespace for
    it already. `keeper`: cleans up after a kill of this process; without one, too, a workspace cannot be protected.
    """

    host: Host
    state: Path | None = None
    support: "cgroups.Support | None" = None
    namespaces: Namespaces | None = None
    keeper: "protect.Keeper | None" = None
    starter: Starter | None = None


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """The protection of one session's workspace: the directory, what was found in it, the share in the held names."""

    root: int
    found: "protect.Survey"
    hold: "protect.Hold"


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
            argv=argv,
            environment=self.environment,
            directory=os.path.normpath(os.path.join(self.directory, directory)),  # noqa: PTH118  a path inside
            seccomp=self.seccomp,
            rlimits=_triples(self.rlimits),
            stdio=stdio,
            groups=self.members(),
            oom_score_adj=OOM_SCORE_ADJ,
        )

    def members(self) -> tuple[str, ...]:
        """The files that name the members of its groups."""
        return _members(self.group)

    def settle(self) -> "tuple[Finding, ...]":
        """Undo what the sandbox needed outside of itself, and make harmless what it planted in its workspace.

        Call it once, when all its processes are dead. The findings say what was set aside.
        """
        findings: tuple[Finding, ...] = ()
        if self.group is not None:
            _remove(self.group)
        if self.guard is not None:
            from sandbox import protect  # noqa: PLC0415  loaded by `build`

            try:
                findings = protect.settle(self.guard.root, self.guard.found)
            finally:
                self.guard.hold.release()
                os.close(self.guard.root)
                self.guard = None
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
        guard, operations = _guard(workspace, ground, undo)
        built = _start(spec, ground, limits, operations, network, stdio, undo)
        built.init, built.guard = _wait_held(built.launched), guard
        _verify(built.init, guard, workspace)
        if spec.call.directory:
            _check_directory(built)
        _bound(built, limits)
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
    init = _find_held(built.launched)
    if init is None:
        return False
    built.init = init
    _bound(built, limits)
    return True


def find_waiting(built: Built) -> int | None:
    """After `begin`: the pid of the program that was begun, once the filter holds for it. Raises LaunchError."""
    begun = children(built.init)
    if begun and _field(_status(begun[0]), "Seccomp") == "2":
        return begun[0]
    if not _lives_on(built.launched.pid):
        raise LaunchError(Code.SANDBOX_FAILED, "bubblewrap ended before the sandbox was parked.", _AGAIN)
    return None


def is_waiting(built: Built, program: int) -> bool:
    """Whether both of bubblewrap's processes and the waiting program are there, and none is about to end."""
    return all(map(_lives_on, (built.launched.pid, built.init, program))) and children(built.init) == [program]


def _lives_on(pid: int) -> bool:
    """Whether a process is neither dead nor about to be: SIGKILL stays pending until it takes effect (proc(5))."""
    status = _status(pid)
    killed = any(int(_field(status, name) or "0", 16) >> (signal.SIGKILL - 1) & 1 for name in ("SigPnd", "ShdPnd"))
    return _field(status, "State") not in {"", "Z", "X"} and not killed


def _status(pid: int) -> str:
    """A process's status file; empty where it is gone."""
    return read_process(f"{pid}/status").decode("ascii", "replace")


def _field(status: str, name: str) -> str:
    return status.partition(f"\n{name}:")[2].lstrip().partition("\n")[0].partition(" ")[0]


def occupy(built: Built, spec: SandboxSpec, ground: Ground, workspace: "Workspace | None") -> None:
    """Make a waiting sandbox that of `spec`, whose authority but for the workspace it was built with.

    Raises LaunchError or OSError: nothing was executed; abandon it.
    """
    with contextlib.ExitStack() as undo:
        guard, operations = _guard(workspace, ground, undo)
        laid_out = plan(spec, _layout(spec, ground.host), operations)
        if workspace is not None:
            from sandbox.show import show  # noqa: PLC0415

            show(built.init, laid_out.workspace)
        _verify(built.init, guard, workspace)
        undo.pop_all()
    built.spec, built.guard = spec, guard
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
    group = _group(ground.support, limits, undo)
    for members in _members(group)[:1]:  # the kernel takes one lock for all of them
        starter.expect_move(members)
    rlimits = clamp(outer_rlimits(limits, memory_bounded=_bounds_memory(group, ground)), _hard_limit)
    authority = structs.replace(spec.authority, rlimits=_triples(rlimits), tmp_bytes=limits.tmp_bytes)
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
        rlimits=(*rlimits, *_inner(limits)),
        environment=laid_out.environment,
        directory=laid_out.directory,
        starter=starter,
        group=group,
    )


def _inner(limits: Limits) -> tuple[Rlimit, ...]:
    return clamp(inner_rlimits(limits), _hard_limit)


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


def preload() -> None:
    """Load what a workspace needs, before a change of user that may make this interpreter unreadable."""
    for name in ("sandbox.protect", "sandbox.workspace"):
        importlib.import_module(name)
    for codec in ("ascii", "utf-8"):
        codecs.lookup(codec)


def _guard(
    workspace: "Workspace | None", ground: Ground, undo: contextlib.ExitStack
) -> tuple[Guard | None, tuple[Operation, ...]]:
    if workspace is None:
        return None, ()
    from sandbox import protect  # noqa: PLC0415
    from sandbox.workspace import WorkspaceError  # noqa: PLC0415

    state, keeper = ground.state, ground.keeper
    if state is None or keeper is None:  # a process that has the one has the other
        raise LaunchError(
            Code.NO_STATE_DIRECTORY,
            "There is no state directory, and without one a workspace cannot be protected.",
            "Set XDG_STATE_HOME to a directory that this user can write.",
        )
    try:
        root = _open(workspace)
        undo.callback(os.close, root)
        found, hold = _hold(root, state, keeper)
        undo.callback(hold.release)
        private = state / GITS / f"{workspace.device:x}-{workspace.inode:x}"
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
    except WorkspaceError as error:
        raise LaunchError(Code.BAD_WORKSPACE, f"{error.cause}.", f"{error.cure}.") from error
    except OSError as error:
        raise LaunchError(
            Code.BAD_WORKSPACE,
            f"The workspace {workspace.path} cannot be protected ({error.filename or 'it'}: {error.strerror}).",
            "The serving user needs every right over it, and space in the state directory.",
        ) from error
    guard = Guard(root=root, found=found, hold=hold)
    return guard, protect.operations(workspace.path, found, held=hold.held, private_git=private)


def _hold(root: int, state: Path, keeper: "protect.Keeper") -> "tuple[protect.Survey, protect.Hold]":
    """Survey and hold. Sessions come and go: a name that one of them held may be gone between the two."""
    from sandbox import protect  # noqa: PLC0415

    protect.take_away(root, state=state)
    for _ in range(HOLD_ATTEMPTS):
        found = protect.survey(root)
        hold = protect.hold(root, found, state=state, keep=keeper.take)
        try:
            protect.verify(root, found)
        except protect.MountsDifferError:
            hold.release()
        except BaseException:
            hold.release()
            raise
        else:
            return _without_held(found, hold.held), hold
    raise LaunchError(Code.BAD_WORKSPACE, "The workspace changes faster than it can be looked at.", _AGAIN)


def _without_held(found: "protect.Survey", held: tuple[str, ...]) -> "protect.Survey":
    """An empty directory that another session holds a name with is no file of the owner's: it is covered."""
    ours = set(held)
    return structs.replace(
        found,
        frozen=tuple(path for path in found.frozen if path not in ours),
        identities=frozenset((path, inode) for path, inode in found.identities if path not in ours),
    )


def _open(workspace: "Workspace") -> int:
    with workspace.opened() as place:
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _group(support: "cgroups.Support | None", limits: Limits, undo: contextlib.ExitStack) -> "cgroups.Group | None":
    if support is None or not (support.bounds_memory or support.bounds_tasks):
        return None
    from sandbox import cgroups  # noqa: PLC0415

    try:
        group = cgroups.create(support, os.urandom(8).hex(), limits)
    except cgroups.GroupError as error:
        cause = f"The session's control group cannot be made ({error})."
        raise LaunchError(Code.SANDBOX_FAILED, cause, "Start the runner again in a delegated group.") from error
    undo.callback(_remove, group)
    return group


def _members(group: "cgroups.Group | None") -> tuple[str, ...]:
    """The files that name the members of a group."""
    return (
        () if group is None else tuple(str(place / "cgroup.procs") for place in sorted(set(group.directories.values())))
    )


def _remove(group: "cgroups.Group") -> None:
    from sandbox import cgroups  # noqa: PLC0415

    with contextlib.suppress(cgroups.GroupError):
        group.remove()


def _bounds_memory(group: "cgroups.Group | None", ground: Ground) -> bool:
    return group is not None and ground.support is not None and ground.support.bounds_memory


def _wait_held(launched: Launched) -> int:
    """Wait until bubblewrap's child has mounted everything, given up all rights and waits; its pid."""
    deadline = time.monotonic() + HOLD_SECONDS
    if launched.mounting is not None:
        poll = select.poll()
        poll.register(launched.mounting, select.POLLIN)
        poll.poll(HOLD_SECONDS * 1000)
        launched.close_mounting()
    while True:
        found = _find_held(launched)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise LaunchError(Code.SANDBOX_FAILED, f"bubblewrap was not ready within {HOLD_SECONDS:g} s.", _AGAIN)
        time.sleep(POLL_SECONDS)


def _find_held(launched: Launched) -> int | None:
    found = children(launched.pid)
    if found and _has_no_capabilities(found[0]):
        return found[0]
    if os.waitid(os.P_PID, launched.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        raise LaunchError(Code.SANDBOX_FAILED, "bubblewrap could not build the sandbox.", _TRY)
    return None


def _has_no_capabilities(pid: int) -> bool:
    """bubblewrap's child drops them when the last mount is made, and asks to be let go right after that."""
    effective = _field(_status(pid), "CapEff")
    return effective != "" and int(effective, 16) == 0


def _verify(init: int, guard: Guard | None, workspace: "Workspace | None") -> None:
    if workspace is None or guard is None:
        return
    from sandbox import protect  # noqa: PLC0415

    try:
        place = f"/proc/{init}/root{workspace.path}"
        inside = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(inside)
            if (found.st_dev, found.st_ino) != (workspace.device, workspace.inode):
                raise protect.MountsDifferError("the workspace was exchanged for another directory")
            protect.verify(inside, guard.found, held=guard.hold.held)
        finally:
            os.close(inside)
    except (protect.MountsDifferError, OSError) as error:
        cause = f"The workspace changed while the sandbox was built: {error}."
        raise LaunchError(Code.BAD_WORKSPACE, cause, _AGAIN) from error


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


def _bound(built: Built, limits: Limits) -> None:
    try:
        for limit in _inner(limits):
            resource.prlimit(built.init, limit.resource, (limit.soft, limit.hard))
        Path(f"/proc/{built.init}/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
        if built.group is not None:
            built.group.add(built.init)
    except Exception as error:
        raise LaunchError(Code.SANDBOX_FAILED, f"The sandbox cannot be bounded ({error}).", _AGAIN) from error


def _abandon(launched: Launched) -> None:
    """Kill a sandbox whose command has not begun."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(launched.pid, 9)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(launched.pid, 0)
    launched.close()


def _hard_limit(number: int) -> int:
    hard = resource.getrlimit(number)[1]
    if number != resource.RLIMIT_NOFILE or hard == resource.RLIM_INFINITY:
        return hard
    # Whoever has as many descriptors in flight as a process of ours may have open keeps it from sending any (unix(7)).
    return hard - min(KEPT_BACK, hard // 2)


def _triples(limits: tuple[Rlimit, ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple((limit.resource, limit.soft, limit.hard) for limit in limits)
