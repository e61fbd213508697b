"""The upstream of an HTTP/2 client connection: reached for the first allowed request, and shared by those that may be.

A request goes over it only where its own rule has the same upstream certificate and opens the address that it is at.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from broker.gateway.h2_exchange import H2Exchange
from broker.gateway.h2_upstream import Owner, UpstreamLink
from broker.gateway.reach import Reaching
from broker.gateway.upstreams import Upstream
from broker.policy.addresses import Network
from broker.policy.authority import Authority
from broker.policy.reasons import Reason, Refusal
from broker.policy.rule import ORDINARY

if TYPE_CHECKING:
    from broker.gateway.session import Session

ALPN: Final = ("h2",)


class SharedUpstream:
    """`waiting` gives the exchanges that were given to `send` and have no link yet."""

    def __init__(
        self,
        session: "Session",
        authority: Authority,
        owner: Owner,
        waiting: Callable[[], Iterable[H2Exchange]],
    ) -> None:
        self._session = session
        self._authority = authority
        self._owner = owner
        self._waiting = waiting
        self._link: UpstreamLink | None = None  # where the next request goes
        self._reaching: Reaching | None = None
        self._rule = ORDINARY  # of the upstream that is reached or in use
        self._opened: tuple[Network, ...] = ()  # what else it could have been reached at

    @property
    def last(self) -> float:
        """When it said something, on the reactor's clock."""
        return self._link.last if self._link is not None else 0.0

    def send(self, exchange: H2Exchange) -> None:
        """Send a judged request, now or when the upstream is there."""
        rule = exchange.allowed.rule.upstream
        if (self._link is not None or self._reaching is not None) and rule != self._rule:
            detail = "another rule's certificate is in use on this connection; open a new one"
            self._owner.fail(exchange, Refusal(Reason.UPSTREAM_PROTOCOL, detail))
        elif self._link is not None:
            self._send_over(self._link, exchange)
        elif self._reaching is None:
            self._rule = rule
            self._opened = exchange.allowed.addresses
            self._reaching = reaching = Reaching(
                self._session.dialler,
                self._session.inspector,
                scheme="https",
                authority=self._authority,
                seconds=self._session.limits.connect_seconds,
                done=self._reached,
                alpn=ALPN,
                rule=rule,
            )
            reaching.start(self._opened)

    def link_ended(self, link: UpstreamLink) -> None:
        """The next request needs another one."""
        if self._link is link:
            self._link = None

    def leave(self) -> None:
        """Stop reaching; what is reached stays until `release`, since exchanges are ended over it."""
        if self._reaching is not None:
            self._reaching.cancel()
            self._reaching = None

    def release(self) -> None:
        """Let go of the link."""
        link, self._link = self._link, None
        if link is not None:
            link.release()

    def _reached(self, outcome: Upstream | Refusal) -> None:
        self._reaching = None
        waiting = list(self._waiting())
        if isinstance(outcome, Refusal):
            for exchange in waiting:
                self._owner.fail(exchange, outcome)
            return
        self._link = link = UpstreamLink(self._session, outcome, self._owner, self._authority)
        link.start()
        for exchange in waiting:
            self._send_over(link, exchange)

    def _send_over(self, link: UpstreamLink, exchange: H2Exchange) -> None:
        """Over an upstream that was reached for another request, if this one's rule opens its address too."""
        opened = exchange.allowed.addresses
        refusal = None if opened == self._opened else self._session.dialler.refuses(link.address, opened)
        if refusal is None:
            link.send(exchange)
        else:
            self._owner.fail(exchange, refusal)
