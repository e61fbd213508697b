"""Which trailer fields are passed on (RFC 9110 §6.5.1).

A recipient may merge trailers into the head it has already acted on. So whatever frames, routes, authenticates,
identifies or controls a message is dropped from a trailer section; data about the content is passed on.
"""

from broker.wire.http1.fields import PROTECTED, REQUEST_PREFIXES, REQUEST_USES, RESPONSE_USES, Fields

_FORBIDDEN = PROTECTED.union(
    REQUEST_USES,
    RESPONSE_USES,
    b"accept-charset accept-language accept-ranges age allow cookie2 expires retry-after set-cookie2 warning "
    b"authentication-info strict-transport-security content-disposition content-security-policy refresh link "
    b"access-control-allow-origin access-control-allow-credentials access-control-allow-headers "
    b"access-control-allow-methods x-http-method-override x-http-method x-method-override".split(),
) - {b"etag", b"last-modified"}  # validators computed while the content is made: the textbook use of a trailer
_FORBIDDEN_PREFIXES = (*REQUEST_PREFIXES, b"if-", b"sec-")


def keep_trailers(fields: Fields) -> Fields:
    """The trailer fields that may be passed on, in order."""
    return tuple(
        field
        for field in fields
        if (name := field[0].lower().replace(b"_", b"-")) not in _FORBIDDEN and not name.startswith(_FORBIDDEN_PREFIXES)
    )


def format_trailers(fields: Fields) -> tuple[Fields, bytes]:
    """The fields that are passed on, and their lines."""
    kept = keep_trailers(fields)
    return kept, b"".join([b"%b: %b\r\n" % field for field in kept])
