"""The address classes, and which block of the address space is of which class.

A table of our own, because the language's tables differ per version. Sources: the IANA special-purpose address
registries (IPv4, IPv6), the IPv6 address space registry, the documents of cloud platforms. It decides nothing;
`addresses.py` does. The registries mark a few rows "globally reachable" (AS112, AMT, the anycast services, ORCHIDv2,
DRIP). They are special here all the same: what answers there is the nearest piece of network equipment, or nothing,
never a host that a policy means.
"""

from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final


class Opening(Enum):
    """What a rule's `addresses` must list so that an address of a class may be dialled."""

    NONE_NEEDED = "none needed"
    NETWORK = "a network that contains it"
    EXACT = "exactly this address (/32 or /128)"
    NEVER = "never"


class AddressClass(Enum):
    """What an address is for. The value is a phrase for answers and records; the comment names the source."""

    PUBLIC = "public"
    UNSPECIFIED = "unspecified or this-network"  # RFC 791 §3.2, RFC 4291 §2.5.2: connects to the own host
    LOOPBACK = "loopback"  # RFC 1122 §3.2.1.3, RFC 4291 §2.5.3
    PRIVATE = "private"  # RFC 1918
    SHARED = "shared (carrier-grade NAT)"  # RFC 6598
    LINK_LOCAL = "link-local"  # RFC 3927, RFC 4291 §2.5.6
    METADATA = "cloud metadata or platform"  # the platforms' own documents
    PROTOCOL = "IETF protocol assignment"  # RFC 6890 §2.1, RFC 2928
    ANYCAST = "infrastructure anycast"  # RFC 7723, RFC 8155, RFC 9665, RFC 7534, RFC 7535, RFC 7450, RFC 7526
    DOCUMENTATION = "documentation"  # RFC 5737, RFC 3849, RFC 9637
    BENCHMARKING = "benchmarking"  # RFC 2544, RFC 5180
    MULTICAST = "multicast"  # RFC 5771, RFC 4291 §2.7
    BROADCAST = "broadcast"  # RFC 919
    RESERVED = "reserved"  # RFC 1112 §4; IPv6 outside 2000::/3; 6bone (RFC 3701)
    UNIQUE_LOCAL = "unique local"  # RFC 4193
    SITE_LOCAL = "site-local"  # RFC 3879
    DISCARD = "discard-only or dummy"  # RFC 6666, RFC 9780
    SRV6 = "segment routing identifier"  # RFC 9602
    ORCHID = "cryptographic hash identifier"  # RFC 4843, RFC 7343, RFC 9374: no locator
    V4_MAPPED = "IPv4-mapped"  # RFC 4291 §2.5.5.2; canonical addresses are never of this class
    V4_COMPATIBLE = "IPv4-compatible"  # RFC 4291 §2.5.5.1
    V4_TRANSLATED = "IPv4-translated (SIIT)"  # RFC 2765 §2.1
    NAT64 = "NAT64"  # RFC 6052 §2.1
    NAT64_LOCAL = "local-use NAT64"  # RFC 8215
    SIX_TO_FOUR = "6to4"  # RFC 3056, RFC 7526
    TEREDO = "Teredo"  # RFC 4380

    @property
    def opening(self) -> Opening:
        """What must be listed to reach this class; `NEVER` for what cannot be one certain host."""
        return _OPENING.get(self, Opening.NETWORK)


_OPENING: Final = {
    AddressClass.PUBLIC: Opening.NONE_NEEDED,
    AddressClass.METADATA: Opening.EXACT,
    AddressClass.LINK_LOCAL: Opening.EXACT,  # some engines put their gateway there; a whole link never
    **dict.fromkeys(
        (
            AddressClass.UNSPECIFIED,
            AddressClass.MULTICAST,
            AddressClass.BROADCAST,
            AddressClass.DISCARD,
            AddressClass.V4_MAPPED,
            AddressClass.V4_COMPATIBLE,
            AddressClass.NAT64,  # reached only through a declared prefix, as the IPv4 address that it holds
            AddressClass.NAT64_LOCAL,
        ),
        Opening.NEVER,
    ),
}

