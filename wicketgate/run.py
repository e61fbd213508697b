"""`wicketgate run`: one sandboxed command, with a cable to a broker of its own if something is allowed.

The order matters: look while the host's owners are visible, start the broker, drop to the serving user, enter the user
namespace, build the bridge, hand it over, start the payload, wait.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from broker.audit.location import default_state_dir
from broker.control.messages import Finished
from broker.control.settings import Settings
from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.rules import Policy
from certs.errors import TrustBundleError
from certs.kit import prepare_kit
from netns.bridge import Bridge, build_bridge
from netns.kernel import enter_user_namespace
from netns.netlink import NetlinkError
from sandbox.errors import Code, LaunchError
from sandbox.host import Host, find_command, look_at_host
from sandbox.launch import launch
from sandbox.plan import plan
from sandbox.seccomp import Architecture, filter_for
from sandbox.spec import Authority as Rights
from sandbox.spec import Call, Mount, Network, SandboxSpec, Terminal
from sandbox.supervise import Ending, block_signals, supervise
from wicketgate.brokered import OwnBroker, start_broker
from wicketgate.identity import Identity, prepare_state, serving_identity
from wicketgate.output import Capture, Captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One `wicketgate run`. `policy` is None for a sandbox without a network."""

    argv: tuple[str, ...]
    policy: Policy | None = None
    workspace: Path | None = None
    fixed: Mapping[Authority, tuple[Address, ...]] = field(default_factory=dict)
    certificates: tuple[bytes, ...] = ()
    timeout: float | None = None
    terminal: Terminal = field(default_factory=Terminal)
    capture: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it went. `finished` is None without a broker, `output` without capture."""

    session: str
    ending: Ending
    finished: Finished | None = None
    output: Captured | None = None


def run(request: Request) -> Outcome:
    """Run the command to its end. Raises LaunchError before anything of the command was executed."""
    host = look_at_host()
    find_command(request.argv[0], request.workspace)
    # Everything that is loaded on first use is loaded now: the serving user may not be able to read this interpreter.
    seccomp = filter_for(Architecture.of(os.uname().machine))
    identity = serving_identity()
    session = secrets.token_hex(8)
    block_signals()
    with contextlib.ExitStack() as undo:
        if request.policy is None:
            return _run_alone(request, host, seccomp, identity, session)
        state = default_state_dir(os.environ, os.geteuid())
        _prepare_state(state, identity)
        settings = Settings(policy=request.policy, state=state, certificates=request.certificates, fixed=request.fixed)
        broker = start_broker(identity, settings)
        undo.callback(broker.stop)
        trust = _trust(state, request, broker.greeting(), identity)
        return _run_brokered(request, host, seccomp, identity, session, broker, trust)


def _run_alone(request: Request, host: Host, seccomp: bytes, identity: Identity, session: str) -> Outcome:
    identity.become()
    _enter_namespaces()
    ending, output = _execute(request, host, seccomp, Rights(workspace=request.workspace), broker=None)
    return Outcome(session=session, ending=ending, output=output)


def _run_brokered(  # noqa: PLR0913, PLR0917
    request: Request,
    host: Host,
    seccomp: bytes,
    identity: Identity,
    session: str,
    broker: OwnBroker,
    trust: Rights,
) -> Outcome:
    identity.become()
    _enter_namespaces()
    with _bridge() as bridge:
        broker.attach(session, bridge)
        ending, output = _execute(request, host, seccomp, trust, broker=broker.pid)
        finished = broker.finish(bridge.count_refused())
    return Outcome(session=session, ending=ending, finished=finished, output=output)


def _execute(
    request: Request, host: Host, seccomp: bytes, rights: Rights, *, broker: int | None
) -> tuple[Ending, Captured | None]:
    call = Call(argv=request.argv, timeout=request.timeout)
    spec = SandboxSpec(call=call, authority=rights, terminal=request.terminal)
    capture = Capture() if request.capture else None
    with contextlib.nullcontext() if capture is None else capture:
        stdio = capture.stdio if capture is not None else {}
        launched = launch(plan(spec, host.layout), bwrap_fd=host.bwrap_fd, seccomp=seccomp, stdio=stdio)
        if capture is not None:
            capture.start()
        ending = supervise(launched, timeout=spec.timeout, broker=broker)
    return ending, capture.result() if capture is not None else None


def _prepare_state(state: Path, identity: Identity) -> None:
    try:
        prepare_state(state, identity)
    except OSError as error:
        raise LaunchError(
            Code.BROKER_FAILED,
            f"The state directory {state} cannot be made ({error.strerror}), and without a log nothing is allowed.",
            "Set XDG_STATE_HOME to a directory that this user can write.",
        ) from error


def _trust(state: Path, request: Request, authority: bytes, identity: Identity) -> Rights:
    directory = state / "trust"
    try:
        kit = prepare_kit(directory, ca_pem=authority, extra=request.certificates, now=datetime.now(UTC))
    except TrustBundleError as error:
        raise LaunchError(
            Code.NO_TRUST_BUNDLE, f"The trust bundle cannot be made: {error.cause}.", error.cure
        ) from error
    if os.geteuid() == 0:
        os.chown(directory, identity.uid, identity.gid, follow_symlinks=False)
    return Rights(
        workspace=request.workspace,
        network=Network.BROKERED,
        trust=tuple(Mount(source=source, destination=Path(place)) for source, place in kit.mounts),
        trust_environment=tuple(kit.environment.items()),
    )


def _enter_namespaces() -> None:
    try:
        enter_user_namespace(os.CLONE_NEWPID)
    except OSError as error:
        raise LaunchError(
            Code.NO_USER_NAMESPACES,
            f"The kernel refuses a user namespace ({error.strerror}).",
            "`wicketgate doctor` names the layer that forbids it and what to change.",
        ) from error


def _bridge() -> Bridge:
    try:
        return build_bridge()
    except NetlinkError as error:
        code = Code.NO_CAPTURE if "rule" in error.what or "table" in error.what else Code.NO_NETWORK_NAMESPACES
        raise LaunchError(
            code,
            f"The bridge cannot be built: the kernel refused to {error}.",
            "The kernel needs network namespaces, veth, nf_tables and its tproxy expression.",
        ) from error
    except OSError as error:
        raise LaunchError(
            Code.NO_NETWORK_NAMESPACES,
            f"The kernel refuses a network namespace ({error.strerror}).",
            "`wicketgate doctor` names the layer that forbids it and what to change.",
        ) from error
