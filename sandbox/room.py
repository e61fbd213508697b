"""How many of a kind there may be at once. Those that are being started count, so that no crowd can pass by."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.errors import Code, LaunchError


@dataclass(slots=True)
class Room:
    """Room for `most`. `what` and `cure` are for the refusal: `jobs are running`, `Stop some.`"""

    most: int
    what: str
    cure: str
    _coming: int = 0

    @contextlib.contextmanager
    def for_one_more(self, there: int) -> Iterator[None]:
        """Start one, beside the `there` that there are; it must be among those at the end. Raises LaunchError."""
        if there + self._coming >= self.most:
            raise LaunchError(Code.TOO_MANY, f"{self.most} {self.what}.", self.cure)
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
