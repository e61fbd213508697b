"""The upstream's side of one HTTP/1.1 connection: from the pool or freshly reached, used for one request at a time."""

from collections.abc import Callable, Sequence

from broker.gateway.reach import Reaching, broken_upstream
from broker.gateway.reactor import HANGUP, OUT, Handler
from broker.gateway.requests import Question
from broker.gateway.session import Session
from broker.gateway.streams import Piece
from broker.gateway.upstreams import Pool, Upstream
from broker.policy.authority import Authority
from broker.policy.decide import Allowed
from broker.policy.reasons import Refusal
from broker.policy.rule import ORDINARY
from broker.wire.http1.rewrite import Scheme


class UpstreamSide:
    """Holds at most one upstream. `reached` or `failed` is called once for each `reach`, maybe at once."""

    __slots__ = (
        "_failed",
        "_on_event",
        "_own",
        "_pool",
        "_question",
        "_reached",
        "_reaching",
        "_scheme",
        "_session",
        "_taken",
        "current",
        "hung_up",
    )

    def __init__(
        self,
        session: Session,
        scheme: Scheme,
        *,
        on_event: Handler,
        reached: Callable[[Upstream], None],
        failed: Callable[[Refusal], None],
    ) -> None:
        self._session = session
        self._scheme: Scheme = scheme
        self._on_event = on_event
        self._reached = reached
        self._failed = failed
        self._reaching: Reaching | None = None
        self._question: Question | None = None
        self._pool: Pool = ""
        self._own: tuple[Pool, Authority, Upstream] | None = None  # kept for this connection's next request
        self._taken = 0  # bytes that the current upstream had been given before
        self.current: Upstream | None = None
        self.hung_up = False  # the current one has said that it sends nothing more

    @property
    def blocked(self) -> bool:
        """Whether the upstream has not taken all that it was given."""
        return self.current is not None and self.current.outlet.blocked

    @property
    def bytes_up(self) -> int:
        """What the current request has given to its upstream."""
        return self.current.outlet.accepted - self._taken if self.current is not None else 0

    @property
    def may_be_stale(self) -> bool:
        """Whether a failure may only mean that a kept connection was closed meanwhile (RFC 9112 §9.3.1)."""
        return self.current is not None and self.current.used

    def reach(self, question: Question, allowed: Allowed, *, fresh: bool = False) -> None:
        """Get an upstream for a judged request. `fresh`: not one that was kept."""
        self._question = question
        authority = question.facts.authority
        rule = allowed.rule.upstream
        opened = allowed.addresses
        # One that was reached with a rule's certificate, or at an address that a rule opens, serves no other rule.
        pool = self._pool = self._scheme if rule is ORDINARY and not opened else (self._scheme, rule, opened)
        if not fresh:
            kept = self._take_own(pool, authority)
            if kept is not None:
                self._begin(kept)
                return
            kept = self._session.upstreams.take(pool, authority)
            if kept is not None:
                self._use(kept)
                return
        self._reaching = reaching = Reaching(
            self._session.dialler,
            self._session.inspector,
            scheme=self._scheme,
            authority=authority,
            seconds=self._session.limits.connect_seconds,
            done=self._outcome,
            rule=rule,
        )
        reaching.start(opened)

    def explain(self, error: OSError) -> Refusal:
        """Why the upstream broke."""
        assert self._question is not None
        return broken_upstream(error, self._question.facts.authority)

    def put(self, pieces: Sequence[Piece]) -> None:
        """Send, or keep until the upstream takes it. Raises OSError when it is broken."""
        if self.current is not None:
            self.current.outlet.put(pieces)

    def release(self, *, reusable: bool) -> None:
        """The response is whole: keep the upstream for this connection's next request, or close it."""
        upstream, self.current = self.current, None
        if upstream is None or self._question is None:
            return
        if reusable and not self.hung_up and not upstream.outlet.blocked and self._is_quiet(upstream):
            self._drop_own()
            upstream.used = True
            self._own = (self._pool, self._question.facts.authority, upstream)
        else:
            self._close(upstream)

    def stir(self, events: int) -> None:
        """An event while no request is under way: a kept upstream has nothing to say, so it ends or broke."""
        if self._own is not None and (events & HANGUP or (events & ~OUT and not self._is_quiet(self._own[2]))):
            self._drop_own()

    def leave(self) -> None:
        """The client's connection is over: what is under way is reset, what was kept goes to the session's pool."""
        self.rest()
        self.drop()

    def rest(self) -> None:
        """Nothing is asked for the moment: whoever of the session asks next may have the upstream that was kept."""
        own, self._own = self._own, None
        if own is not None:
            self._session.upstreams.give(*own)

    def _is_quiet(self, upstream: Upstream) -> bool:
        """Whether no payload and no end waits in it. An alert that came right behind the response raises no edge."""
        stream = upstream.stream
        if stream.is_drained():
            return True
        try:
            stream.receive(self._session.reactor.view[:1])
        except BlockingIOError:
            return True  # TLS had something to say for itself, such as a session ticket
        except OSError:
            pass
        return False

    def _take_own(self, pool: Pool, authority: Authority) -> Upstream | None:
        own = self._own
        # By identity first: authorities are parsed by way of a cache, and comparing them costs more than all the rest.
        if own is None or own[0] != pool or (own[1] is not authority and own[1] != authority):
            return None
        self._own = None
        return own[2]

    def _drop_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            self._close(own[2])

    def _close(self, upstream: Upstream) -> None:
        self._session.reactor.remove(upstream.stream.sock.fileno())
        upstream.stream.close()

    def hand_over(self) -> Upstream:
        """Give the upstream away, to a tunnel."""
        upstream, self.current = self.current, None
        assert upstream is not None
        return upstream

    def drop(self) -> None:
        """Stop reaching, and reset what was reached: nobody may take it for a clean end."""
        if self._reaching is not None:
            self._reaching.cancel()
            self._reaching = None
        upstream, self.current = self.current, None
        if upstream is not None:
            self._session.reactor.remove(upstream.stream.sock.fileno())
            upstream.stream.reset()

    def _outcome(self, outcome: Upstream | Refusal) -> None:
        self._reaching = None
        if isinstance(outcome, Refusal):
            self._failed(outcome)
        else:
            self._use(outcome)

    def _use(self, upstream: Upstream) -> None:
        self._session.reactor.replace(upstream.stream.sock.fileno(), self._on_event)
        self._begin(upstream)

    def _begin(self, upstream: Upstream) -> None:
        self.current = upstream
        self.hung_up = False
        self._taken = upstream.outlet.accepted
        self._reached(upstream)
