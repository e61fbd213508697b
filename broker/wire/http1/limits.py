"""The limits of one HTTP/1.1 connection, as values.

Sizes are octets. Everything that a peer can make long has a bound here; bodies have none, because none is ever held.
"""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one connection. The defaults are those of the design."""

    head_bytes: int = 65_536  # start line and fields together, the blank line included
    fields: int = 100
    target_bytes: int = 16_384
    chunk_line_bytes: int = 256  # size, extensions and line end of one chunk (CVE-2023-39326: extensions are free data)
    extension_bytes: int = 16_384  # by which chunk extensions may outweigh the data of one body
    trailer_bytes: int = 16_384  # the whole trailer section
    informational: int = 10  # 1xx responses to one request


DEFAULT_LIMITS = Limits()
