"""Whether this runner may start sandboxes at all: what was found wrong at its start, and bubblewrap looked at anew.

A runner that cannot start any serves all the same: what it has is listed and read, and each launch is refused by name.
"""

from dataclasses import dataclass

from sandbox.errors import LaunchError
from sandbox.host import Host, check_still_trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """`refused` holds until the runner is started again; `host` is None where there is no bubblewrap to trust."""

    host: Host | None
    refused: LaunchError | None = None

    def check(self) -> None:
        """Raise LaunchError where no sandbox may be started now."""
        found = self.problem()
        if found is not None:
            raise found

    def problem(self) -> LaunchError | None:
        """Why no sandbox may be started now; None where one may."""
        if self.refused is not None:
            return LaunchError(self.refused.code, self.refused.cause, self.refused.cure)
        assert self.host is not None  # else it was refused
        try:
            check_still_trusted(self.host)
        except LaunchError as error:
            return error
        return None
