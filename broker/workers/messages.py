"""What the daemon, its workers and the process that forks them say to each other: value types, JSON. Pure.

Daemon and worker have one channel, so that whatever one of them said first is also heard first. That order is what the
counting of grants rests on: a worker says `Gone` with a grant's use after the last byte that was counted, and hears
`Release` before another session of that grant.
"""

from typing import Protocol, Self

import msgspec

from broker.control.messages import Attach
from broker.policy.grants import Usage


class Counted(Protocol):
    """Whatever has the counts."""

    @property
    def uses(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def bytes_up(self) -> int: ...
    @property
    def bytes_down(self) -> int: ...


class Used(msgspec.Struct, frozen=True):
    """The counts of a `Usage`, or how far they are reserved."""

    uses: int = 0
    requests: int = 0
    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    @classmethod
    def of(cls, counted: Counted) -> Self:
        """Take the counts as they are now."""
        return cls(counted.uses, counted.requests, counted.connections, counted.bytes_up, counted.bytes_down)

    def as_usage(self) -> Usage:
        """The counts alone."""
        return Usage(
            uses=self.uses,
            requests=self.requests,
            connections=self.connections,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
        )


class KnownGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as it stands: `rules` and `budgets` are JSON as in the store, times are seconds since the epoch.

    `sessions` have attached and not ended.
    """

    id: str
    call: str
    rules: msgspec.Raw
    budgets: msgspec.Raw
    issued_at: float
    expires_at: float
    revoked: bool
    used: Used
    sessions: list[str]


class SessionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One attached session."""

    id: str
    call: str
    grant: str
    attached_at: float
    connections: int
    allowed: int
    denied: int
    failures: int
    name_queries: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has done. `troubles`: what does not work at the moment, by code."""

    allowed: int = 0
    denied: int = 0
    failures: int = 0
    sessions: list[SessionFigures] = []
    used: dict[str, Used] = {}
    troubles: dict[str, str] = {}


# ---- daemon → worker


class TakePolicy(msgspec.Struct, tag="take_policy", frozen=True):
    """The policy in the memory file that comes along is in force from now on. Answered by `Done`."""

    ticket: int


class Switch(msgspec.Struct, tag="switch", frozen=True):
    """The operator's switch. Off ends every session at once. Answered by `Done`."""

    ticket: int
    on: bool


class Serve(msgspec.Struct, tag="serve", frozen=True):
    """A greeted runner's connection comes along, on which `attach` waits to be read. Ends with `Gone`.

    `grant`: what is known of the grant, for a worker that has no meter of it.
    """

    order: int
    attach: Attach
    grant: KnownGrant | None = None


class Release(msgspec.Struct, tag="release", frozen=True):
    """No session uses the grant any more: the next one may be served elsewhere, so its meter ends here."""

    grant: str


class EndGrant(msgspec.Struct, tag="end_grant", frozen=True):
    """The grant was revoked: cut what is open. Answered by `Done`."""

    ticket: int
    grant: str


class CutSession(msgspec.Struct, tag="cut_session", frozen=True):
    """End a session by order; `detail` says whose. Answered by `Done`."""

    ticket: int
    session: str
    detail: str


class ForgetAbsent(msgspec.Struct, tag="forget_absent", frozen=True):
    """Sessions that are not attached now have no right to come back without a further use."""


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """Report: on one grant's use, or on everything. Answered by `Done`."""

    ticket: int
    grant: str = ""


class Recorded(msgspec.Struct, tag="recorded", frozen=True):
    """The answer to a `Record`: what is reserved now, or why it could not be kept."""

    number: int
    reserved: Used = Used()
    error: str = ""


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End all sessions, finish the log, and end."""


# ---- worker → daemon


class Done(msgspec.Struct, tag="done", frozen=True):
    """What the message with this ticket asked for has been done. `log`: the id of the worker's own log."""

    ticket: int
    log: str = ""
    figures: Figures = Figures()


class Gone(msgspec.Struct, tag="gone", frozen=True):
    """The lease of an order carries no session any more; the use of its grant, where it has one."""

    order: int
    used: Used | None = None


class Record(msgspec.Struct, tag="record", frozen=True, kw_only=True):
    """Put on record: a further reservation, or with `session` that it attached or (`ended`) has ended for good.

    The worker waits for the answer, which is `Recorded`.
    """

    number: int
    grant: str
    used: Used
    session: str = ""
    ended: bool = False


# ---- daemon ↔ the process that forks workers


class Start(msgspec.Struct, tag="start", frozen=True):
    """Fork a worker for the channel that comes along."""

    worker: int


class Kill(msgspec.Struct, tag="kill", frozen=True):
    """Kill a worker; nothing where it has ended."""

    worker: int


class Started(msgspec.Struct, tag="started", frozen=True):
    """A worker runs."""

    worker: int
    pid: int


class Exited(msgspec.Struct, tag="exited", frozen=True):
    """A worker has ended: its exit code, or the negative number of the signal."""

    worker: int
    code: int


type ToWorker = TakePolicy | Switch | Serve | Release | EndGrant | CutSession | ForgetAbsent | Ask | Recorded | Stop
type FromWorker = Done | Gone | Record
type ToForkServer = Start | Kill
type FromForkServer = Started | Exited

encode = msgspec.json.Encoder().encode
decode_to_worker = msgspec.json.Decoder(
    TakePolicy | Switch | Serve | Release | EndGrant | CutSession | ForgetAbsent | Ask | Recorded | Stop
).decode
decode_from_worker = msgspec.json.Decoder(Done | Gone | Record).decode
decode_to_fork_server = msgspec.json.Decoder(Start | Kill).decode
decode_from_fork_server = msgspec.json.Decoder(Started | Exited).decode
