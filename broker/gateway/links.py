"""The addresses and on-link prefixes of the broker's own host, for the address guard (rtnetlink(7), RTM_GETADDR).

A global address can be this host's or a neighbour's, so the guard must know them. Read at start and again on demand;
needs no privilege.
"""

import socket
import struct
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

RTM_GETADDR, RTM_NEWADDR = 22, 20
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_DONE = 0x1, 0x300, 0x3
IFA_ADDRESS, IFA_LOCAL = 1, 2


class Links(msgspec.Struct, frozen=True):
    """`own`: every address of this host. `on_link`: the prefixes it is directly attached to."""

    own: frozenset[IPv4Address | IPv6Address] = frozenset()
    on_link: tuple[IPv4Network | IPv6Network, ...] = ()


def read_links() -> Links:
    """Ask the kernel. Raises OSError where netlink is not available."""
    own: set[IPv4Address | IPv6Address] = set()
    on_link: set[IPv4Network | IPv6Network] = set()
    for prefix, attributes in _dump():
        local = ip_address(attributes.get(IFA_LOCAL) or attributes[IFA_ADDRESS])
        own.add(local)
        peer = ip_address(attributes.get(IFA_ADDRESS) or local.packed)
        network = ip_network((peer, prefix), strict=False)
        if prefix < network.max_prefixlen and not local.is_loopback:
            on_link.add(network)
    return Links(frozenset(own), tuple(sorted(on_link, key=str)))


def _dump() -> list[tuple[int, dict[int, bytes]]]:
    found: list[tuple[int, dict[int, bytes]]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5)
        netlink.send(struct.pack("=IHHIIB7x", 24, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 1, 0, socket.AF_UNSPEC))
        while True:
            data = netlink.recv(1 << 17)
            offset = 0
            while offset < len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind == NLMSG_DONE or length < 16:
                    return found
                if kind == RTM_NEWADDR:
                    found.append((data[offset + 17], _attributes(data[offset + 24 : offset + length])))
                offset += length + (-length % 4)


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        found[kind] = data[offset + 4 : offset + length]
        offset += length + (-length % 4)
    return found
