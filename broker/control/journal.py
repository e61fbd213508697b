"""What the daemon itself puts on record: who asked for what, and what became of policy, workers and grants.

`note` is for what happens in any case, `note_or_refuse` for what may only happen when it is on record.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from broker.api.callers import Caller, this_process
from broker.api.faults import ApiError
from broker.audit.errors import AuditUnavailable
from broker.audit.log import AuditLog
from broker.audit.records import Event, Kind, Record
from broker.control.faults import Fault
from broker.control.messages import Attach
from broker.workers.link import WorkerLink


@dataclass(slots=True, kw_only=True)
class Journal:
    """See the module. `policy` tells the version that is in force."""

    log: AuditLog
    policy: Callable[[], str]
    peers_refused: int = 0

    def note(  # noqa: PLR0913
        self, kind: Kind, event: Event, caller: Caller, words: str, *, grant: str = "", call: str = ""
    ) -> None:
        """The log itself counts what it could not keep."""
        with suppress(AuditUnavailable):
            self._put(kind, event, caller, words, grant=grant, call=call)

    def note_or_refuse(  # noqa: PLR0913
        self, kind: Kind, event: Event, caller: Caller, words: str, *, grant: str = "", call: str = ""
    ) -> None:
        """Raises `ApiError` where it cannot be kept."""
        try:
            self._put(kind, event, caller, words, grant=grant, call=call)
        except AuditUnavailable as error:
            raise ApiError(Fault.RECORD_UNAVAILABLE, str(error)) from error

    def peer_refused(self, socket: str, caller: Caller, count: int) -> None:
        """Somebody who may not use a socket tried to, the last of `count`."""
        self.peers_refused += count
        words = f"not allowed to use the {socket} socket, {count} times since the last such record"
        self.note(Kind.POLICY, Event.REFUSED, caller, words)

    def session_lost(self, attach: Attach, call: str, worker: int) -> None:
        """A worker has died, and with it a session's connections."""
        record = Record(
            kind=Kind.SESSION,
            event=Event.LOST,
            session=attach.session,
            call=call,
            grant=attach.grant,
            policy=self.policy(),
            detail=f"worker {worker} has ended: what was open is closed without a record of its own",
        )
        with suppress(AuditUnavailable):
            self._append(record)

    def worker_started(self, link: WorkerLink) -> None:
        """A worker serves."""
        words = f"worker {link.number} (pid {link.pid}) serves, with log {link.log}"
        self.note(Kind.POLICY, Event.WORKER_STARTED, this_process(), words)

    def worker_ended(self, link: WorkerLink, code: int, lost: int) -> None:
        """A worker ended that should not have."""
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        which = f"worker {link.number} (pid {link.pid}, log {link.log or 'none'})"
        words = f"{which} ended {how}; sessions lost: {lost}"
        print(f"wicketgate: {words}", file=sys.stderr, flush=True)
        self.note(Kind.POLICY, Event.WORKER_ENDED, this_process(), words)

    def _put(  # noqa: PLR0913
        self, kind: Kind, event: Event, caller: Caller, words: str, *, grant: str, call: str
    ) -> None:
        record = Record(
            kind=kind,
            event=event,
            grant=grant,
            call=call,
            policy=self.policy(),
            process=str(caller),
            detail=with_request(words, caller),
        )
        self._append(record)

    def _append(self, record: Record) -> None:
        self.log.append(record)
        self.log.flush()


def with_request(words: str, caller: Caller) -> str:
    """The request's id first: what is long is cut at its end."""
    request = f"request {caller.request_id}" if caller.request_id else ""
    return f"{request}: {words}" if request and words else request or words
