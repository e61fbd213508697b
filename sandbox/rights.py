"""The authority of a session as a value that is taken once, at launch, and kept with it: what a job stores.

Nothing here comes from a model. A stored document is read leniently in one direction only: what it does not say, or
says in a way that this version does not know, gives less.
"""

from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from sandbox.limits import LimitError, Limits
from sandbox.spec import Mode, Network
from sandbox.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What a session may. `grant` is the broker's id, `call` names the tool call in the log, `timeout` is seconds."""

    workspace: Workspace | None = None
    network: Network = Network.NONE
    grant: str = ""
    call: str = ""
    timeout: float | None = None
    limits: Limits = field(default_factory=Limits)
    mode: Mode = Mode.SANDBOX


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a model asked for, already in the form in which it is executed. `directory` is relative to the workspace."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout: float | None = None
    directory: str = ""

    def limit(self, rights: Rights) -> float | None:
        """Seconds that it may take: a call can only shorten what the authority allows."""
        return min((limit for limit in (self.timeout, rights.timeout) if limit is not None), default=None)


def to_document(rights: Rights) -> dict[str, Any]:
    """The rights as plain JSON values."""
    return {
        "workspace": None if rights.workspace is None else str(rights.workspace.path),
        "network": rights.network.value,
        "grant": rights.grant,
        "call": rights.call,
        "timeout": rights.timeout,
        "limits": structs.asdict(rights.limits),
        "mode": rights.mode.value,
    }


def stored_network(value: object) -> Network:
    """A stored profile; whatever is not known means none."""
    return Network.BROKERED if value == Network.BROKERED.value else Network.NONE


def stored_limits(value: object) -> Limits:
    """Stored limits; what is unknown or impossible is replaced by the default."""
    names = set(Limits.__struct_fields__)
    given = {name: item for name, item in value.items() if name in names} if isinstance(value, dict) else {}
    try:
        return Limits(**given)
    except (LimitError, TypeError):
        return Limits()
