"""One session's cable: a bridge, its lease on the broker, and the trust kit for what the broker signs.

It decides nothing about the network: what may be reached is the broker's to say.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from certs.errors import TrustBundleError
from certs.kit import Kit, kits_directory, prepare_kit
from netns.bridge import Bridge
from sandbox.attachment import AttachError, Attachment, State
from sandbox.bridge import open_bridge
from sandbox.errors import Code, LaunchError
from sandbox.spec import HomeFile, Mount


@dataclass(slots=True, kw_only=True)
class Cable:
    """A laid cable. `trust` and `environment` show the sandbox what to trust."""

    bridge: Bridge
    attachment: Attachment
    trust: tuple[Mount, ...]
    environment: tuple[tuple[str, str], ...]
    home: tuple[HomeFile, ...] = ()

    @property
    def is_attached(self) -> bool:
        """Whether the broker serves it at the moment."""
        return self.attachment.state is State.ATTACHED

    async def take_up(self) -> None:
        """End the lease and let both namespaces go."""
        try:
            await self.attachment.finish()
        finally:
            self.bridge.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Under which names a session attaches."""

    session: str
    call: str
    grant: str


async def lay_cable(
    lease: Lease, *, attach: Path, state: Path, back: Callable[[], None], bridge: Bridge | None = None
) -> Cable:
    """Build a bridge, attach it, prepare the trust kit. Raises LaunchError: then nothing is left.

    `bridge`: one that was built ahead and never attached; the cable's from here on, also where this raises. `back` is
    called after one was built and has to bring the thread back into its own network namespace.
    """
    if bridge is None:
        try:
            bridge = open_bridge()
        finally:
            back()
    attachment = Attachment(
        bridge=bridge, socket_path=attach, session=lease.session, call=lease.call, grant=lease.grant
    )
    kits: list[tuple[Kit, tuple[HomeFile, ...]]] = []
    try:
        await attachment.attach(lambda: kits.append(_kit(state, attachment.authority)))
    except AttachError as error:
        bridge.close()
        raise _not_attached(error) from error
    except TrustBundleError as error:
        await attachment.close()
        bridge.close()
        cause = f"The trust bundle cannot be made: {error.cause}."
        raise LaunchError(Code.NO_TRUST_BUNDLE, cause, error.cure) from error
    except BaseException:
        await attachment.close()
        bridge.close()
        raise
    ((kit, home),) = kits
    return Cable(
        bridge=bridge,
        attachment=attachment,
        trust=tuple(Mount(source=source, destination=Path(place)) for source, place in kit.mounts),
        environment=tuple(kit.environment.items()),
        home=home,
    )


def _kit(state: Path, authority: bytes) -> tuple[Kit, tuple[HomeFile, ...]]:
    kit = prepare_kit(kits_directory(state), ca_pem=authority, now=datetime.now(UTC))
    return kit, tuple(HomeFile(content=content, place=place) for content, place in kit.home_files())


def _not_attached(error: AttachError) -> LaunchError:
    if error.reason:
        return LaunchError(
            Code.BROKER_FAILED,
            f"The broker does not serve this session ({error.reason}: {error.detail}).",
            "Issue a grant that is in force, and see whether egress is on: `wicketgate grant list`.",
        )
    return LaunchError(
        Code.BROKER_GONE, f"The broker cannot be reached ({error.detail}).", "Start it; the runner needs no restart."
    )


def return_to(namespace: int) -> None:
    """Bring the calling thread into a network namespace."""
    os.setns(namespace, os.CLONE_NEWNET)
