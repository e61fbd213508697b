"""Every limit of the broker with its default and the range it may be set to, in one place.

The values are read by whoever enforces them; this module enforces nothing. Sizes are bytes, times are seconds, all
deadlines are absolute (from the first byte awaited, not from the last one read).
"""

from dataclasses import dataclass, fields
from typing import Final, cast

from broker.policy.problems import Mistake, quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One value a key of the policy's `[limits]` table. Raises `Mistake` for a value outside its range."""

    head_bytes: int = 64 * 1024
    head_fields: int = 100
    head_seconds: float = 10.0
    target_bytes: int = 16 * 1024
    informational_responses: int = 10
    client_hello_bytes: int = 16 * 1024
    client_hello_seconds: float = 5.0
    handshake_seconds: float = 10.0
    silent_seconds: float = 5.0
    connect_seconds: float = 10.0
    resolve_seconds: float = 5.0
    resolve_answers: int = 16
    upstream_head_seconds: float = 300.0
    session_connections: int = 256
    idle_seconds: float = 300.0
    half_closed_seconds: float = 60.0
    stalled_write_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_limit(field.name, getattr(self, field.name))


# Lowest and highest value. Zero is never "no limit": an absent bound is how such a broker is held by one client.
RANGES: Final[dict[str, tuple[float, float]]] = {
    "head_bytes": (1024, 1024 * 1024),
    "head_fields": (10, 1000),
    "head_seconds": (0.1, 300),
    "target_bytes": (256, 64 * 1024),
    "informational_responses": (0, 100),
    "client_hello_bytes": (1024, 64 * 1024),
    "client_hello_seconds": (0.1, 300),
    "handshake_seconds": (0.1, 300),
    "silent_seconds": (0.1, 300),
    "connect_seconds": (0.1, 300),
    "resolve_seconds": (0.1, 60),
    "resolve_answers": (1, 256),
    "upstream_head_seconds": (1, 86_400),
    "session_connections": (1, 100_000),
    "idle_seconds": (1, 86_400),
    "half_closed_seconds": (0.1, 3600),
    "stalled_write_seconds": (0.1, 3600),
}


def check_limit(name: str, value: object) -> None:
    """Raise `Mistake` where `value` is not a number in the range of the limit `name`."""
    low, high = RANGES[name]
    default = DEFAULTS[name]
    whole = isinstance(default, int)
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    number = isinstance(value, kinds) and not isinstance(value, bool)
    # The comparison is false for NaN too.
    if not number or not low <= cast(float, value) <= high:
        unit = "a whole number" if whole else "a number of seconds"
        raise Mistake(
            f"{name} is {quote(value)}", f"{unit} from {_plain(low)} to {_plain(high)}", f"{name} = {_plain(default)}"
        )


def _plain(number: float) -> str:
    """As a file spells it: never 1.04858e+06."""
    return str(int(number)) if number == int(number) else str(number)


DEFAULTS: Final[dict[str, int | float]] = {field.name: cast(float, field.default) for field in fields(Limits)}
