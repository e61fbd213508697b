"""What the options of `wicketgate run` mean: checked, looked up, run, told."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.spec import Terminal
from wicketgate.guard import UsageError
from wicketgate.report import report
from wicketgate.run import Request, run
from wicketgate.speech import load_documents
from wicketgate.start import load_capture

if TYPE_CHECKING:  # loaded where something is allowed; a command without a network needs none of it
    from sandbox.workspace import Workspace
    from wicketgate.brokered import OwnBroker

MAX_CERTIFICATES = 4 << 20
MAX_TIMEOUT = 366 * 24 * 3600  # seconds


def run_typed(  # noqa: PLR0913  one parameter an option
    *,
    command: tuple[str, ...],
    workspace: str | None = None,
    allow: tuple[str, ...] = (),
    policy: str | Path | None = None,
    grant: str | None = None,
    socket: str | None = None,
    resolve: tuple[str, ...] = (),
    cacert: tuple[str | Path, ...] = (),
    private: tuple[str, ...] = (),
    timeout: float | None = None,
    runner: str | None = None,
    json: bool = False,
    broker: "OwnBroker | None" = None,
) -> int:
    """Run the command; the exit code. `broker`: the one that was told what is allowed, where something is.

    Raises UsageError, LaunchError or Interrupted: nothing of it was executed.
    """
    if grant is not None and (allow or policy or resolve or cacert or private):
        raise UsageError("With --grant the running broker's policy and configuration hold; name no others.")
    if timeout is not None and not 0 < timeout <= MAX_TIMEOUT:
        raise UsageError(f"--timeout {timeout:g} is not a number of seconds above 0 and up to {MAX_TIMEOUT}.")
    if runner is not None:
        if allow or policy or socket or resolve or cacert or private or json:
            raise UsageError("With --runner there are --workspace, --grant and --timeout; the rest is the runner's.")
        if not runner or workspace == "":
            raise UsageError("--runner and --workspace cannot be empty.")
        from wicketgate.through import run_through  # noqa: PLC0415  the one case that needs it

        return run_through(runner=runner, command=command, workspace=workspace, grant=_grant_id(grant), timeout=timeout)
    if json:
        load_documents()
        load_capture()
    _check_rules(allow=bool(allow), policy=policy is not None, private=bool(private))
    if broker is None and (resolve or cacert):
        raise UsageError("--resolve and --cacert only mean something together with --allow or --policy.")
    if broker is not None and (problem := broker.problem()) is not None:
        raise UsageError(problem)
    request = Request(
        argv=command,
        broker=broker,
        grant=_grant(grant, socket),
        judged=_workspace(workspace),
        certificates=tuple(_certificates(Path(path)) for path in cacert),
        timeout=timeout,
        terminal=_terminal(),
        capture=json,
    )
    return report(run(request), as_json=json)


def _grant(grant: str | None, socket: str | None) -> tuple[str, Path] | None:
    if grant is None:
        if socket is not None:
            raise UsageError("--socket only means something together with --grant.")
        return None
    from broker.control.places import NoRuntimeDirectory, default_socket  # noqa: PLC0415

    _grant_id(grant)
    try:
        return grant, Path(socket) if socket is not None else default_socket("attach", os.environ, os.geteuid())
    except NoRuntimeDirectory as error:
        raise UsageError(f"--grant: {error}, or name the broker's attach socket with --socket.") from error


def _grant_id(grant: str | None) -> str | None:
    if grant is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", grant):
        raise UsageError(f"--grant {grant!r} is not the id of a grant; `wicketgate grant list` shows them.")
    return grant


def _check_rules(*, allow: bool, policy: bool, private: bool) -> None:
    if allow and policy:
        raise UsageError("--allow and --policy exclude each other: put the rules into the file.")
    if policy and private:
        raise UsageError("--private goes with --allow; in a policy file it is the rule's `addresses`.")
    if private and not allow:
        raise UsageError("--private only means something together with --allow: it says where allowed names may lead.")


def _workspace(path: str | None) -> "Workspace | None":
    if path is None:
        return None
    if not path:
        raise UsageError("--workspace is empty; name a directory.")
    from broker.audit.location import NoStateDirectory, default_state_dir  # noqa: PLC0415
    from sandbox.workspace import WorkspaceError, forbidden_roots, validate_workspace  # noqa: PLC0415

    uid = os.geteuid()
    try:
        state = [default_state_dir(os.environ, uid)]
    except NoStateDirectory:
        state = []
    try:
        typed = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118  `..` after a link is the kernel's to resolve
        # Root may name a directory of anybody's; the payload then writes there as its owner (sandbox.ownership).
        owner = uid or os.stat(typed).st_uid  # noqa: PTH116
        return validate_workspace(typed, forbidden=forbidden_roots(uid=uid, state=state), uid=owner)
    except WorkspaceError as error:
        raise UsageError(f"--workspace: {error}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"--workspace {path!r}: {getattr(error, 'strerror', None) or error}.") from error


def _certificates(path: Path) -> bytes:
    try:
        # Not blocked by a FIFO, nor fed for ever by a device.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(MAX_CERTIFICATES + 1) or b""
    except (OSError, ValueError) as error:
        raise UsageError(f"--cacert {str(path)!r}: {getattr(error, 'strerror', None) or error}.") from error
    if len(content) > MAX_CERTIFICATES:
        raise UsageError(
            f"--cacert {str(path)!r} is larger than {MAX_CERTIFICATES} bytes; name a file of certificates."
        )
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise UsageError(f"--cacert {str(path)!r} holds no PEM certificate; convert it with `openssl x509`.")
    return content


def _terminal() -> Terminal:
    environ = os.environ
    return Terminal(
        term=environ.get("TERM", ""),
        color=environ.get("COLORTERM", ""),
        language=environ.get("LC_ALL") or environ.get("LANG", ""),
        timezone=environ.get("TZ", ""),
    )
