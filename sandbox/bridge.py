"""A bridge for a sandbox, or the layer that refused it and what it needs; and one that is made ahead."""

import asyncio
import contextlib
from collections.abc import Callable

from netns.bridge import Bridge, build_bridge
from netns.kernel import explain_namespaces
from netns.netlink import NetlinkError
from sandbox.errors import Code, LaunchError

# What names the netlink step that failed, when the kernel has networks but not what captures their traffic.
_CAPTURE_STEPS = ("rule", "table", "chain")


def open_bridge() -> Bridge:
    """Build a bridge. Raises LaunchError with the layer that refused."""
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


class NextBridge:
    """At most one bridge that was made before a session needs it: unused, attached to no broker, and for one session.

    `back` is called after one was built, and has to bring the thread back into its own network namespace.
    """

    def __init__(self, back: Callable[[], None]) -> None:
        self._back = back
        self._bridge: Bridge | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self) -> Bridge | None:
        """The one that waits; it is the caller's."""
        bridge, self._bridge = self._bridge, None
        return bridge

    def expect(self, *, after: float, unused: float) -> None:
        """Have one made after so many seconds, and let go where nobody has taken it for so many others."""
        self._set(after, lambda: self._make(unused))

    def close(self) -> None:
        """Let it go, and make none."""
        if self._timer is not None:
            self._timer.cancel()
        if (bridge := self.take()) is not None:
            bridge.close()

    def _make(self, unused: float) -> None:
        if self._bridge is None:
            with contextlib.suppress(LaunchError):  # whoever needs one hears why
                try:
                    self._bridge = open_bridge()
                finally:
                    self._back()
        self._set(unused, self.close)

    def _set(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)
