"""What the control API does: one method an operation, named as in `routes.ROUTES`.

Order matters here: what takes a right away is done first and then put on record; what gives one is on record before it
is answered, or is not given.
"""

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from broker.api.callers import Caller, this_process
from broker.api.faults import ApiError
from broker.audit.log import AuditLog
from broker.audit.records import Event, Kind
from broker.control import schema
from broker.control.aside import let_go, parse_aside
from broker.control.faults import Fault, RulesError, finding_document
from broker.control.grants import GrantBook, time_of
from broker.control.journal import Journal, with_request
from broker.control.messages import Attach
from broker.control.openapi import openapi_document
from broker.control.store import Store, StoreError
from broker.policy.decide import Allowed
from broker.policy.explain import explain
from broker.policy.problems import Mistake, PolicyError, Problem
from broker.policy.requests import parse_request
from broker.policy.rules import Policy, with_flag
from broker.workers.link import WorkerLink
from broker.workers.messages import SessionFigures
from broker.workers.pool import Events, WorkerPool


@dataclass(slots=True, kw_only=True)
class Operations:
    """See the module. `read_policy` gives the text of the policy file, checked for who can write it."""

    workers: WorkerPool
    log: AuditLog
    book: GrantBook
    store: Store
    policy: Policy
    source: str
    read_policy: Callable[[], Awaitable[str]]
    version: str
    user_namespace: bool
    started_at: float = field(default_factory=time.time)
    loaded_at: float = field(default_factory=time.time)
    attached: int = 0
    stopping: bool = False
    troubles: dict[str, str] = field(default_factory=dict)
    journal: Journal = field(init=False)
    _reloading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _switching: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.journal = Journal(log=self.log, policy=lambda: self.policy.version)
        self.workers.events = Events(
            lost=self._record_lost, started=self.journal.worker_started, ended=self.journal.worker_ended
        )

    @property
    def in_force(self) -> Policy:
        """The policy file under the operator's switch."""
        return self.policy if self.store.switched_on else with_flag(self.policy, enabled=False)

    # ---- health, policy, egress

    async def show_health(self, _: Caller) -> schema.Health:
        """Always answered."""
        silent = await self.workers.learn_all()
        workers = self.workers.serving
        served = any(link.ready for link in workers) and all(link.can_record for link in workers)
        degraded = [*self._degraded(), *_silent(silent)]
        return schema.Health(
            ready=self.log.available and served and not self.stopping,
            degraded=[schema.Degradation(code=code, detail=detail) for code, detail in degraded],
            version=self.version,
            pid=os.getpid(),
            started_at=time_of(self.started_at),
            user_namespace=self.user_namespace,
            policy=self.policy.version,
            egress=self.in_force.enabled,
            workers=[_worker_document(link) for link in workers],
        )

    async def show_policy(self, _: Caller) -> schema.PolicyDocument:
        """The file's policy, whatever the switch says."""
        policy = self.policy
        return schema.PolicyDocument(
            version=policy.version,
            source=self.source,
            enabled=policy.enabled,
            mode=policy.mode.value,
            require_grant=policy.require_grant,
            rules=len(policy.rules),
            notes=[finding_document(note) for note in policy.notes],
            loaded_at=time_of(self.loaded_at),
        )

    async def reload_policy(self, caller: Caller) -> schema.PolicyDocument:
        """Swap the policy whole, or keep it whole and say loudly why."""
        async with self._reloading:
            try:
                text = await self.read_policy()
                policy = await self._parse(text)
            except PolicyError as error:
                self._refuse_reload(caller, error)
                raise RulesError(Fault.POLICY_REFUSED, str(error), findings=error.problems) from None
            before = self.in_force.enabled
            former = [self.policy]
            self.policy, self.loaded_at = policy, time.time()
            self.troubles.pop("policy_reload_failed", None)
            self.journal.note(Kind.POLICY, Event.LOADED, caller, f"{len(policy.rules)} rules, {_flag(policy.enabled)}")
            await self.workers.take_policy(policy)
            if before != self.in_force.enabled:
                self.journal.note(Kind.POLICY, Event.FLAG, caller, f"egress {_flag(not before)} by the policy file")
            await let_go(former)
            return await self.show_policy(caller)

    async def show_egress(self, _: Caller) -> schema.Egress:
        """Flag, switch and what comes of both."""
        return schema.Egress(
            enabled=self.in_force.enabled,
            policy_enabled=self.policy.enabled,
            switched_on=self.store.switched_on,
        )

    async def switch_egress(self, caller: Caller, body: schema.SwitchEgress) -> schema.Egress:
        """Off takes hold before anything else is tried."""
        words = f"egress {_flag(body.enabled)} by the operator"
        if not body.enabled:
            await self.workers.switch(on=False)  # without waiting for somebody who is turning it on
        async with self._switching:
            if body.enabled:
                self.journal.note_or_refuse(Kind.POLICY, Event.FLAG, caller, words)
                self.store.switched_on = True
            await self.workers.switch(on=body.enabled)
            if not body.enabled:
                self.journal.note(Kind.POLICY, Event.FLAG, caller, words)
                self._keep_switched_off()
        return await self.show_egress(caller)

    def _keep_switched_off(self) -> None:
        try:
            self.store.switched_on = False
        except StoreError as error:
            detail = f"Switched off, but only until a restart: {error}"
            raise ApiError(Fault.RECORD_UNAVAILABLE, detail) from error

    # ---- grants

    async def issue_grant(self, caller: Caller, body: schema.IssueGrant) -> schema.Grant:
        """Kept and on record before its id is told to anybody."""
        if not self.log.available:
            raise ApiError(Fault.RECORD_UNAVAILABLE, self.log.cause)
        try:
            grant = self.book.issue(body, self.policy, str(caller))
        except ApiError as error:
            words = f"a grant was refused: {error.fault.code}: {error.detail}"
            self.journal.note(Kind.GRANT, Event.REFUSED, caller, words, call=body.call or "")
            raise
        except StoreError as error:
            raise ApiError(Fault.RECORD_UNAVAILABLE, str(error)) from error
        rules = ", ".join(rule.name for rule in grant.rules)
        words = f"expires {time_of(grant.expires_at):%Y-%m-%dT%H:%M:%SZ}; rules {rules}"
        try:
            self.journal.note_or_refuse(Kind.GRANT, Event.ISSUED, caller, words, grant=grant.id, call=grant.call)
        except ApiError:
            self.book.withdraw(grant.id)
            raise
        return self.book.show(grant.id)

    async def list_grants(self, _: Caller, query: schema.GrantQuery) -> schema.GrantPage:
        """A page."""
        await self.workers.learn_all()
        return await self.book.page(query)

    async def show_grant(self, _: Caller, *, id: str) -> schema.Grant:  # noqa: A002  the path's own word
        """One, with its use."""
        await self.workers.learn(id)
        return self.book.show(id)

    async def revoke_grant(self, caller: Caller, *, id: str) -> schema.Grant:  # noqa: A002
        """What is open is cut before the answer. Revoking twice is no error, and is on record once."""
        unkept = ""
        try:
            meter = self.book.revoke(id)
        except StoreError as error:
            meter, unkept = self.book.find_meter(id), str(error)
        if meter is not None:
            await self.workers.end_grant(id)
            self.journal.note(Kind.GRANT, Event.REVOKED, caller, "", grant=id, call=meter.grant.call)
        if unkept:
            raise ApiError(Fault.RECORD_UNAVAILABLE, f"Revoked, but only until a restart: {unkept}")
        return self.book.show(id)

    # ---- sessions

    async def list_sessions(self, _: Caller) -> schema.SessionList:
        """All that are attached."""
        await self.workers.learn_all()
        return schema.SessionList(sessions=[_session_document(one) for one in self.workers.sessions])

    async def show_session(self, _: Caller, *, id: str) -> schema.Session:  # noqa: A002
        """One that is attached."""
        return await self._session(id)

    async def cut_session(self, caller: Caller, *, id: str) -> schema.Session:  # noqa: A002
        """For good: it may not attach again."""
        document = await self._session(id)
        await self.workers.cut_session(id, with_request(f"cut by the operator ({caller})", caller))
        return document

    # ---- questions

    async def explain(self, _: Caller, body: schema.Explain) -> schema.Explanation:
        """Judge a request as the data path would, and say why."""
        try:
            facts = parse_request(body.method, body.url)
        except Mistake as mistake:
            raise ApiError(Fault.INVALID_FIELD, str(mistake), field="url") from None
        meter = self.book.find_meter(body.grant) if body.grant else None
        if body.grant and meter is None:
            raise ApiError(Fault.UNKNOWN_GRANT, "No grant has this id.", field="grant")
        policy = self.in_force
        found = explain(facts, policy, meter.grant if meter is not None else None, time.time())
        verdict = found.verdict
        would = verdict.would if isinstance(verdict, Allowed) else None
        return schema.Explanation(
            verdict="allow" if isinstance(verdict, Allowed) else "deny",
            reason=str(verdict.reason),
            rule=verdict.rule.name if verdict.rule is not None else None,
            would=str(would.reason) if would is not None else None,
            policy=policy.version,
            sentence=found.sentence,
            turn=found.turn,
        )

    async def show_counters(self, _: Caller) -> schema.Counters:
        """Totals and what is open."""
        await self.workers.learn_all()
        totals, sessions = self.workers.totals, self.workers.sessions
        return schema.Counters(
            sessions=len(sessions),
            connections=sum(one.connections for one in sessions),
            attached=self.attached,
            allowed=totals.allowed,
            denied=totals.denied,
            failures=totals.failures,
            peers_refused=self.journal.peers_refused,
            grants_open=self.book.count_open(),
        )

    async def show_openapi(self, _: Caller) -> dict[str, Any]:
        """This API's own description."""
        return openapi_document()

    # ---- for the daemon

    def record_start(self) -> None:
        """Which policy is in force from the start, and what became of the grants."""
        policy = self.policy
        switched = "" if self.store.switched_on else ", switched off by the operator"
        words = f"{len(policy.rules)} rules, {_flag(policy.enabled)}{switched}"
        self.journal.note(Kind.POLICY, Event.LOADED, this_process(), words)
        if self.book.ended_with_the_machine:
            words = f"{self.book.ended_with_the_machine} grants ended: the machine went down without a clean end"
            self.journal.note(Kind.GRANT, Event.REVOKED, this_process(), words)

    def _record_lost(self, attach: Attach, worker: int) -> None:
        meter = None
        with suppress(StoreError):
            meter = self.book.find_meter(attach.grant) if attach.grant else None
        self.journal.session_lost(attach, attach.call or (meter.grant.call if meter is not None else ""), worker)

    async def _session(self, session: str) -> schema.Session:
        await self.workers.learn_all()
        found = next((one for one in self.workers.sessions if one.id == session), None)
        if found is None:
            raise ApiError(Fault.UNKNOWN_SESSION, "No attached session has this id.", field="id")
        return _session_document(found)

    def _degraded(self) -> list[tuple[str, str]]:
        found = list((dict(self.workers.troubles) | self.troubles).items())
        if not self.log.available:
            found.append(("log_unavailable", self.log.cause))
        if self.policy.enabled and not self.store.switched_on:
            found.append(("egress_switched_off", "The operator's switch is off; PUT /v1/egress turns it on."))
        if not self.user_namespace:
            words = "No user namespace could be entered; capabilities are dropped all the same."
            found.append(("no_user_namespace", words))
        if self.stopping:
            found.append(("stopping", "The broker is about to end."))
        return found

    async def _parse(self, text: str) -> Policy:
        """Our own fault with a policy is no reason to end, and none to take it. Raises `PolicyError`."""
        try:
            return await parse_aside(text, self.source)
        except PolicyError:
            raise
        except Exception as error:
            traceback.print_exception(error)
            problem = Problem(found=f"the reader failed: {type(error).__name__}", expected="nothing of the kind")
            raise PolicyError(self.source, [problem]) from error

    def _refuse_reload(self, caller: Caller, error: PolicyError) -> None:
        words = f"the policy in force stays {self.policy.version}: {error}"
        self.troubles["policy_reload_failed"] = words
        print(f"wicketgate: reload refused, {words}", file=sys.stderr, flush=True)
        self.journal.note(Kind.POLICY, Event.RELOAD_FAILED, caller, words)


def _session_document(session: SessionFigures) -> schema.Session:
    return schema.Session(
        id=session.id,
        call=session.call,
        grant=session.grant or None,
        attached_at=time_of(session.attached_at),
        connections=session.connections,
        allowed=session.allowed,
        denied=session.denied,
        failures=session.failures,
        name_queries=session.name_queries,
    )


def _worker_document(link: WorkerLink) -> schema.Worker:
    return schema.Worker(pid=link.pid, log=link.log, ready=link.ready, sessions=len(link.orders))


def _silent(links: list[WorkerLink]) -> list[tuple[str, str]]:
    return [("worker_silent", f"Worker {link.number} (pid {link.pid}) did not answer in time.") for link in links]


def _flag(on: bool) -> str:
    return "on" if on else "off"
