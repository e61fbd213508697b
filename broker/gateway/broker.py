"""The broker: its sessions, its log, its reactor, and the rule that nothing goes on without a log."""

import asyncio
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress

from broker.audit.errors import AuditUnavailable
from broker.audit.log import AuditLog
from broker.audit.records import Event, Kind, Record
from broker.gateway.capture import capture
from broker.gateway.dial import Dialler
from broker.gateway.inspector import Inspector
from broker.gateway.links import Links, read_links
from broker.gateway.metering import Meter
from broker.gateway.reactor import Reactor
from broker.gateway.records import Recorder
from broker.gateway.resolve import Resolver
from broker.gateway.session import Identity, Session
from broker.policy.reasons import Reason, Refusal
from broker.policy.rules import Policy

_GRANT_EVENTS = {
    Reason.GRANT_REVOKED: Event.REVOKED,
    Reason.GRANT_EXPIRED: Event.EXPIRED,
    Reason.GRANT_EXHAUSTED: Event.EXHAUSTED,
}
_GRANT_WORDS = {
    Reason.GRANT_REVOKED: "the grant was revoked",
    Reason.GRANT_EXPIRED: "the grant has expired",
    Reason.GRANT_EXHAUSTED: "the grant is used up",
}
LINKS_SECONDS = 10.0  # how old the knowledge of the host's own addresses may be
LOOK_SECONDS = 5.0  # between looks at a grant's expiry

type FindMeter = Callable[[str], Meter | None]


