"""A grant's budgets, counted while they are spent. Exact: what is counted is checked in the same step, in one thread.

All sessions that attach with one grant share its meter. The meter decides nothing about hosts; it says "not any more".
"""

import sys
from collections.abc import Callable

from broker.policy.decide import Denied
from broker.policy.grants import Grant, Spend, Usage, check_budget, tokens_left
from broker.policy.reasons import Reason

UNBOUNDED = sys.maxsize
_WORDS = {
    Reason.GRANT_REVOKED: "the grant was revoked",
    Reason.GRANT_EXPIRED: "the grant has expired",
    Reason.GRANT_EXHAUSTED: "the grant is used up",
    Reason.RATE_LIMITED: "the grant's rate is used up for the moment",
}


class Meter:
    """Counts what one grant's sessions use. `on_end` is called when what is open must be cut, with the reason."""

    __slots__ = ("_clock", "grant", "on_end", "usage")

    def __init__(self, grant: Grant, usage: Usage, clock: Callable[[], float]) -> None:
        self.grant = grant
        self.usage = usage
        self.on_end: Callable[[Meter, Reason], None] = lambda _meter, _reason: None
        self._clock = clock

    def expires_in(self) -> float:
        """Seconds until the grant expires; negative when it has."""
        return self.grant.expires_at - self._clock()

    def spend(self, what: Spend) -> Denied | None:
        """Count one, or say why not."""
        now = self._clock()
        reason = check_budget(self.grant, self.usage, now, what)
        if reason is not None:
            return Denied(reason, None, _WORDS[reason])
        usage = self.usage
        match what:
            case Spend.USE:
                usage.uses += 1
            case Spend.CONNECTION:
                usage.connections += 1
            case Spend.REQUEST:
                usage.requests += 1
                if self.grant.budgets.rate is not None:
                    usage.tokens = tokens_left(self.grant, usage, now) - 1
                    usage.tokens_at = now
            case Spend.NOTHING:
                pass
        return None

    @property
    def room_up(self) -> int:
        """How many more bytes may come from the sandbox."""
        bound = self.grant.budgets.bytes_up
        return UNBOUNDED if bound is None else bound - self.usage.bytes_up

    @property
    def room_down(self) -> int:
        """How many more bytes may go to the sandbox."""
        bound = self.grant.budgets.bytes_down
        return UNBOUNDED if bound is None else bound - self.usage.bytes_down

    def count_up(self, count: int) -> None:
        """Count bytes that came from the sandbox."""
        self.usage.bytes_up += count

    def count_down(self, count: int) -> None:
        """Count bytes that went to the sandbox."""
        self.usage.bytes_down += count

    def exhausted(self) -> None:
        """Somebody wanted to move a byte that is not granted any more."""
        self.on_end(self, Reason.GRANT_EXHAUSTED)

    def end(self, reason: Reason) -> None:
        """The grant ends: revoked, or expired."""
        if reason is Reason.GRANT_REVOKED:
            self.usage.revoked = True
        self.on_end(self, reason)


def metered(meter: Meter | None, read: Callable[[memoryview], int], view: memoryview, *, upward: bool) -> int:
    """Read as much as the grant has room for, and count it. `read` as `recv_into`.

    Raises BlockingIOError when there is more but no room: the reader's connection has been cut by then.
    """
    if meter is None:
        return read(view)
    room = meter.room_up if upward else meter.room_down
    count = read(view[: max(1, room)])
    if count and room <= 0:
        meter.exhausted()
        raise BlockingIOError
    if upward:
        meter.count_up(count)
    else:
        meter.count_down(count)
    return count
