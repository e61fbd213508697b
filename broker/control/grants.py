"""The issued grants: which there are, what is left of each, and what of that is on record.

Records run ahead of use: for each budget a piece is put on record before it is spent, so that after a broker was killed
the record says at most a piece too much and never too little. When a grant's last session has ended, and at a clean
end, the record is made exact. Rates start empty after each load.

What is spent is counted by the worker that serves the grant's sessions; the meters here say what it told so far.
"""

import asyncio
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from broker.api.faults import ApiError
from broker.control import schema
from broker.control.config import GrantLimits
from broker.control.faults import Fault
from broker.control.grant_request import budgets_of, expiry_of, rules_of
from broker.control.store import End, Ended, Row, Store, StoreError
from broker.gateway.metering import UNBOUNDED, Ledger, LedgerUnavailable, Meter
from broker.policy.grant_rules import parse_grant_rules
from broker.policy.grants import Budgets, CallId, Grant, GrantId, Usage
from broker.policy.rules import Policy
from broker.workers.messages import KnownGrant, Record, Used

ID_BYTES: Final = 16
COUNTED: Final = ("requests", "connections", "bytes_up", "bytes_down")
_LEAST_BYTES, _MOST_BYTES = 64 * 1024, 16 * 1024 * 1024
_MOST_COUNT: Final = 256
_SCAN: Final = 100
MOST_PRUNE_SECONDS: Final = 3600.0
_END_OF: Final = {
    schema.GrantState.ACTIVE: End.NONE,
    schema.GrantState.EXHAUSTED: End.NONE,
    schema.GrantState.EXPIRED: End.EXPIRED,
    schema.GrantState.REVOKED: End.REVOKED,
}

_encode = msgspec.json.Encoder().encode


