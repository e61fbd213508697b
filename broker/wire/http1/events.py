"""What the owner of an exchange has to do: a closed set of values, carried out in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.framing import Piece
from broker.wire.http1.heads import RequestHead


@dataclass(frozen=True, slots=True)
class Judge:
    """A whole request head: answer with `allow`, `deny` or `tunnel`."""

    head: RequestHead


@dataclass(frozen=True, slots=True)
class SendClient:
    """Send to the client. Views are of the data just fed: send or copy them before that buffer is used again."""

    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class SendUpstream:
    """Send to the upstream; as `SendClient`."""

    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class RequestSent:
    """The request is whole and sent: from here on only the response is awaited."""


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """The response is whole and sent. The upstream goes back to the pool if `reusable`, else it is closed."""

    status: int
    reusable: bool


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """The client's octets cannot be accepted: send it the problem document of `refusal`, then close, lingering."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class UpstreamFailed:
    """No response has begun: answer with `deny`, or, if `repeatable`, `allow` once more with a new connection."""

    refusal: Refusal
    repeatable: bool


@dataclass(frozen=True, slots=True)
class CloseClient:
    """Close after what was sent. `linger`: the client may still be sending, so read on a little, lest a reset from
    unread octets destroys the answer before it is read (RFC 9112 §9.6).
    """

    linger: bool = False


@dataclass(frozen=True, slots=True)
class AbortClient:
    """Reset the client's connection: what it has received is not whole and must not look so."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class AbortUpstream:
    """Reset the upstream's connection, for the same reason; it never goes back to the pool."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Switched:
    """HTTP is over: join the two sides as they are, after these octets that have already arrived from each."""

    client: bytes
    upstream: bytes


type Event = (
    Judge
    | SendClient
    | SendUpstream
    | RequestSent
    | ResponseEnded
    | ClientRefused
    | UpstreamFailed
    | CloseClient
    | AbortClient
    | AbortUpstream
    | Switched
)
