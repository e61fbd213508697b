"""A time in which the log cannot be written, and what came of it."""

import msgspec


class Outage(msgspec.Struct):
    """A time without a log: why, since when, what was turned away."""

    cause: str
    since: float
    retry_at: float
    refused: int = 0
    dropped: int = 0

    def tell(self, now: float, kept: int) -> str:
        """Say, once it is over, what it did: for the line that marks the gap."""
        return (
            f"{self.cause}; for {now - self.since:.1f} s; decisions refused: {self.refused}, "
            f"records written late: {kept}, records dropped: {self.dropped}"
        )
