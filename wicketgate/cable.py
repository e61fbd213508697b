"""The cable's part on the runner's side that the sandbox is shown: the trust kit."""

import os
from datetime import UTC, datetime
from pathlib import Path

from certs.errors import TrustBundleError
from certs.kit import prepare_kit
from sandbox.errors import Code, LaunchError
from sandbox.spec import Authority as Rights
from sandbox.spec import HomeFile, Mount, Network
from wicketgate.start import Start


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
