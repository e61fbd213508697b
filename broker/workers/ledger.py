"""A worker's ledger: the daemon keeps the grants, and a worker waits for its word before more is spent."""

from collections.abc import Callable

from broker.gateway.metering import LedgerUnavailable, Meter
from broker.workers.messages import Record, Recorded, Used

type Call = Callable[[Callable[[int], Record]], Recorded]


class RemoteLedger:
    """A `Ledger`. `call` sends a message that it gives a number, and waits for the answer."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def reserve(self, meter: Meter) -> None:
        """As in `Ledger`."""
        self._record(meter)

    def admit(self, meter: Meter, session: str) -> None:
        """As in `Ledger`."""
        self._record(meter, session)

    def dismiss(self, meter: Meter, session: str) -> None:
        """As in `Ledger`. The daemon keeps later what it cannot keep now."""
        try:
            self._record(meter, session, ended=True)
        except LedgerUnavailable:
            return

    def _record(self, meter: Meter, session: str = "", *, ended: bool = False) -> None:
        used = Used.of(meter.usage)
        answer = self._call(
            lambda number: Record(number=number, grant=meter.grant.id, used=used, session=session, ended=ended)
        )
        if answer.error:
            raise LedgerUnavailable(answer.error)
        meter.reserved = answer.reserved.as_usage()
