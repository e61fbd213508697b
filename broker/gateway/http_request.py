"""The request of an HTTP/1.1 connection that is under way: judged once, and on record from its verdict to its end."""

from broker.audit.records import Plane
from broker.gateway.http_upstream import UpstreamSide
from broker.gateway.records import About
from broker.gateway.requests import Question
from broker.gateway.session import Session
from broker.gateway.streams import Outlet
from broker.policy.authority import Authority
from broker.policy.decide import Allowed, Denied, Verdict
from broker.policy.grants import Spend
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.heads import RequestHead
from broker.wire.http1.rewrite import Scheme
from broker.wire.problem import http_response


class CurrentRequest:
    """Of one connection. `asked`, `wanted`, `refused`: as for an `HttpConnection`; `client` and `upstream` count bytes.

    `question` is the last one that could be judged, `allowed` its verdict until its end is on record.
    """

    __slots__ = (
        "_about",
        "_asked",
        "_asking",
        "_client",
        "_down_before",
        "_has_paid",
        "_refused",
        "_scheme",
        "_session",
        "_upstream",
        "_wanted",
        "allowed",
        "question",
    )

    def __init__(  # noqa: PLR0913
        self,
        session: Session,
        client: Outlet,
        upstream: UpstreamSide,
        *,
        scheme: Scheme,
        asked: Authority | None,
        wanted: str,
        refused: Denied | None,
    ) -> None:
        self._session = session
        self._client = client
        self._upstream = upstream
        self._scheme: Scheme = scheme
        self._asked = asked
        self._wanted = wanted
        self._refused = refused
        self._asking = session.asking(scheme, asked)
        self._has_paid = False  # for the connection
        self._down_before = 0
        self._about = self._new_about()
        self.question: Question | None = None
        self.allowed: Allowed | None = None

    def judge(self, head: RequestHead) -> Verdict:
        """The verdict on a request that begins, spent and recorded. What cannot be judged is denied by no rule."""
        about = self._about = self._new_about()
        about.started = self._session.reactor.now
        about.method = head.method
        about.path = head.target.decode("ascii", "replace")
        self._down_before = self._client.accepted
        try:
            asked = self._asking.question(head)
        except Refusal as refusal:
            about.authority = head.host.decode("ascii", "replace")
            denied = Denied(refusal.reason, None, refusal.detail)
            self._session.settle(about, denied)
            return denied
        self.question = asked
        about.authority = str(asked.facts.authority)
        about.plane = Plane.CONNECT if asked.connect else about.plane
        verdict = self._session.settle(about, self._refused or self._asking.verdict(asked.facts), *self._cost(asked))
        if isinstance(verdict, Allowed) and not asked.connect:
            self.allowed = verdict
            self._has_paid = True
        return verdict

    def judge_again(self) -> Denied | None:
        """What the policy has against it by now, if it is under way."""
        if self.question is None or self.allowed is None:
            return None
        verdict = self._session.decide_again(self.question.facts, self.allowed, self._about.dialled)
        return verdict if isinstance(verdict, Denied) else None

    def goes_to(self, address: str) -> None:
        """It has an upstream, at `address`."""
        self._about.dialled = address

    def moved(self) -> tuple[int, int]:
        """Bytes of it and of its response, heads included."""
        return self._upstream.bytes_up, self._client.accepted - self._down_before

    def goes_on(self, bytes_up: int, bytes_down: int) -> None:
        """Put a long one on record."""
        self._session.recorder.progress(self._about, bytes_up=bytes_up, bytes_down=bytes_down)

    def close(self, reason: Reason, detail: str, status: int, moved: tuple[int, int] | None = None) -> None:
        """Put its end on record."""
        self.allowed = None
        up, down = moved or self.moved()
        self._session.recorder.close(self._about, reason, detail, bytes_up=up, bytes_down=down, status=status)

    def fail(self, refusal: Refusal, moved: tuple[int, int]) -> None:
        """Put on record what came of it in place of an end."""
        self.allowed = None
        self._session.recorder.refuse(self._about, refusal, bytes_up=moved[0], bytes_down=moved[1])

    def refuse(self, refusal: Refusal) -> None:
        """Put octets on record that are no acceptable request, or the rest of one that is not."""
        if self.allowed is not None:
            self.fail(refusal, self.moved())
            return
        about = self._about = self._new_about()
        about.authority = str(self._asked) if self._asked else ""
        self._session.settle(about, Denied(refusal.reason, None, refusal.detail))

    def record_silence(self, why: str) -> None:
        """A connection that ended before it asked for anything: the attempt is on record all the same."""
        if self._about.record or self._asked is None:
            return
        self._about.authority = str(self._asked)
        verdict = self._refused or self._asking.connection()
        if isinstance(verdict, Denied):
            self._session.settle(self._about, verdict)
        else:
            detail = f"closed before a request: {why}" if why else "closed before a request"
            self._session.recorder.close(self._about, Reason.CLIENT_CLOSED, detail, bytes_up=0, bytes_down=0)

    def problem(self, reason: Reason, detail: str, *, rule: str | None) -> bytes:
        """The response that says why it is refused, whole."""
        return http_response(
            reason,
            detail=detail,
            rule=rule,
            reachable=self._session.reachable,
            record=self._about.record or None,
            head=self._about.method == "HEAD",
        )

    @property
    def rule(self) -> str | None:
        """The name of the rule that decided on it, if one did."""
        return self._about.rule or None

    def _cost(self, asked: Question) -> tuple[Spend, ...]:
        if asked.connect:
            return ()  # what follows pays
        return (Spend.REQUEST,) if self._has_paid else (Spend.CONNECTION, Spend.REQUEST)

    def _new_about(self) -> About:
        plane = Plane.HTTP if self._scheme == "http" else Plane.INSPECT
        return About(plane, self._wanted, scheme=self._scheme)
