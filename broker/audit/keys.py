"""What records are found by: hosts turned around, authorities in two parts, times as numbers. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def host_key(host: str) -> str:
    """Turn a host around by labels, so that all names below a domain lie side by side; turned twice it is itself.

    Addresses stay as they are: of those with dots, what has nothing but digits.
    """
    if host[:1] == "[" or host.replace(".", "").isdigit():
        return host
    return ".".join(reversed(host.split(".")))


def split_authority(authority: str) -> tuple[str, int]:
    """Return host and port of a recorded authority; port 0 where there is none."""
    host, colon, port = authority.rpartition(":")
    if colon and port.isascii() and port.isdigit() and len(port) <= 5 and not (":" in host and host[-1] != "]"):
        return host.lower(), int(port)
    return authority.lower(), 0


def microseconds(time: str) -> int:
    """Return microseconds since the epoch of an RFC 3339 time. Raises `ValueError`."""
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is None:
        raise ValueError(f"{time}: no time zone")
    found = (moment - _EPOCH) // _MICROSECOND
    if not _FIRST <= found <= _LAST:
        raise ValueError(f"{time}: no moment of the years 1 to 9999")  # an offset may lead out of them
    return found
