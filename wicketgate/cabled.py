"""A run with a cable: a broker of its own, the trust kit, the bridge. The payload starts when all of them stand."""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from broker.audit.location import NoStateDirectory, default_state_dir
from broker.control.settings import Settings
from broker.policy.rules import Policy
from certs.errors import TrustBundleError
from certs.kit import prepare_kit
from netns.bridge import Bridge, build_bridge
from netns.kernel import explain_namespaces
from netns.netlink import NetlinkError
from sandbox.errors import Code, LaunchError
from sandbox.spec import Authority as Rights
from sandbox.spec import Mount, Network
from wicketgate.brokered import start_broker
from wicketgate.identity import Identity, prepare_state
from wicketgate.start import Outcome, Start

# What names the netlink step that failed, when the kernel has networks but not what captures their traffic.
_CAPTURE_STEPS = ("rule", "table", "chain")


def run_with_cable(start: Start, policy: Policy) -> Outcome:
    """Run the command with a cable to a broker that lives as long as it. Raises LaunchError."""
    request, identity = start.request, start.identity
    state = _state_directory(identity)
    settings = Settings(policy=policy, state=state, certificates=request.certificates, fixed=request.fixed)
    with contextlib.ExitStack() as undo:
        broker = start_broker(identity, settings)
        undo.callback(broker.stop)
        rights = _trust(start, state, broker.greeting())
        start.drop()
        bridge = undo.enter_context(_bridge())
        broker.attach(start.session, bridge)
        ending, output = start.execute(rights, broker=broker.pid)
        finished = broker.finish(bridge.count_refused())
    return Outcome(session=start.session, ending=ending, finished=finished, output=output)


def _state_directory(identity: Identity) -> Path:
    cure = "Set XDG_STATE_HOME to a directory that this user can write."
    try:
        state = default_state_dir(os.environ, os.geteuid())
        prepare_state(state, identity)
    except NoStateDirectory as error:
        cause = "Neither XDG_STATE_HOME nor HOME names a state directory, and without a log nothing is allowed."
        raise LaunchError(Code.NO_STATE_DIRECTORY, cause, cure) from error
    except OSError as error:
        cause = f"The state directory {state} cannot be used ({error.strerror}), and without a log nothing is allowed."
        raise LaunchError(Code.NO_STATE_DIRECTORY, cause, cure) from error
    return state


def _trust(start: Start, state: Path, authority: bytes) -> Rights:
    directory = state / "trust"
    try:
        kit = prepare_kit(directory, ca_pem=authority, extra=start.request.certificates, now=datetime.now(UTC))
    except TrustBundleError as error:
        cause = f"The trust bundle cannot be made: {error.cause}."
        raise LaunchError(Code.NO_TRUST_BUNDLE, cause, error.cure) from error
    if os.geteuid() == 0:
        os.chown(directory, start.identity.uid, start.identity.gid, follow_symlinks=False)
    return Rights(
        workspace=start.request.workspace,
        network=Network.BROKERED,
        trust=tuple(Mount(source=source, destination=Path(place)) for source, place in kit.mounts),
        trust_environment=tuple(kit.environment.items()),
    )


def _bridge() -> Bridge:
    try:
        return build_bridge()
    except NetlinkError as error:
        code = Code.NO_CAPTURE if any(step in error.what for step in _CAPTURE_STEPS) else Code.NO_NETWORK_NAMESPACES
        raise LaunchError(
            code,
            f"The bridge cannot be built: the kernel refused to {error}.",
            "The kernel needs network namespaces, veth, nf_tables and its tproxy expression.",
        ) from error
    except OSError as error:
        raise LaunchError(
            Code.NO_NETWORK_NAMESPACES,
            f"The bridge cannot be built: the kernel refuses a namespace or a socket ({explain_namespaces(error)}).",
            "It needs network namespaces, nf_tables and transparent sockets; `wicketgate doctor` looks closer.",
        ) from error
