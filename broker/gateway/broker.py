"""The broker: its sessions, its log, its reactor, and the rule that nothing goes on without a log."""

import asyncio
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from broker.audit.errors import AuditUnavailable
from broker.audit.log import AuditLog
from broker.audit.records import Record
from broker.gateway.capture import capture
from broker.gateway.dial import Dialler
from broker.gateway.inspector import Inspector
from broker.gateway.links import Links, read_links
from broker.gateway.reactor import Reactor
from broker.gateway.records import Recorder
from broker.gateway.resolve import Resolver
from broker.gateway.session import Identity, Session
from broker.policy.grants import Grant
from broker.policy.reasons import Reason, Refusal
from broker.policy.rules import Policy

LINKS_SECONDS = 10.0  # how old the knowledge of the host's own addresses may be

type FindGrant = Callable[[str], Grant | None]


class Broker:
    """See the module. `find_grant` knows the issued grants by id."""

    def __init__(  # noqa: PLR0913
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        policy: Policy,
        log: AuditLog,
        log_location: str,
        resolver: Resolver,
        inspector: Inspector | None = None,
        find_grant: FindGrant = lambda _: None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.policy = policy
        self.log = log
        self.log_location = log_location
        self.reactor = Reactor(loop, end_turn=self.end_turn, failed=self._failed)
        self.dialler = Dialler(self.reactor, resolver, self._current_links, policy.limits)
        self.inspector = inspector
        self._resolver = resolver
        self._find_grant = find_grant
        self._on_idle = on_idle
        self._sessions: dict[str, Session] = {}
        self._links = read_links()
        self._links_read = loop.time()

    def open_session(self, identity: Identity, grant_id: str, listeners: list[socket.socket]) -> Session:
        """Serve a sandbox's listeners. Raises Refusal: the flag is off, the id is taken, the grant is unknown."""
        if not self.policy.enabled:
            raise Refusal(Reason.EGRESS_OFF, "egress is switched off by the server's policy")
        if identity.session in self._sessions:
            raise Refusal(Reason.BAD_REQUEST, "a session of this id is attached already")
        grant = self._find_grant(grant_id) if grant_id else None
        if grant is None and (grant_id or self.policy.require_grant):
            raise Refusal(Reason.GRANT_MISSING, "no such grant")
        recorder = Recorder(
            append=self.log.append,
            now=lambda: self.reactor.now,
            policy=self.policy.version,
            session=identity.session,
            call=identity.call,
            grant=grant_id,
        )
        session = Session(
            identity=identity,
            policy=self.policy,
            grant=grant,
            reactor=self.reactor,
            dialler=self.dialler,
            recorder=recorder,
            listeners=listeners,
            capture=capture,
            flush=self.end_turn,
            inspector=self.inspector,
            clock=time.time,
        )
        self._sessions[identity.session] = session
        session.start()
        return session

    def close_session(self, session: Session, reason: Reason, detail: str = "") -> None:
        """End a session and all of its connections."""
        self._sessions.pop(session.identity.session, None)
        session.close(reason, detail)

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

    def close(self) -> None:
        """End everything and finish the log."""
        for session in tuple(self._sessions.values()):
            self.close_session(session, Reason.BROKER_STOPPED)
        self.reactor.close()
        self._resolver.close()
        with suppress(AuditUnavailable):
            self.log.close(sign=False)

    def record(self, record: Record) -> None:
        """Put something on record that no session said."""
        self.log.append(record)

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
            abort(Reason.INTERNAL, type(error).__name__)