_CLOUD: Final = """
169.254.169.0/24  169.254.170.0/24  169.254.0.2  169.254.0.23  169.254.42.42  169.254.20.10  169.254.25.10
fd00:ec2::/32  fd20:ce::/32  fd00:c1::/32  fd00:42::42  fd00:a9fe:a9fe::/48  fdaa::3
168.63.129.16  100.100.100.200  100.100.2.136  100.100.2.138  192.0.0.192  161.26.0.0/16  166.8.0.0/14
"""

_V4: Final[dict[AddressClass, str]] = {
    AddressClass.PUBLIC: "0.0.0.0/0",
    AddressClass.UNSPECIFIED: "0.0.0.0/8",
    AddressClass.PRIVATE: "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
    AddressClass.SHARED: "100.64.0.0/10",
    AddressClass.LOOPBACK: "127.0.0.0/8",
    AddressClass.LINK_LOCAL: "169.254.0.0/16",
    # Also DS-Lite (192.0.0.0/29, RFC 7335), the dummy (.8, RFC 7600), NAT64 discovery (.170 and .171, RFC 7050).
    AddressClass.PROTOCOL: "192.0.0.0/24",
    # PCP, TURN, AS112 (two), AMT, the 6to4 relay (which holds the 6a44 relay, RFC 6751).
    AddressClass.ANYCAST: "192.0.0.9 192.0.0.10 192.31.196.0/24 192.175.48.0/24 192.52.193.0/24 192.88.99.0/24",
    AddressClass.DOCUMENTATION: "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24",
    AddressClass.BENCHMARKING: "198.18.0.0/15",
    AddressClass.MULTICAST: "224.0.0.0/4",
    AddressClass.RESERVED: "240.0.0.0/4",
    AddressClass.BROADCAST: "255.255.255.255",
}

_V6: Final[dict[AddressClass, str]] = {
    AddressClass.RESERVED: "::/0 3ffe::/16",
    AddressClass.PUBLIC: "2000::/3",
    AddressClass.V4_COMPATIBLE: "::/96",
    AddressClass.UNSPECIFIED: "::",
    AddressClass.LOOPBACK: "::1",
    AddressClass.V4_MAPPED: "::ffff:0:0/96",
    AddressClass.V4_TRANSLATED: "::ffff:0:0:0/96",
    AddressClass.NAT64: "64:ff9b::/96",
    AddressClass.NAT64_LOCAL: "64:ff9b:1::/48",
    AddressClass.DISCARD: "100::/64 100:0:0:1::/64",
    AddressClass.PROTOCOL: "2001::/23",
    AddressClass.TEREDO: "2001::/32",
    # PCP, TURN, DNS-SD registration, AMT, AS112 (two).
    AddressClass.ANYCAST: "2001:1::1 2001:1::2 2001:1::3 2001:3::/32 2001:4:112::/48 2620:4f:8000::/48",
    AddressClass.BENCHMARKING: "2001:2::/48",
    AddressClass.ORCHID: "2001:10::/28 2001:20::/28 2001:30::/28",
    AddressClass.DOCUMENTATION: "2001:db8::/32 3fff::/20",
    AddressClass.SIX_TO_FOUR: "2002::/16",
    AddressClass.SRV6: "5f00::/16",
    AddressClass.UNIQUE_LOCAL: "fc00::/7",
    AddressClass.LINK_LOCAL: "fe80::/10",
    AddressClass.SITE_LOCAL: "fec0::/10",
    AddressClass.MULTICAST: "ff00::/8",
}

Row = tuple[IPv4Network | IPv6Network, AddressClass]


def _rows() -> tuple[Row, ...]:
    listed = [(cls, text) for table in (_V4, _V6) for cls, text in table.items()]
    return tuple(
        (ip_network(word), cls) for cls, text in [*listed, (AddressClass.METADATA, _CLOUD)] for word in text.split()
    )


REGISTRY: Final = _rows()
"""Every block with its class. The longest prefix that contains an address tells its class."""