class GrantBook:
    """All grants of a broker. A `Ledger` for their meters. `clock` gives seconds since the epoch."""

    def __init__(self, store: Store, limits: GrantLimits, clock: Callable[[], float]) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._meters: dict[str, Meter] = {}
        self.ended_with_the_machine = 0
        if store.ended is Ended.WITH_THE_MACHINE:
            # The last transactions may be missing, and every sandbox is gone: what was granted to them ends.
            self.ended_with_the_machine = store.revoke_all(clock())

    def issue(self, request: schema.IssueGrant, policy: Policy, who: str) -> Grant:
        """Issue a grant. Raises `ApiError`, or `StoreError` where it cannot be kept."""
        now = self._clock()
        documents, rules = rules_of(request, policy)
        expires_at = expiry_of(request, self._limits, now)
        if self._store.count_open(now) >= self._limits.max_open:
            detail = f"{self._limits.max_open} grants are in force, which is this broker's limit; revoke some."
            raise ApiError(Fault.TOO_MANY_GRANTS, detail)
        grant = Grant(
            id=GrantId(secrets.token_hex(ID_BYTES)),
            call=CallId(request.call or ""),
            rules=rules,
            issued_at=now,
            expires_at=expires_at,
            budgets=budgets_of(request),
        )
        self._store.add(
            Row(
                id=grant.id,
                call=grant.call,
                rules=_encode(documents),
                budgets=_encode(request.budgets),
                issued_at=now,
                expires_at=expires_at,
                issued_by=who,
                policy=policy.version,
            )
        )
        return grant

    def withdraw(self, grant: str) -> None:
        """Forget a grant that was not handed out after all."""
        self._store.discard(grant)

    def find_meter(self, grant: str) -> Meter | None:
        """The one meter of a grant, None where there is no such grant."""
        meter = self._meters.get(grant)
        if meter is None:
            row = self._store.find(grant)
            if row is None:
                return None
            meter = self._meters[grant] = self._load(row)
        return meter

    def know(self, grant: str) -> KnownGrant | None:
        """What a worker is told of a grant, None where there is no such grant."""
        row = self._store.find(grant)
        if row is None:
            return None
        meter = self.find_meter(grant)
        assert meter is not None
        return _known(row, sorted(meter.sessions), meter.usage)

    def tell(self, grant: str, used: Used) -> Meter | None:
        """Take over what a worker says was used so far. Counts never go back."""
        meter = self.find_meter(grant)
        if meter is not None:
            for name in ("uses", *COUNTED):
                setattr(meter.usage, name, max(getattr(meter.usage, name), getattr(used, name)))
        return meter

    def record(self, asked: Record) -> Used:
        """Put on record what a worker asks for; what is reserved now. Raises `LedgerUnavailable`."""
        try:
            meter = self.tell(asked.grant, asked.used)
            if meter is None:
                raise LedgerUnavailable("there is no such grant any more")
            if not asked.session:
                self.reserve(meter)
            elif asked.ended:
                meter.sessions.discard(asked.session)
                self.dismiss(meter, asked.session)
                meter = self.find_meter(asked.grant) or meter  # loaded anew, so that nothing is reserved any more
            else:
                self.admit(meter, asked.session)
                meter.sessions.add(asked.session)
        except StoreError as error:
            raise LedgerUnavailable(str(error)) from error
        return Used.of(meter.reserved)

    def lose(self, grant: str) -> None:
        """Nobody can say any more what a worker has used: all that was reserved counts as used."""
        meter = self._meters.get(grant)
        if meter is not None:
            revoked, meter.usage = meter.usage.revoked, _on_record(meter)
            meter.usage.revoked = revoked

    def revoke(self, grant: str) -> Meter | None:
        """Revoke a grant; its meter, whose connections are to be cut, None where it was revoked before.

        Raises `ApiError` for an unknown one. In force at once, also where it cannot be kept (`StoreError`).
        """
        meter = self.find_meter(grant)
        if meter is None:
            raise _unknown(grant)
        before, meter.usage.revoked = meter.usage.revoked, True
        kept = self._store.revoke(grant, self._clock())
        return meter if kept or not before else None

    def show(self, grant: str) -> schema.Grant:
        """One grant. Raises `ApiError`."""
        row = self._store.find(grant)
        if row is None:
            raise _unknown(grant)
        return self._document(row)

    async def page(self, query: schema.GrantQuery) -> schema.GrantPage:
        """Some grants, oldest first. Looked up in pieces, so that the data path need not wait for a long list."""
        found: list[schema.Grant] = []
        after = int(query.after or 0)
        while len(found) <= query.limit:
            end = None if query.state is None else _END_OF[query.state]
            rows = self._store.page(after=after, most=_SCAN, now=self._clock(), call=query.call, end=end)
            for row in rows:
                document = self._document(row)
                if query.state is None or document.state is query.state:
                    if len(found) == query.limit:
                        return schema.GrantPage(grants=found, next=str(after))
                    found.append(document)
                after = row.number
            if len(rows) < _SCAN:
                break
            await asyncio.sleep(0)
        return schema.GrantPage(grants=found, next=None)

    def count_open(self) -> int:
        """How many grants are in force."""
        return self._store.count_open(self._clock())

    @property
    def prune_seconds(self) -> float:
        """How often to prune: a short retention keeps the store small, which is read whole for a list of grants."""
        return min(MOST_PRUNE_SECONDS, float(self._limits.retention_seconds))

    def prune(self) -> int:
        """Forget what ended long ago."""
        return self._store.prune(self._clock() - self._limits.retention_seconds)

    def dismiss_absent(self, present: list[str]) -> None:
        """Forget the sessions that a former broker had and that did not come back."""
        self._store.dismiss_absent(present)
        for meter in self._meters.values():
            meter.sessions.intersection_update(present)

    def keep(self) -> None:
        """Put on record what was used so far, reservations included."""
        if self._meters:
            self._store.count([(meter.grant.id, _on_record(meter)) for meter in self._meters.values()])
        for idle in [grant for grant, meter in self._meters.items() if not meter.sessions]:
            del self._meters[idle]  # it was only looked at

    def close(self) -> None:
        """Put the exact use on record, and let go of the store."""
        self._store.count([(meter.grant.id, meter.usage) for meter in self._meters.values()])
        self._store.close()

    def reserve(self, meter: Meter) -> None:
        """As in `Ledger`."""
        reserved = _next_reservation(meter)
        before, meter.reserved = meter.reserved, reserved
        try:
            self._store.count([(meter.grant.id, _on_record(meter))])
        except StoreError as error:
            meter.reserved = before
            raise LedgerUnavailable(str(error)) from error

    def admit(self, meter: Meter, session: str) -> None:
        """As in `Ledger`."""
        try:
            self._store.admit(meter.grant.id, session, meter.usage.uses)
        except StoreError as error:
            raise LedgerUnavailable(str(error)) from error

    def dismiss(self, meter: Meter, session: str) -> None:
        """As in `Ledger`. What cannot be kept now is kept by the next `keep`, and until then not too little."""
        try:
            self._store.dismiss(meter.grant.id, session)
            if not meter.sessions:
                self._store.count([(meter.grant.id, meter.usage)])
        except StoreError:
            return
        if not meter.sessions:
            self._meters.pop(meter.grant.id, None)

    def _load(self, row: Row) -> Meter:
        return meter_of(_known(row, self._store.sessions(row.id), row), self._clock, self)

    def _document(self, row: Row) -> schema.Grant:
        meter = self._meters.get(row.id)
        used = meter.usage if meter is not None else row
        sessions = sorted(meter.sessions) if meter is not None else self._store.sessions(row.id)
        budgets = msgspec.convert(msgspec.json.decode(row.budgets), schema.Budgets)
        usage = schema.Usage(uses=used.uses, **{name: getattr(used, name) for name in COUNTED})
        return schema.Grant(
            id=row.id,
            call=row.call,
            state=_state(row, budgets, usage, sessions, self._clock()),
            rules=msgspec.json.decode(row.rules),
            budgets=budgets,
            usage=usage,
            issued_at=time_of(row.issued_at),
            expires_at=time_of(row.expires_at),
            revoked_at=None if row.revoked_at is None else time_of(row.revoked_at),
            issued_by=row.issued_by,
            policy=row.policy,
            sessions=sessions,
        )


