"""How a message's body is delimited (RFC 9112 §6), as a closed set of values."""

import msgspec


class NoBody(msgspec.Struct, frozen=True):
    """The message ends with its head."""


class Length(msgspec.Struct, frozen=True):
    """The body is exactly `n` octets; 0 is allowed and is not the same as `NoBody` (the field is sent)."""

    n: int


class Chunked(msgspec.Struct, frozen=True):
    """The body is in the chunked coding and ends with its trailer section."""


class UntilClose(msgspec.Struct, frozen=True):
    """A response body that ends when the upstream closes: its length cannot be checked."""


type Body = NoBody | Length | Chunked | UntilClose

NO_BODY = NoBody()
CHUNKED = Chunked()
UNTIL_CLOSE = UntilClose()
