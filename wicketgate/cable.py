"""The cable's parts on the runner's side: the trust kit that the sandbox is shown, and the bridge."""

import os
from datetime import UTC, datetime
from pathlib import Path

from certs.errors import TrustBundleError
from certs.kit import prepare_kit
from netns.bridge import Bridge, build_bridge
from netns.kernel import explain_namespaces
from netns.netlink import NetlinkError
from sandbox.errors import Code, LaunchError
from sandbox.spec import Authority as Rights
from sandbox.spec import HomeFile, Mount, Network
from wicketgate.start import Start

# What names the netlink step that failed, when the kernel has networks but not what captures their traffic.
_CAPTURE_STEPS = ("rule", "table", "chain")


def trust(start: Start, state: Path, authority: bytes) -> Rights:
    """What the payload may see and use with a cable. `authority`: the broker's CA (PEM). Raises LaunchError."""
    directory = state / "trust"
    try:
        kit = prepare_kit(directory, ca_pem=authority, extra=start.request.certificates, now=datetime.now(UTC))
        home = tuple(HomeFile(content=content, place=place) for content, place in kit.home_files())
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
        home=home,
    )


def bridge() -> Bridge:
    """Build the bridge and enter the sandbox's network namespace. Raises LaunchError."""
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
