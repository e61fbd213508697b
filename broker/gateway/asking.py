"""What a session asks of one authority, and the verdicts on it; what is asked again is not judged anew.

A verdict is taken over only where everything that `decide` looks at is the very same: the facts, the policy, the grant,
and the clock for as long as the grant lives. Budgets are spent and records are made for each request, elsewhere.
"""

from collections.abc import Callable
from typing import Protocol

from broker.gateway.requests import Question, question
from broker.policy.authority import Authority
from broker.policy.decide import Allowed, Facts, Stage, Verdict
from broker.policy.grants import Grant
from broker.policy.rules import Policy
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.remembered import Remembered
from broker.wire.http1.rewrite import Scheme


class Judge(Protocol):
    """Of a session what verdicts come from."""

    policy: Policy
    grant: Grant | None

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds since the epoch, for the grant's end."""

    def decide(self, facts: Facts) -> Verdict:
        """The verdict under this policy and grant, now."""


class LastVerdict:
    """One verdict, taken over as long as nothing that it came from has changed."""

    __slots__ = ("_allowed", "_facts", "_grant", "_judge", "_policy")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._facts: Facts | None = None
        self._policy: Policy | None = None
        self._grant: Grant | None = None
        self._allowed: Allowed | None = None

    def on(self, facts: Facts) -> Verdict:
        """The verdict on `facts`, now. Only an allow is remembered."""
        judge = self._judge
        policy, grant = judge.policy, judge.grant
        known = self._allowed
        same = facts is self._facts and policy is self._policy and grant is self._grant
        if known is not None and same and (grant is None or judge.clock() < grant.expires_at):
            return known
        found = judge.decide(facts)
        self._facts, self._policy, self._grant = facts, policy, grant
        self._allowed = found if isinstance(found, Allowed) else None
        return found


class Asking:
    """See the module. `asked` is the authority that the connections are opened for; None for the explicit proxy.

    `remembered`: what their octets came to. It holds for one set of limits, so a change of policy ends an `Asking`.
    """

    __slots__ = ("_asked", "_facts", "_head", "_of_connection", "_of_request", "_question", "_scheme", "remembered")

    def __init__(self, judge: Judge, scheme: Scheme, asked: Authority | None) -> None:
        self._scheme: Scheme = scheme
        self._asked = asked
        self._head: RequestHead | None = None
        self._question: Question | None = None
        self._facts = Facts(stage=Stage.CONNECTION, scheme=scheme, authority=asked) if asked is not None else None
        self._of_connection = LastVerdict(judge)
        self._of_request = LastVerdict(judge)
        self.remembered = Remembered()

    def question(self, head: RequestHead) -> Question:
        """Read what a request is about. Raises Refusal for what cannot be judged."""
        if head is self._head and self._question is not None:
            return self._question
        found = question(head, self._scheme, self._asked, self._head)
        self._head, self._question = head, found
        return found

    def verdict(self, facts: Facts) -> Verdict:
        """The verdict on a request, now."""
        return self._of_request.on(facts)

    def connection(self) -> Verdict:
        """The verdict on a connection to the authority, now. Not for the explicit proxy, which is opened for none."""
        assert self._facts is not None
        return self._of_connection.on(self._facts)
