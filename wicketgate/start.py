"""What one run is made from and how it starts: the request, what is looked up before anything is made, the drop.

After `Start.dropped` nothing may be imported: the serving user may not be able to read this interpreter.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from netns.kernel import enter_user_namespace, explain_namespaces
from sandbox.construct import build
from sandbox.errors import Code, LaunchError
from sandbox.ground import Ground
from sandbox.guarding import preload
from sandbox.host import Host
from sandbox.spec import Authority as Rights
from sandbox.spec import Call, SandboxSpec, Terminal
from sandbox.supervise import Ending, check_interrupted, supervise
from wicketgate.identity import Identity, lend_pipes, prepare_state
from wicketgate.memory import settle_memory
from wicketgate.speech import say

if TYPE_CHECKING:  # a command without a network needs none of these, and they are most of the start's time
    from broker.control.messages import Finished
    from sandbox.protect import Keeper
    from sandbox.workspace import Workspace
    from wicketgate.brokered import OwnBroker
    from wicketgate.output import Capture, Captured


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One `wicketgate run`. Without `broker` and `grant` it has no network.

    `broker`: its own, which knows what is allowed. `grant`: the id of a grant and the attach socket of the broker that
    issued it. `judged`: the workspace.
    """

    argv: tuple[str, ...]
    broker: "OwnBroker | None" = None
    grant: tuple[str, Path] | None = None
    judged: "Workspace | None" = None
    certificates: tuple[bytes, ...] = ()
    timeout: float | None = None
    terminal: Terminal = msgspec.field(default_factory=Terminal)
    capture: bool = False

    @property
    def workspace(self) -> Path | None:
        """The path of the judged workspace."""
        return None if self.judged is None else self.judged.path


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it went. `finished` is None without a broker, `output` without capture."""

    session: str
    ending: Ending
    finished: "Finished | None" = None
    output: "Captured | None" = None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked up and loaded before anything is made."""

    request: Request
    session: str
    host: Host
    identity: Identity
    state: Path | None = None  # where the held names of a workspace are kept

    @contextlib.contextmanager
    def dropped(self) -> Iterator[Ground]:
        """Give up what only root has for good, and enter the user namespace; what to build on. Raises LaunchError.

        A workspace gets a keeper, which stays outside and is gone at the end of the context.
        """
        if not self.identity.is_current:
            if self.request.workspace is not None:
                from sandbox.ownership import lend_workspace  # noqa: PLC0415

                lend_workspace(self.request.workspace, uid=self.identity.uid, gid=self.identity.gid)
            lend_pipes(self.identity)
        self.identity.become()
        keeper = self._start_keeper()
        try:
            self._enter_namespaces()
            yield Ground(host=self.host, state=self.state, keeper=keeper)
        finally:
            if keeper is not None:
                keeper.stop()

    def _start_keeper(self) -> "Keeper | None":
        if self.request.judged is None:
            return None
        from sandbox.protect import start_keeper  # noqa: PLC0415  loaded by `workspace_state`

        return start_keeper()

    def _enter_namespaces(self) -> None:
        try:
            enter_user_namespace(os.CLONE_NEWPID)
        except OSError as error:
            raise LaunchError(
                Code.NO_USER_NAMESPACES,
                f"The kernel refuses a user namespace ({explain_namespaces(error)}).",
                "`wicketgate doctor` names the layer that forbids it and what to change.",
            ) from error

    def execute(
        self,
        ground: Ground,
        rights: Rights,
        *,
        broker: int | None = None,
        drains: Mapping[int, Callable[[], bool]] | None = None,
    ) -> "tuple[Ending, Captured | None]":
        """Start the command and wait for its end. `ground`: from `dropped`.

        `broker`: a child whose end ends the command. `drains`: further descriptors to look after, as in `supervise`.
        """
        request = self.request
        spec = SandboxSpec(
            call=Call(argv=request.argv, timeout=request.timeout), authority=rights, terminal=request.terminal
        )
        capture = _capture() if request.capture else None
        with contextlib.nullcontext() if capture is None else capture:
            stdio = capture.stdio if capture is not None else {}
            check_interrupted()
            try:
                built = build(spec, ground, workspace=request.judged, stdio=stdio)
            except LaunchError as error:
                if capture is None:
                    raise
                from sandbox.last_words import with_last_words  # noqa: PLC0415  loaded by `load_capture`

                raise with_last_words(error, capture.errors) from error
            keeper = None if ground.keeper is None else ground.keeper.pid
            settle_memory()
            watched = {**(drains or {}), **(capture.drains() if capture is not None else {})}
            ending = supervise(built.launched, timeout=spec.timeout, broker=broker, keeper=keeper, drains=watched)
            for finding in built.settle():
                say(f"{finding.path} was {finding.done}")
        return ending, capture.result() if capture is not None else None


def load_capture() -> None:
    """Load what a run needs whose output is captured."""
    for name in ("sandbox.last_words", "wicketgate.output"):
        importlib.import_module(name)


def _capture() -> "Capture":
    from wicketgate.output import Capture  # noqa: PLC0415  loaded by `load_capture`

    return Capture()


def workspace_state(identity: Identity) -> Path:
    """The state directory, made for the serving user, with what a workspace needs loaded. Raises LaunchError."""
    from broker.audit.location import NoStateDirectory, default_state_dir  # noqa: PLC0415

    preload()
    cure = "Set XDG_STATE_HOME to a directory that this user can write."
    try:
        state = default_state_dir(os.environ, os.geteuid())
        prepare_state(state, identity)
    except (NoStateDirectory, OSError) as error:
        cause = f"There is no state directory ({error}), and without one a workspace cannot be protected."
        raise LaunchError(Code.NO_STATE_DIRECTORY, cause, cure) from error
    return state
