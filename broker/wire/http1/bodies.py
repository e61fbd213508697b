"""How a message's body is delimited (RFC 9112 §6), as a closed set of values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoBody:
    """The message ends with its head."""


@dataclass(frozen=True, slots=True)
class Length:
    """The body is exactly `n` octets; 0 is allowed and is not the same as `NoBody` (the field is sent)."""

    n: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """The body is in the chunked coding and ends with its trailer section."""


@dataclass(frozen=True, slots=True)
class UntilClose:
    """A response body that ends when the upstream closes: its length cannot be checked."""


type Body = NoBody | Length | Chunked | UntilClose

NO_BODY = NoBody()
CHUNKED = Chunked()
UNTIL_CLOSE = UntilClose()
