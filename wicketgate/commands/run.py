"""`wicketgate run`: read the command line, run, say how it went."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandbox.errors import Code
from sandbox.spec import Terminal
from sandbox.supervise import Ending
from wicketgate.output import Stream
from wicketgate.run import Outcome, Request, run
from wicketgate.speech import load_documents, print_document, say
from wicketgate.through import run_through

if TYPE_CHECKING:  # loaded where something is allowed; a command without a network needs none of it
    from broker.policy.addresses import Address
    from broker.policy.authority import Authority
    from broker.policy.rules import Policy
    from sandbox.workspace import Workspace

REFUSED = 125
MAX_CERTIFICATES = 4 << 20
MAX_TIMEOUT = 366 * 24 * 3600  # seconds


@click.command(name="run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--workspace", metavar="DIR", help="Show this directory inside, writable.")
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="Reach this host (default ports: 443 and 80).")
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Allow what this policy file allows.",
)
@click.option("--grant", metavar="ID", help="Run under a grant of a running broker.")
@click.option("--socket", metavar="PATH", help="With --grant: the broker's attach socket, if not in the usual place.")
@click.option("--resolve", multiple=True, metavar="HOST:PORT:ADDR", help="Use this address instead of a look-up.")
@click.option(
    "--cacert",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Trust these certificates too (PEM).",
)
@click.option("--private", multiple=True, metavar="CIDR", help="Let allowed names resolve to these addresses.")
@click.option("--timeout", type=float, metavar="S", help="End everything after this many seconds (exit code 124).")
@click.option(
    "--runner",
    metavar="SOCKET",
    help="Run it through this running runner. Its standard input is read to the end first; nothing else is passed on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the command's output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(  # noqa: PLR0913, PLR0917  one parameter an option
    workspace: str | None,
    allow: tuple[str, ...],
    policy_file: Path | None,
    grant: str | None,
    socket: str | None,
    resolve: tuple[str, ...],
    cacert: tuple[Path, ...],
    private: tuple[str, ...],
    timeout: float | None,
    runner: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND in a sandbox that has no network, or one cable to what --allow names."""
    if grant is not None and (allow or policy_file or resolve or cacert or private):
        raise click.UsageError("With --grant the running broker's policy and configuration hold; name no others.")
    if timeout is not None and not 0 < timeout <= MAX_TIMEOUT:
        raise click.UsageError(f"--timeout {timeout:g} is not a number of seconds above 0 and up to {MAX_TIMEOUT}.")
    if runner is not None:
        if allow or policy_file or socket or resolve or cacert or private or as_json:
            raise click.UsageError(
                "With --runner there are --workspace, --grant and --timeout; the rest is the runner's."
            )
        if not runner or workspace == "":
            raise click.UsageError("--runner and --workspace cannot be empty.")
        return run_through(
            runner=runner, command=list(command), workspace=workspace, grant=_grant_id(grant), timeout=timeout
        )
    if as_json:
        load_documents()
    policy = _policy(allow, policy_file, private)
    if policy is None and (resolve or cacert):
        raise click.UsageError("--resolve and --cacert only mean something together with --allow or --policy.")
    request = Request(
        argv=command,
        policy=policy,
        grant=_grant(grant, socket),
        judged=_workspace(workspace),
        fixed=_fixed(resolve),
        certificates=tuple(_certificates(path) for path in cacert),
        timeout=timeout,
        terminal=_terminal(),
        capture=as_json,
    )
    return _report(run(request), as_json=as_json)


def _grant(grant: str | None, socket: str | None) -> tuple[str, Path] | None:
    if grant is None:
        if socket is not None:
            raise click.UsageError("--socket only means something together with --grant.")
        return None
    from broker.control.places import NoRuntimeDirectory, default_socket  # noqa: PLC0415

    _grant_id(grant)
    try:
        return grant, Path(socket) if socket is not None else default_socket("attach", os.environ, os.geteuid())
    except NoRuntimeDirectory as error:
        raise click.UsageError(f"--grant: {error}, or name the broker's attach socket with --socket.") from error


def _grant_id(grant: str | None) -> str | None:
    if grant is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", grant):
        raise click.UsageError(f"--grant {grant!r} is not the id of a grant; `wicketgate grant list` shows them.")
    return grant


