"""What follows an accepted upgrade to a WebSocket: two joined streams, on record under the request that asked."""

from broker.gateway.http_request import CurrentRequest
from broker.gateway.relay import Joinable, Tunnel
from broker.gateway.session import Session
from broker.policy.reasons import Reason

SWITCHED = 101


class Upgraded:
    """Takes over two sockets that the reactor watches.

    `heads`: bytes of the request and its answer. `early`, `late`: what came behind them already.
    """

    __slots__ = ("_heads", "_request", "_session", "_tunnel")

    def __init__(  # noqa: PLR0913
        self,
        session: Session,
        request: CurrentRequest,
        client: Joinable,
        upstream: Joinable,
        *,
        heads: tuple[int, int],
        early: bytes,
        late: bytes,
    ) -> None:
        self._session = session
        self._request = request
        self._heads = heads
        self._tunnel = Tunnel(
            session.reactor,
            client,
            upstream,
            limits=session.limits,
            watcher=self,
            meter=session.meter,
            early=early,
            late=late,
        )

    def start(self) -> None:
        """Join them."""
        self._session.remember(self)
        self._tunnel.start()

    def abort(self, reason: Reason, detail: str = "") -> None:
        """End it with resets and a record."""
        self._tunnel.end(reason, detail)

    def judge_again(self) -> None:
        """End it where the policy does not allow it any more."""
        if denied := self._request.judge_again():
            self.abort(Reason.POLICY_CHANGED, denied.detail)

    def tunnel_lives(self, tunnel: Tunnel) -> None:
        """Put a long one on record."""
        self._request.goes_on(*self._moved(tunnel))

    def tunnel_ended(self, tunnel: Tunnel, reason: Reason, detail: str) -> None:
        """It is over."""
        self._session.forget(self)
        self._request.close(reason, detail, SWITCHED, self._moved(tunnel))

    def _moved(self, tunnel: Tunnel) -> tuple[int, int]:
        up, down = self._heads
        return up + tunnel.bytes_up, down + tunnel.bytes_down
