"""The messages of the attach socket: value types that a runner and the broker share. Pure.

One JSON object a message. The listening sockets travel with `Attach` (SCM_RIGHTS): the capture listener first, then the
name server's. The connection is the session's lease.
"""

import msgspec

MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 8


class Attach(msgspec.Struct, tag="attach", forbid_unknown_fields=True, frozen=True):
    """Runner → broker: serve these listeners as this session."""

    session: str
    call: str = ""
    grant: str = ""


class Finish(msgspec.Struct, tag="finish", forbid_unknown_fields=True, frozen=True):
    """Runner → broker: the sandbox has ended; `refused` packets were neither TCP nor a name query."""

    refused: int = 0


class Greeting(msgspec.Struct, tag="greeting", forbid_unknown_fields=True, frozen=True):
    """Broker → runner, first on each connection. `authority`: the broker's CA certificates (PEM), for the trust kit."""

    authority: str


class Attached(msgspec.Struct, tag="attached", forbid_unknown_fields=True, frozen=True):
    """Broker → runner: the listeners are served from now on."""


class Rejected(msgspec.Struct, tag="rejected", forbid_unknown_fields=True, frozen=True):
    """Broker → runner: they are not, and why."""

    reason: str
    detail: str


class Finished(msgspec.Struct, tag="finished", forbid_unknown_fields=True, frozen=True):
    """Broker → runner: the session's counts, and where its log is."""

    allowed: int
    denied: int
    failures: int
    log: str


type FromRunner = Attach | Finish
type FromBroker = Greeting | Attached | Rejected | Finished

encode = msgspec.json.Encoder().encode
decode_from_runner = msgspec.json.Decoder(Attach | Finish).decode
decode_from_broker = msgspec.json.Decoder(Greeting | Attached | Rejected | Finished).decode
