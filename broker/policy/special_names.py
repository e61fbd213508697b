"""Names that do not mean a host on the public internet, by class.

Decides the class of a normalised name from tables. It resolves nothing, matches no rules and gives no verdicts: what a
class allows is said by `SpecialName.grantable`, and the address guard judges what a name resolves to in any case.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final


class SpecialName(Enum):
    """Why a name is special. The value is a short phrase for answers and records.

    A special name is never reached through a wildcard. The `grantable` classes are reached by a rule that names exactly
    this host (mostly together with the rule's `addresses`); the others are refused whatever the policy says.
    """

    LOCALHOST = "loopback name"  # RFC 6761 §6.3, and the other spellings that /etc/hosts files ship
    METADATA = "cloud metadata or platform control name"  # what answers there hands out the host's credentials
    DISCOVERY = "proxy or tunnel discovery name"  # WPAD, ISATAP (RFC 5214 §8.3.2): who answers owns the client
    INFRASTRUCTURE = "name of the DNS itself"  # .arpa (RFC 3172): reverse trees, ipv4only.arpa, resolver.arpa
    INVALID = "name that never exists"  # RFC 6761 §6.4; .alt is outside the DNS (RFC 9476)
    HOST_GATEWAY = "container host name"  # an engine's name for the machine around the container
    MULTICAST_DNS = "multicast DNS name"  # RFC 6762 §3
    PRIVATE_USE = "private-use name"  # .internal (ICANN 2024), home.arpa (RFC 8375), RFC 6762 appendix G
    CLUSTER = "cluster-internal name"  # Kubernetes and Consul service names
    ONION = "onion name"  # RFC 7686
    TEST = "test name"  # RFC 6761 §6.2
    SINGLE_LABEL = "name without a dot"  # means what the search list of whoever resolves it says

    @property
    def grantable(self) -> bool:
        """Whether a rule for exactly this name may open it."""
        return self not in _NEVER


def classify_special(host: str) -> SpecialName | None:
    """Return why a normalised name (lower case, A-labels, no trailing dot) is special; `None`: an ordinary name."""
    first, _, rest = host.partition(".")
    if first in _DISCOVERY_LABELS:
        return SpecialName.DISCOVERY
    if _is_metadata(host):
        return SpecialName.METADATA
    if host in _LOCALHOST_NAMES:
        return SpecialName.LOCALHOST
    for suffix in suffixes_of(host):
        found = _SUFFIXES.get(suffix)
        if found is not None:
            return found
    return None if rest else SpecialName.SINGLE_LABEL


def suffixes_of(host: str) -> Iterator[str]:
    """Yield the name itself and each parent, the longest first: `a.b.c`, `b.c`, `c`."""
    while host:
        yield host
        host = host.partition(".")[2]


def _is_metadata(host: str) -> bool:
    """Known names and everything below them; well-known labels alone or in a private zone; the API server."""
    if not _METADATA_LABELS.isdisjoint(host.split(".")) and not _PRIVATE_ZONES.isdisjoint(suffixes_of(host)):
        return True
    # The API server answers below any cluster domain: kubernetes.default.svc.<domain>.
    return f"{host}.".startswith(_API_SERVER_PREFIXES) or not _METADATA_NAMES.isdisjoint(suffixes_of(host))


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_NEVER: Final = frozenset(
    {
        SpecialName.LOCALHOST,
        SpecialName.METADATA,
        SpecialName.DISCOVERY,
        SpecialName.INFRASTRUCTURE,
        SpecialName.INVALID,
    }
)

_DISCOVERY_LABELS: Final = frozenset({"wpad", "_wpad", "isatap"})

# Labels of metadata services. Alone or in a private zone they are refused; `metadata.example.com` is not.
_METADATA_LABELS: Final = _words(
    "metadata metadata-server metadata-service instance-data instance-metadata ec2-metadata rancher-metadata imds",
    "wireserver",
)
_PRIVATE_ZONES: Final = _METADATA_LABELS | _words("internal local lan home corp intranet private home.arpa svc consul")
_API_SERVER_PREFIXES: Final = ("kubernetes.default.svc.", "openshift.default.svc.")
_METADATA_NAMES: Final = _words(
    """
    metadata.google metadata.goog metadata.google.com metadata.azure.com metadata.azure.net metadata.tencentyun.com
    metadata.packet.net metadata.platformequinix.com metadata.cloud.ibm.com instance-data.amazonaws.com
    instance-data.compute.internal instance-data.ec2.internal kubernetes kubernetes.default openshift.default
    """
)

_LOCALHOST_NAMES: Final = _words(
    "localhost4 localhost6 loopback loopback4 loopback6 broadcasthost",
    *(
        f"{family}-{name}"
        for family in ("ip", "ip4", "ip6", "ipv4", "ipv6")
        for name in ("localhost", "loopback", "localnet", "mcastprefix", "allnodes", "allrouters", "allhosts")
    ),
)

# Longest suffix first; a suffix also matches itself.
_SUFFIXES: Final[dict[str, SpecialName]] = {
    **dict.fromkeys(_words("localhost localdomain localdomain4 localdomain6"), SpecialName.LOCALHOST),
    "arpa": SpecialName.INFRASTRUCTURE,
    **dict.fromkeys(_words("invalid alt"), SpecialName.INVALID),
    **dict.fromkeys(
        _words(
            "docker.internal containers.internal podman.internal minikube.internal lima.internal colima.internal",
            "k3d.internal kind.internal finch.internal rancher-desktop.internal wsl.internal orb.internal orb.local",
        ),
        SpecialName.HOST_GATEWAY,
    ),
    "local": SpecialName.MULTICAST_DNS,
    **dict.fromkeys(
        _words("internal home.arpa intranet private corp home lan localnet workgroup"), SpecialName.PRIVATE_USE
    ),
    **dict.fromkeys(_words("cluster.local svc consul"), SpecialName.CLUSTER),
    "onion": SpecialName.ONION,
    "test": SpecialName.TEST,
}
