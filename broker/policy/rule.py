"""One rule as a value: what was parsed, with the combinations refused that mean nothing. Parses no text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from broker.policy.addresses import Network
from broker.policy.hosts import HostPattern
from broker.policy.paths import PathPattern
from broker.policy.problems import Mistake
from broker.policy.queries import QueryPattern


class Action(Enum):
    """What a rule does with what it matches. Deny wins over allow."""

    ALLOW = "allow"
    DENY = "deny"


class TlsMode(Enum):
    """The plane of a TLS connection: judge every request inside, or join the streams after the ClientHello."""

    INSPECT = "inspect"
    SPLICE = "splice"


class UpstreamTls(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says about TLS to its hosts, as absolute paths of PEM files; empty: nothing beyond the ordinary.

    cacert: certificates to trust besides the system's. certificate, key: what to present to a host that asks for it.
    """

    cacert: str = ""
    certificate: str = ""
    key: str = ""


ORDINARY = UpstreamTls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `None` means "not restricted"; an empty collection would match nothing and is refused.

    hosts: without one the rule matches nothing.
    ports: TCP ports; `None` is any port (a policy file can say so only in a deny rule).
    query: the parameters that may occur; an empty tuple allows none.
    methods: case-sensitive; GET brings HEAD with it, whatever was passed.
    tls: the plane of TLS connections; a splice rule has no methods, paths, query or websocket.
    addresses: networks outside the public internet that names of this rule may resolve to. Empty: public ones only.
    enforce: false lets a deny rule, or the methods, paths, query and websocket of an allow rule, only be recorded.
    plain_http: whether requests without TLS are served; `None`: on every port of the rule but 443.
    upstream: trust and certificate for the broker's own TLS connections to the hosts; only where it inspects.
    """

    name: str
    action: Action = Action.ALLOW
    hosts: tuple[HostPattern, ...]
    ports: frozenset[int] | None = frozenset({443})
    methods: frozenset[str] | None = None
    paths: tuple[PathPattern, ...] | None = None
    query: tuple[QueryPattern, ...] | None = None
    tls: TlsMode = TlsMode.INSPECT
    addresses: tuple[Network, ...] = ()
    websocket: bool = False
    enforce: bool = True
    plain_http: bool | None = None
    upstream: UpstreamTls = ORDINARY

    def __post_init__(self) -> None:
        if self.methods is not None and "GET" in self.methods:
            # RFC 9110 §9.3.2: HEAD asks for no more than GET does, and package clients break without it.
            object.__setattr__(self, "methods", self.methods | {"HEAD"})
        for key, value in (("ports", self.ports), ("methods", self.methods), ("paths", self.paths)):
            if value is not None and not value:
                raise Mistake(f"{key} is empty", "an empty list would match nothing", None)
        if self.action is Action.ALLOW and self.tls is TlsMode.SPLICE and self.judges_requests:
            raise splice_with(self.restrictions)

    @property
    def restrictions(self) -> tuple[str, ...]:
        """The keys that can only be judged on a request, in the order in which they are judged."""
        present = {
            "methods": self.methods is not None,
            "paths": self.paths is not None,
            "query": self.query is not None,
            "websocket": self.websocket,
        }
        return tuple(key for key, given in present.items() if given)

    @property
    def judges_requests(self) -> bool:
        """Whether the rule says anything about requests, beyond hosts and ports."""
        return self.methods is not None or self.paths is not None or self.query is not None or self.websocket


def splice_with(restrictions: Sequence[str]) -> Mistake:
    """The mistake of a rule that joins TLS unseen and has keys that only a request can be judged by."""
    return Mistake(
        f'tls = "splice" with {", ".join(restrictions)}', "a spliced connection shows no request", 'tls = "inspect"'
    )