def _policy(allow: tuple[str, ...], file: Path | None, private: tuple[str, ...]) -> "Policy | None":
    if not (allow or private or file):
        return None
    if allow and file is not None:
        raise click.UsageError("--allow and --policy exclude each other: put the rules into the file.")
    if file is not None and private:
        raise click.UsageError("--private goes with --allow; in a policy file it is the rule's `addresses`.")
    if private and not allow:
        raise click.UsageError(
            "--private only means something together with --allow: it says where allowed names may lead."
        )
    from broker.policy.allows import policy_from_allows  # noqa: PLC0415
    from broker.policy.load import load_policy  # noqa: PLC0415
    from broker.policy.problems import PolicyError  # noqa: PLC0415

    try:
        return load_policy(file) if file is not None else policy_from_allows(allow, private)
    except PolicyError as error:
        raise click.UsageError(str(error)) from error


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
            raise click.UsageError(
                f"--resolve {text!r} is not HOST:PORT:ADDR, for example api.example.com:443:192.0.2.7."
            )
        try:
            authority = parse_authority(os.fsencode(found[1]), default_port=None)
        except Refusal as refusal:
            raise click.UsageError(f"--resolve {text!r}: {refusal.detail}.") from refusal
        fixed[authority] = (*fixed.get(authority, ()), address)
    return fixed


def _workspace(path: str | None) -> "Workspace | None":
    if path is None:
        return None
    if not path:
        raise click.UsageError("--workspace is empty; name a directory.")
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
        raise click.UsageError(f"--workspace: {error}") from error
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--workspace {path!r}: {getattr(error, 'strerror', None) or error}.") from error


def _certificates(path: Path) -> bytes:
    try:
        # Not blocked by a FIFO, nor fed for ever by a device.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(MAX_CERTIFICATES + 1) or b""
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--cacert {str(path)!r}: {getattr(error, 'strerror', None) or error}.") from error
    if len(content) > MAX_CERTIFICATES:
        raise click.UsageError(
            f"--cacert {str(path)!r} is larger than {MAX_CERTIFICATES} bytes; name a file of certificates."
        )
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise click.UsageError(f"--cacert {str(path)!r} holds no PEM certificate; convert it with `openssl x509`.")
    return content


def _terminal() -> Terminal:
    environ = os.environ
    return Terminal(
        term=environ.get("TERM", ""),
        color=environ.get("COLORTERM", ""),
        language=environ.get("LC_ALL") or environ.get("LANG", ""),
        timezone=environ.get("TZ", ""),
    )


def _report(outcome: Outcome, *, as_json: bool) -> int:
    ending, finished = outcome.ending, outcome.finished
    if as_json:
        return ending.code if print_document(_document(outcome)) else REFUSED
    trouble = _trouble(ending)
    if trouble is not None:
        say(trouble[1])
    if finished is not None:
        failures = f", {finished.failures} failed" if finished.failures else ""
        counts = f"{finished.allowed} allowed, {finished.denied} denied{failures}"
        say(f"{counts}; session {outcome.session} in {finished.log}")
    return ending.code


def _trouble(ending: Ending) -> tuple[str, str] | None:
    """What ended the run beside the command itself: a code and a sentence."""
    if ending.broker_gone:
        return Code.BROKER_GONE, "the broker has gone; the command was ended, because it had no network any more"
    if ending.keeper_gone:
        return Code.KEEPER_GONE, "the process that cleans up after a kill has gone; the command was ended"
    if ending.lost:
        return Code.SANDBOX_LOST, "the sandbox's own process was killed from outside; everything in it has ended"
    if ending.timed_out:
        return Code.TIMED_OUT, "the time limit is over; everything in the sandbox was ended"
    if not ending.started and ending.code == REFUSED:
        return Code.SANDBOX_FAILED, "the sandbox could not be set up, so the command was not started"
    return None


def _document(outcome: Outcome) -> dict[str, object]:
    finished = outcome.finished
    document: dict[str, object] = {
        "session": outcome.session,
        "exit_code": outcome.ending.code,
        "started": outcome.ending.started,
        "timed_out": outcome.ending.timed_out,
    }
    trouble = _trouble(outcome.ending)
    if trouble is not None:
        document["error"] = {"code": trouble[0], "message": trouble[1]}
    if outcome.output is not None:
        document["stdout"] = _text(outcome.output.stdout)
        document["stderr"] = _text(outcome.output.stderr)
    if finished is not None:
        document["network"] = {
            "allowed": finished.allowed,
            "denied": finished.denied,
            "failures": finished.failures,
            "log": finished.log,
        }
    return document


def _text(stream: Stream) -> dict[str, object]:
    return {"text": stream.kept.decode("utf-8", "replace"), "dropped_bytes": stream.dropped}
