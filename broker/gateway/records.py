"""Audit records of what the data path does, with what one session always says filled in."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from broker.audit.errors import AuditUnavailable
from broker.audit.log import Counts
from broker.audit.records import Event, Kind, Plane, Record, Verdict
from broker.gateway.flood import WINDOW_SECONDS, Flood
from broker.policy.decide import Denied
from broker.policy.decide import Verdict as Decision
from broker.policy.reasons import Family, Reason, Refusal

PROGRESS_SECONDS = 60.0
# Looked up once: a member of an Enum class costs more than the rest of a comparison.
_DECISION, _ALLOW, _CLOSE = Kind.DECISION, Verdict.ALLOW, Kind.CLOSE
_FAILURES = frozenset(reason for reason in Reason if reason.family is Family.FAILURE)


class About(msgspec.Struct):
    """What a connection or request is about: the same words in its decision, its failure and its close record."""

    plane: Plane
    wanted: str
    scheme: str = ""
    authority: str = ""
    method: str = ""
    path: str = ""
    record: str = ""  # the decision's id, once there is one
    started: float = 0.0  # on the reactor's clock
    dialled: str = ""
    rule: str = ""
    progressed: float = 0.0  # when the last progress record was due


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Writes the records of one session. `append` is the log's; it raises when the log cannot take a record. `later`
    calls back once, after so many seconds.

    Only an allow passes that on, because nothing may be allowed without a record: a refusal or an end happens anyway.
    """

    append: Callable[[Record], str]
    now: Callable[[], float]
    later: Callable[[float, Callable[[], None]], object]
    policy: str
    session: str
    call: str = ""
    grant: str = ""
    counts: Counts = field(default_factory=Counts)
    _flood: Flood = field(default_factory=Flood)
    _telling: bool = False

    def decide(self, about: About, decision: Decision) -> str:
        """Record a verdict; its id is kept in `about` for what follows."""
        about.started = about.started or self.now()
        if isinstance(decision, Denied):
            about.rule = decision.rule.name if decision.rule else ""
            return self._write(_DECISION, about, Verdict.DENY, decision.reason, decision.detail)
        about.rule = decision.rule.name
        would = decision.would
        detail = f"would be denied: {would.reason}: {would.detail}" if would else ""
        return self._allow(about, decision.reason, detail)

    def refuse(self, about: About, refusal: Refusal, *, bytes_up: int = 0, bytes_down: int = 0) -> str:
        """Record input that was refused, or a failure before or after an allow, with what had moved by then."""
        failed = refusal.reason.family is Family.FAILURE
        about.started = about.started or self.now()
        kind = Kind.CLOSE if about.record else Kind.DECISION
        verdict = Verdict.FAILURE if failed else Verdict.DENY
        return self._write(kind, about, verdict, refusal.reason, refusal.detail, moved=(bytes_up, bytes_down))

    def close(  # noqa: PLR0913
        self, about: About, reason: Reason, detail: str, *, bytes_up: int, bytes_down: int, status: int = 0
    ) -> None:
        """Record the end of what was allowed."""
        if reason in _FAILURES or not about.record:
            verdict = Verdict.FAILURE if reason in _FAILURES else None
            self._write(_CLOSE, about, verdict, reason, detail, moved=(bytes_up, bytes_down), status=status)
            return
        # Without what is only for refusals: this follows nearly every allow.
        with suppress(AuditUnavailable):  # the end stands without one; the log counts what it turned away
            self.append(self._record(_CLOSE, about, None, reason, detail, bytes_up, bytes_down, status))

    def progress(self, about: About, *, bytes_up: int, bytes_down: int) -> None:
        """Record once a minute that something long goes on: a tunnel of hours must not be invisible until it ends."""
        since = about.progressed or about.started
        if self.now() - since < PROGRESS_SECONDS:
            return
        about.progressed = self.now()
        self._write(Kind.PROGRESS, about, None, None, "", moved=(bytes_up, bytes_down))

    def session_event(self, event: Event, detail: str = "") -> None:
        """Record the begin or the end of the session."""
        self._tell()
        record = Record(
            kind=Kind.SESSION,
            event=event,
            session=self.session,
            call=self.call,
            grant=self.grant,
            policy=self.policy,
            detail=detail,
        )
        self.append(record)

    def _allow(self, about: About, reason: Reason, detail: str) -> str:
        """`_write` for what nearly every record begins with; what goes wrong here must not go on."""
        identity = self.append(self._record(_DECISION, about, _ALLOW, reason, detail))
        self.counts.allowed += 1
        about.record = about.record or identity
        return identity

    def _write(  # noqa: PLR0913
        self,
        kind: Kind,
        about: About,
        verdict: Verdict | None,
        reason: Reason | None,
        detail: str,
        *,
        moved: tuple[int, int] = (0, 0),
        status: int = 0,
    ) -> str:
        record = self._record(kind, about, verdict, reason, detail, *moved, status)
        refusal = not about.record  # nothing was allowed before
        identity = self._flood.hold(record, self.now()) if refusal else None
        if identity is None:
            try:
                identity = self.append(record)
            except AuditUnavailable:
                return ""  # a refusal stands without a record; the log itself counts what it had to turn away
            if refusal:
                self._flood.wrote(record, identity)
                self._tell_later()
        if verdict is not None:
            self.counts.add(record)
        about.record = about.record or identity
        return identity

    def _record(  # noqa: PLR0913, PLR0917  (by position: it is faster, and made for every request)
        self,
        kind: Kind,
        about: About,
        verdict: Verdict | None,
        reason: Reason | None,
        detail: str,
        bytes_up: int = 0,
        bytes_down: int = 0,
        status: int = 0,
    ) -> Record:
        return Record(
            kind=kind,
            ref=about.record,
            session=self.session,
            call=self.call,
            grant=self.grant,
            policy=self.policy,
            plane=about.plane,
            wanted=about.wanted,
            scheme=about.scheme,
            authority=about.authority,
            method=about.method,
            path=about.path,
            verdict=verdict,
            reason=reason,
            rule=about.rule,
            detail=detail,
            dialled=about.dialled,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            duration_ms=0.0 if kind is _DECISION else int((self.now() - about.started) * 10_000) / 10,
            status=status,
        )

    def _tell_later(self) -> None:
        if self._flood.is_counting and not self._telling:
            self._telling = True
            self.later(WINDOW_SECONDS, self._tell)

    def _tell(self) -> None:
        """Put on record what was only counted."""
        self._telling = False
        for record in self._flood.drain():
            # Refused where it cannot be written, like what it stands for; the log says that it turned something away.
            with suppress(AuditUnavailable):
                self.append(record)
