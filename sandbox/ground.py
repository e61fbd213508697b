"""What every sandbox of a process is built on, as one value."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sandbox.forking import Starter
from sandbox.host import Host

if TYPE_CHECKING:  # loaded where there is a workspace or a control group: a command without them starts faster
    from sandbox import cgroups, protect


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """The runner's own network namespace, as a descriptor to come back to."""

    net: int


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What every sandbox of a process is built on.

    `state`: the server's own directory, for the held names; without one a workspace cannot be protected.
    `namespaces` and `starter`: None where the process builds one sandbox only and has unshared its pid namespace for
    it already. `keeper`: cleans up after a kill of this process; without one, too, a workspace cannot be protected.
    """

    host: Host
    state: Path | None = None
    support: "cgroups.Support | None" = None
    namespaces: Namespaces | None = None
    keeper: "protect.Keeper | None" = None
    starter: Starter | None = None
