"""Full access: whether it may be asked for. Kept in memory only, so that a restart always ends it."""

import hmac
from dataclasses import dataclass

from broker.api.faults import ApiError
from wicketgate.runner.faults import Fault

CONFIRMATION = "I allow full access to this machine's files"


@dataclass(slots=True)
class FullAccess:
    """The switch. `allowed_by` is the administrator's uid, `allowed_at` seconds since the epoch."""

    allowed_by: int | None = None
    allowed_at: float | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether a session may be started with full access now."""
        return self.allowed_by is not None

    @property
    def confirmation(self) -> str:
        """The exact text to type."""
        return CONFIRMATION

    def allow(self, typed: str, *, uid: int, administrator: bool, now: float) -> None:
        """Allow it. Raises ApiError: first for who asks, then for what was typed."""
        if not administrator:
            raise ApiError(Fault.NOT_ADMINISTRATOR, f"User {uid} is none; the runner's configuration names them.")
        if not hmac.compare_digest(typed.encode("utf-8", "surrogatepass"), CONFIRMATION.encode()):
            raise ApiError(Fault.WRONG_CONFIRMATION, f"Type exactly: {CONFIRMATION}", field="confirm")
        self.allowed_by, self.allowed_at = uid, now

    def forbid(self) -> None:
        """Switch it off. Sessions that were started with it keep what they were started with."""
        self.allowed_by = self.allowed_at = None
