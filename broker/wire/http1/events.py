"""What the owner of an exchange has to do: a closed set of values, carried out in order.

They are msgspec structs for the same reason as the heads: five are made for each request.
"""

from collections.abc import Sequence

import msgspec

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.framing import Piece
from broker.wire.http1.heads import RequestHead


class Judge(msgspec.Struct, frozen=True, gc=False):
    """A whole request head: answer with `allow`, `deny` or `tunnel`."""

    head: RequestHead


class SendClient(msgspec.Struct, frozen=True, gc=False):
    """Send to the client. Views are of the data just fed: send or copy them before that buffer is used again."""

    pieces: Sequence[Piece]


class SendUpstream(msgspec.Struct, frozen=True, gc=False):
    """Send to the upstream; as `SendClient`."""

    pieces: Sequence[Piece]


class RequestSent(msgspec.Struct, frozen=True, gc=False):
    """The request is whole and sent: from here on only the response is awaited."""


class ResponseEnded(msgspec.Struct, frozen=True, gc=False):
    """The response is whole and sent. The upstream goes back to the pool if `reusable`, else it is closed."""

    status: int
    reusable: bool


class ClientRefused(msgspec.Struct, frozen=True, gc=False):
    """The client's octets cannot be accepted: send it the problem document of `refusal`, then close, lingering."""

    refusal: Refusal


class UpstreamFailed(msgspec.Struct, frozen=True, gc=False):
    """No response has begun: answer with `deny`, or, if `repeatable`, `allow` once more with a new connection."""

    refusal: Refusal
    repeatable: bool


class CloseClient(msgspec.Struct, frozen=True, gc=False):
    """Close after what was sent. `linger`: the client may still be sending, so read on a little, lest a reset from
    unread octets destroys the answer before it is read (RFC 9112 §9.6).
    """

    linger: bool = False


class AbortClient(msgspec.Struct, frozen=True, gc=False):
    """Reset the client's connection: what it has received is not whole and must not look so."""

    reason: Reason
    detail: str


class AbortUpstream(msgspec.Struct, frozen=True, gc=False):
    """Reset the upstream's connection, for the same reason; it never goes back to the pool."""

    reason: Reason
    detail: str


class Switched(msgspec.Struct, frozen=True, gc=False):
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