class Broker:
    """See the module. `find_meter` knows the issued grants by id, and gives each grant's one meter."""

    def __init__(  # noqa: PLR0913
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        policy: Policy,
        log: AuditLog,
        log_location: str,
        resolver: Resolver,
        inspector: Inspector | None = None,
        find_meter: FindMeter = lambda _: None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.policy = policy
        self.log = log
        self.log_location = log_location
        self.reactor = Reactor(loop, end_turn=self.end_turn, failed=self._failed)
        self.inspector = inspector
        self._resolver = resolver
        self._find_meter = find_meter
        self._on_idle = on_idle
        self._sessions: dict[str, Session] = {}
        self._expiring: set[Meter] = set()
        self._links = read_links()
        self._links_read = loop.time()

    def open_session(self, identity: Identity, grant_id: str, listeners: list[socket.socket]) -> Session:
        """Serve a sandbox's listeners. Raises Refusal: the flag is off, the id is taken, the grant is unknown."""
        if not self.policy.enabled:
            raise Refusal(Reason.EGRESS_OFF, "egress is switched off by the server's policy")
        if identity.session in self._sessions:
            raise Refusal(Reason.BAD_REQUEST, "a session of this id is attached already")
        meter = self._use_grant(grant_id, identity)
        call = identity.call or (meter.grant.call if meter is not None else "")
        recorder = Recorder(
            append=self.log.append,
            now=lambda: self.reactor.now,
            later=self.reactor.later,
            policy=self.policy.version,
            session=identity.session,
            call=call,
            grant=grant_id,
        )
        session = Session(
            identity=identity,
            policy=self.policy,
            grant=meter.grant if meter is not None else None,
            meter=meter,
            reactor=self.reactor,
            dialler=Dialler(self.reactor, self._resolver, self._current_links, self.policy.limits),
            recorder=recorder,
            listeners=listeners,
            capture=capture,
            flush=self.end_turn,
            inspector=self.inspector,
            clock=time.time,
        )
        self._sessions[identity.session] = session
        try:
            session.start()
        except BaseException:
            self.close_session(session, Reason.SESSION_ENDED, "it could not be started")
            raise
        return session

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The open sessions by id."""
        return self._sessions

    def change_policy(self, policy: Policy) -> None:
        """Put another policy in force: what is open is judged again; with the flag off nothing stays open."""
        self.policy = policy
        self._resolver.limits = policy.limits
        for session in tuple(self._sessions.values()):
            if policy.enabled:
                session.change_policy(policy)
            else:
                self.close_session(session, Reason.EGRESS_OFF, "egress was switched off")
        self.end_turn()

    def end_grant(self, meter: Meter, reason: Reason) -> None:
        """Put on record that a grant has ended by itself, and cut what is open under it."""
        event = _GRANT_EVENTS.get(reason)
        if event is not None:
            grant = meter.grant
            self.log.append(
                Record(kind=Kind.GRANT, event=event, grant=grant.id, call=grant.call, policy=self.policy.version)
            )
        self.cut_grant(meter, reason)

    def cut_grant(self, meter: Meter, reason: Reason) -> None:
        """Cut what is open under a grant. Its sessions stay, and are told why by each denial."""
        words = _GRANT_WORDS.get(reason, "the grant's use cannot be put on record")
        for session in tuple(self._sessions.values()):
            if session.meter is meter:
                session.end_connections(reason, words)
        self.end_turn()

    def _use_grant(self, grant_id: str, identity: Identity) -> Meter | None:
        meter = self._find_meter(grant_id) if grant_id else None
        if meter is None:
            if grant_id or self.policy.require_grant:
                raise Refusal(Reason.GRANT_MISSING, "no such grant" if grant_id else "the policy asks for a grant")
            return None
        if meter.grant.call and identity.call and identity.call != meter.grant.call:
            raise Refusal(Reason.GRANT_MISSING, "the grant was issued for another call")
        denied = meter.admit(identity.session)
        if denied is not None:
            raise Refusal(denied.reason, denied.detail)
        meter.on_end = self.end_grant
        if meter not in self._expiring:
            self._expiring.add(meter)
            self.reactor.later(min(max(0.0, meter.expires_in()), LOOK_SECONDS), lambda: self._expire(meter))
        return meter

    def _expire(self, meter: Meter) -> None:
        """End a grant's connections in time. The wall clock may be set meanwhile, so it is looked at repeatedly."""
        if not any(session in self._sessions for session in meter.sessions):
            self._expiring.discard(meter)  # the next session that attaches starts it again
        elif (left := meter.expires_in()) > 0:
            self.reactor.later(min(left, LOOK_SECONDS), lambda: self._expire(meter))
        else:
            self._expiring.discard(meter)
            self.end_grant(meter, Reason.GRANT_EXPIRED)

    def close_session(self, session: Session, reason: Reason, detail: str = "") -> None:
        """End a session and all of its connections. Its lease, if it still has one, is told."""
        if self._sessions.pop(session.identity.session, None) is None:
            return
        session.close(reason, detail)
        if session.meter is not None and reason is Reason.SESSION_ENDED:
            session.meter.dismiss(session.identity.session)
        session.on_close(reason, detail)

    def end_turn(self) -> None:
        """Put what was decided on record. Where that fails, no connection goes on."""
        try:
            self.log.flush()
        except AuditUnavailable as error:
            for session in self._sessions.values():
                session.end_connections(Reason.AUDIT_UNAVAILABLE, str(error))

    def lease_ended(self) -> None:
        """A runner's connection has closed."""
        if not self._sessions:
            self._on_idle()

    def close(self, *, sign: bool = False) -> None:
        """End everything and finish the log, with a signed checkpoint where `sign` asks for it."""
        for session in tuple(self._sessions.values()):
            self.close_session(session, Reason.BROKER_STOPPED)
        self.reactor.close()
        self._resolver.close()
        with suppress(AuditUnavailable):
            self.log.close(sign=sign)

    def _current_links(self) -> Links:
        if self.reactor.now - self._links_read > LINKS_SECONDS:
            with suppress(OSError):
                self._links = read_links()
            self._links_read = self.reactor.now
        return self._links

    def _failed(self, callback: Callable[..., None], error: Exception) -> None:
        """The one guard: our own fault ends the connection that met it, on record, and nothing else."""
        traceback.print_exception(error, file=sys.stderr)
        abort = getattr(getattr(callback, "__self__", None), "abort", None)
        if abort is not None:
            try:
                abort(Reason.INTERNAL, type(error).__name__)
            except Exception as second:  # noqa: BLE001  the others of this turn must still be served
                traceback.print_exception(second, file=sys.stderr)