def meter_of(known: KnownGrant, clock: Callable[[], float], ledger: Ledger) -> Meter:
    """A grant's meter as it stands. Nothing is reserved yet, and a rate starts empty."""
    budgets = msgspec.convert(msgspec.json.decode(known.budgets), schema.Budgets)
    grant = Grant(
        id=GrantId(known.id),
        call=CallId(known.call),
        rules=parse_grant_rules(msgspec.json.decode(known.rules)),
        issued_at=known.issued_at,
        expires_at=known.expires_at,
        budgets=Budgets(**{name: getattr(budgets, name) for name in schema.Budgets.__struct_fields__}),
    )
    rated = grant.budgets.rate is not None
    usage = known.used.as_usage()
    usage.tokens = 0.0 if rated and usage.requests else None
    usage.tokens_at = clock() if rated else 0.0
    usage.revoked = known.revoked
    meter = Meter(grant, usage, clock, ledger=ledger, sessions=known.sessions)
    for name in COUNTED:
        if getattr(grant.budgets, name) is not None:
            setattr(meter.reserved, name, getattr(usage, name))
    return meter


def time_of(seconds: float) -> datetime:
    """Seconds since the epoch as a time that the API shows."""
    return datetime.fromtimestamp(seconds, UTC)


def _known(row: Row, sessions: list[str], used: Usage | Row) -> KnownGrant:
    return KnownGrant(
        id=row.id,
        call=row.call,
        rules=msgspec.Raw(row.rules),
        budgets=msgspec.Raw(row.budgets),
        issued_at=row.issued_at,
        expires_at=row.expires_at,
        revoked=row.revoked_at is not None or (isinstance(used, Usage) and used.revoked),
        used=Used.of(used),
        sessions=sessions,
    )


def _state(
    row: Row, budgets: schema.Budgets, usage: schema.Usage, sessions: list[str], now: float
) -> schema.GrantState:
    if row.revoked_at is not None:
        return schema.GrantState.REVOKED
    if now >= row.expires_at:
        return schema.GrantState.EXPIRED
    used_up = any((bound := getattr(budgets, name)) is not None and getattr(usage, name) >= bound for name in COUNTED)
    attached_out = budgets.uses is not None and usage.uses >= budgets.uses and not sessions
    return schema.GrantState.EXHAUSTED if used_up or attached_out else schema.GrantState.ACTIVE


def _next_reservation(meter: Meter) -> Usage:
    """A further piece of each budget: large enough to be rare, small enough to be lost without harm."""
    budgets, used = meter.grant.budgets, meter.usage
    values: dict[str, Any] = {}
    for name in COUNTED:
        bound = getattr(budgets, name)
        if bound is None:
            values[name] = UNBOUNDED
            continue
        is_bytes = name.startswith("bytes")
        piece = min(max(bound // 16, _LEAST_BYTES), _MOST_BYTES) if is_bytes else min(max(bound // 64, 1), _MOST_COUNT)
        # A budget that has some left keeps what it has: only the one that ran out is being asked for.
        left = getattr(meter.reserved, name) > getattr(used, name)
        values[name] = getattr(meter.reserved, name) if left else min(bound, getattr(used, name) + piece)
    return Usage(uses=UNBOUNDED, **values)


def _on_record(meter: Meter) -> Usage:
    """What is to be on record: what is reserved where there is a budget, what was used where there is none."""
    used, reserved = meter.usage, meter.reserved
    return Usage(
        uses=used.uses,
        **{
            name: getattr(used, name) if getattr(reserved, name) == UNBOUNDED else getattr(reserved, name)
            for name in COUNTED
        },
    )


def _unknown(grant: str) -> ApiError:
    return ApiError(Fault.UNKNOWN_GRANT, "No grant has this id.", field="id")
