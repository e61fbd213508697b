"""The messages of the attach socket: value types that a runner and the broker share. Pure.

One JSON object a message. The listening sockets travel with `Attach` (SCM_RIGHTS): the capture listener first, then the
name server's. The connection is the session's lease.
"""

from typing import Annotated, Final

import msgspec

MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 8


# Ids are the runner's and the agent server's own; they stand in paths, in the log and on command lines. The pattern
# ends by a look-ahead, because `$` lets a line end pass in Python and `\Z` means nothing in ECMA-262, which JSON Schema
# patterns are written in.
type Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}(?![\s\S])")]
type MaybeId = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:-]{0,127})?(?![\s\S])")]


class Attach(msgspec.Struct, tag="attach", forbid_unknown_fields=True, frozen=True):
    """Runner → broker: serve these listeners as this session."""

    session: Id
    call: MaybeId = ""
    grant: MaybeId = ""


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


class Ended(msgspec.Struct, tag="ended", forbid_unknown_fields=True, frozen=True):
    """Broker → runner: the session is not served any more, though the runner did not ask. The connection closes.

    `may_attach_again` says whether asking again is of use.
    """

    reason: str
    detail: str


class Finished(msgspec.Struct, tag="finished", forbid_unknown_fields=True, frozen=True):
    """Broker → runner: the session's counts, and where its log is."""

    allowed: int
    denied: int
    failures: int
    log: str


# After these a session may be served again; after any other it will not be.
PASSING: Final = frozenset({"egress_off", "broker_stopped", "audit_unavailable", "bad_request", "not_taken"})


def may_attach_again(reason: str) -> bool:
    """Whether a session that was ended or rejected for this reason may be served later; "" is a broker that went."""
    return not reason or reason in PASSING


type FromRunner = Attach | Finish
type FromBroker = Greeting | Attached | Rejected | Ended | Finished

encode = msgspec.json.Encoder().encode
decode_from_runner = msgspec.json.Decoder(Attach | Finish).decode
decode_from_broker = msgspec.json.Decoder(Greeting | Attached | Rejected | Ended | Finished).decode
