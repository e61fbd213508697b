"""What a broker for one runner is started with: a value type, so that the starter need not load the data path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.rules import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`state`: the directory that holds the log. `certificates`: PEM texts that upstreams may be trusted by too.

    `fixed` replaces name look-ups for some authorities.
    """

    policy: Policy
    state: Path
    certificates: tuple[bytes, ...] = ()
    fixed: Mapping[Authority, tuple[Address, ...]] = field(default_factory=dict)
