"""What a sandbox is made from: the *call*, which a model may write, and the *authority*, which only the server may.

The two halves are two types. Nothing here reads a file, the environment or a clock.
"""

from enum import StrEnum
from pathlib import Path, PurePosixPath

import msgspec


class Network(StrEnum):
    """The network profile. There is no open value; an unknown stored value means NONE."""

    NONE = "none"
    BROKERED = "brokered"


class Mode(StrEnum):
    """How much of the host's files is visible. FULL_ACCESS widens files only, never the network, sockets or pids."""

    SANDBOX = "sandbox"
    FULL_ACCESS = "full-access"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: the only half that a model can fill."""

    argv: tuple[str, ...]
    timeout: float | None = None  # seconds; may only shorten the authority's
    directory: str = ""  # below the workspace, where the command begins


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path shown in the sandbox, read-only."""

    source: Path
    destination: Path


class HomeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that every sandbox finds in its private home and may change there; `place` is below that home."""

    place: PurePosixPath
    content: bytes

    def __repr__(self) -> str:
        return f"HomeFile(place={self.place!r})"


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """What the server grants: where it may write, what it may see, how long it may run."""

    workspace: Path | None = None  # canonical and validated; shown at its own path, writable
    network: Network = Network.NONE
    mode: Mode = Mode.SANDBOX
    hidden: tuple[Path, ...] = ()  # the server's own directories, which full access does not show either
    trust: tuple[Mount, ...] = ()
    trust_environment: tuple[tuple[str, str], ...] = ()
    home: tuple[HomeFile, ...] = ()
    timeout: float | None = None
    tmp_bytes: int = 1 << 30
    rlimits: tuple[tuple[int, int, int], ...] = ()  # (resource, soft, hard), see limits.py


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller's terminal is, for the few variables that describe it."""

    term: str = "dumb"
    color: str = ""
    language: str = ""
    timezone: str = ""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox: a call under an authority."""

    call: Call
    authority: Authority
    terminal: Terminal = Terminal()

    @property
    def timeout(self) -> float | None:
        """The shorter of what the call asks and the authority allows; None: no limit."""
        asked = [limit for limit in (self.call.timeout, self.authority.timeout) if limit is not None]
        return min(asked, default=None)
