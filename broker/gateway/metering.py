"""A grant's budgets, counted while they are spent. Exact: what is counted is checked in the same step, in one thread.

All sessions that attach with one grant share its meter. The meter decides nothing about hosts; it says "not any more".
Where use has to outlive the process, a `Ledger` keeps it, and keeps it ahead: nothing is spent beyond what the ledger
has on record already, so that a broker which dies without a word leaves a record that is never more generous than what
was really used.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

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
_UNRECORDED = "the use of the grant cannot be put on record"


class LedgerUnavailable(Exception):  # noqa: N818
    """Use cannot be put on record; the message says why."""


class Ledger(Protocol):
    """Keeps the use of grants over the end of the process. Raises `LedgerUnavailable` where it cannot."""

    def reserve(self, meter: "Meter") -> None:
        """Put more on record than was used, and raise `meter.reserved` to it."""

    def admit(self, meter: "Meter", session: str) -> None:
        """Put on record that a session attached, with the use that it cost."""

    def dismiss(self, meter: "Meter", session: str) -> None:
        """Put on record that a session has ended for good."""


def unreserved() -> Usage:
    """The reservation of a meter that has no ledger: everything."""
    return Usage(uses=UNBOUNDED, requests=UNBOUNDED, connections=UNBOUNDED, bytes_up=UNBOUNDED, bytes_down=UNBOUNDED)


class Meter:
    """Counts what one grant's sessions use. `on_end` is called when what is open must be cut, with the reason.

    `reserved` is how far each budget may be spent before the ledger is asked again; `sessions` are those that have
    attached and not ended: they may attach again, after a broker's end, without a further use.
    """

    __slots__ = ("_clock", "_ledger", "_unrecorded", "grant", "on_end", "reserved", "sessions", "usage")

    def __init__(
        self,
        grant: Grant,
        usage: Usage,
        clock: Callable[[], float],
        *,
        ledger: Ledger | None = None,
        sessions: Iterable[str] = (),
    ) -> None:
        self.grant = grant
        self.usage = usage
        self.reserved = unreserved()
        self.sessions = set(sessions)
        self.on_end: Callable[[Meter, Reason], None] = lambda _meter, _reason: None
        self._clock = clock
        self._ledger = ledger
        self._unrecorded = False

    def expires_in(self) -> float:
        """Seconds until the grant expires; negative when it has."""
        return self.grant.expires_at - self._clock()

    def admit(self, session: str) -> Denied | None:
        """Let a session attach, or say why not. It costs a use the first time."""
        known = session in self.sessions
        denied = self.spend(Spend.NOTHING if known else Spend.USE)
        if denied is not None or known:
            return denied
        if self._ledger is not None:
            try:
                self._ledger.admit(self, session)
            except LedgerUnavailable as error:
                self.usage.uses -= 1
                return _not_recorded(error)
        self.sessions.add(session)
        return None

    def dismiss(self, session: str) -> None:
        """A session has ended for good: its id is no longer known."""
        self.sessions.discard(session)
        if self._ledger is not None:
            self._ledger.dismiss(self, session)

    def spend(self, *what: Spend) -> Denied | None:
        """Count one of each, or say why not; then none of them is counted."""
        now = self._clock()
        # A clock that stepped back: what the rate gave stays, and from here on it gives again.
        self.usage.tokens_at = min(self.usage.tokens_at, now)
        for one in what:
            reason = check_budget(self.grant, self.usage, now, one)
            if reason is not None:
                return Denied(reason, None, _WORDS[reason])
            if self._needs_reserve(one) and (denied := self._reserve()):
                return denied
        for one in what:
            self._count(one, now)
        return None

    def _needs_reserve(self, what: Spend) -> bool:
        match what:
            case Spend.CONNECTION:
                return self.usage.connections >= self.reserved.connections
            case Spend.REQUEST:
                return self.usage.requests >= self.reserved.requests
            case Spend.USE | Spend.NOTHING:
                return False
            case never:
                assert_never(never)

    def _count(self, what: Spend, now: float) -> None:
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
            case never:
                assert_never(never)

    @property
    def room_up(self) -> int:
        """How many more bytes may come from the sandbox."""
        bound, used = self.grant.budgets.bytes_up, self.usage.bytes_up
        if bound is None:
            return UNBOUNDED
        if bound > used >= self.reserved.bytes_up and self._reserve() is not None:
            return 0
        return min(bound, self.reserved.bytes_up) - used

    @property
    def room_down(self) -> int:
        """How many more bytes may go to the sandbox."""
        bound, used = self.grant.budgets.bytes_down, self.usage.bytes_down
        if bound is None:
            return UNBOUNDED
        if bound > used >= self.reserved.bytes_down and self._reserve() is not None:
            return 0
        return min(bound, self.reserved.bytes_down) - used

    def count_up(self, count: int) -> None:
        """Count bytes that came from the sandbox."""
        self.usage.bytes_up += count

    def count_down(self, count: int) -> None:
        """Count bytes that went to the sandbox."""
        self.usage.bytes_down += count

    def take(self, count: int, *, upward: bool) -> bool:
        """Count bytes that came as a whole; False where they are more than is granted, which is used up then.

        Piece by piece, because the ledger may have less on record than is granted.
        """
        while count > 0:
            piece = min(count, self.room_up if upward else self.room_down)
            if piece <= 0:
                return False
            if upward:
                self.count_up(piece)
            else:
                self.count_down(piece)
            count -= piece
        return True

    def exhausted(self) -> None:
        """Somebody wanted to move a byte that is not granted any more, or that cannot be put on record."""
        self.on_end(self, Reason.AUDIT_UNAVAILABLE if self._unrecorded else Reason.GRANT_EXHAUSTED)

    def end(self, reason: Reason) -> None:
        """The grant ends: revoked, or expired."""
        if reason is Reason.GRANT_REVOKED:
            self.usage.revoked = True
        self.on_end(self, reason)

    def _reserve(self) -> Denied | None:
        assert self._ledger is not None  # without one everything is reserved
        try:
            self._ledger.reserve(self)
        except LedgerUnavailable as error:
            self._unrecorded = True
            return _not_recorded(error)
        self._unrecorded = False
        return None


def _not_recorded(error: LedgerUnavailable) -> Denied:
    return Denied(Reason.AUDIT_UNAVAILABLE, None, f"{_UNRECORDED}: {error}")


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


def charged(meter: Meter | None, count: int, *, upward: bool) -> bool:
    """Count bytes that were read already; False where the grant has no room: their connection has been cut then."""
    if meter is None or meter.take(count, upward=upward):
        return True
    meter.exhausted()
    return False
