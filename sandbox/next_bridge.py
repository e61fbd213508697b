"""A bridge that is made before a session asks for one."""

import asyncio
import contextlib
from collections.abc import Callable

from netns.bridge import Bridge
from sandbox.bridge import open_bridge
from sandbox.errors import LaunchError


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
