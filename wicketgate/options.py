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
    from broker.policy.addresses import Address
    from broker.policy.authority import Authority
    from broker.policy.rules import Policy
    from sandbox.workspace import Workspace

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
) -> int:
    """Run the command; the exit code. Raises UsageError, LaunchError or Interrupted: nothing of it was executed."""
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
    rules = _policy(allow, None if policy is None else Path(policy), private)
    if rules is None and (resolve or cacert):
        raise UsageError("--resolve and --cacert only mean something together with --allow or --policy.")
    request = Request(
        argv=command,
        policy=rules,
        grant=_grant(grant, socket),
        judged=_workspace(workspace),
        fixed=_fixed(resolve),
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


def _policy(allow: tuple[str, ...], file: Path | None, private: tuple[str, ...]) -> "Policy | None":
    if not (allow or private or file):
        return None
    if allow and file is not None:
        raise UsageError("--allow and --policy exclude each other: put the rules into the file.")
    if file is not None and private:
        raise UsageError("--private goes with --allow; in a policy file it is the rule's `addresses`.")
    if private and not allow:
        raise UsageError("--private only means something together with --allow: it says where allowed names may lead.")
    from broker.policy.problems import PolicyError  # noqa: PLC0415

    try:
        if file is not None:
            from broker.policy.load import load_policy  # noqa: PLC0415  presets and TOML: 8 ms

            return load_policy(file)
        from broker.policy.allows import policy_from_allows  # noqa: PLC0415

        return policy_from_allows(allow, private)
    except PolicyError as error:
        raise UsageError(str(error)) from error


def _fixed(resolve: tuple[str, ...]) -> "dict[Authority, tuple[Address, ...]]":
    if not resolve:
        return {}
    from broker.policy.addresses import parse_address  # noqa: PLC0415
    from broker.policy.authority import parse_authority  # noqa: PLC0415
    from broker.policy.reasons import Refusal  # noqa: PLC0415

    fixed: dict[Authority, tuple[Address, ...]] = {}
    for text in resolve:
        found = re.fullmatch(r"([^:]+:[0-9]+):(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Fa-f:.]+))", text, re.ASCII)
        address = parse_address(found[2] or found[3]) if found else None
        if found is None or address is None:
            raise UsageError(f"--resolve {text!r} is not HOST:PORT:ADDR, for example api.example.com:443:192.0.2.7.")
        try:
            authority = parse_authority(os.fsencode(found[1]), default_port=None)
        except Refusal as refusal:
            raise UsageError(f"--resolve {text!r}: {refusal.detail}.") from refusal
        fixed[authority] = (*fixed.get(authority, ()), address)
    return fixed


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
