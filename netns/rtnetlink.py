"""Links, addresses, neighbours, routes and rules as netlink messages (rtnetlink(7)). Pure."""

import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from netns.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Message, attribute, decode_attributes, nested, text

RTM_NEWLINK, RTM_GETLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH, RTM_NEWRULE = 16, 18, 20, 24, 28, 32
IFLA_OPERSTATE, IF_OPER_UP = 16, 6
IFF_UP = 0x1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_AF_SPEC, IFLA_NET_NS_FD = 1, 3, 18, 26, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE = 8, 1
IFA_ADDRESS, IFA_LOCAL, IFA_F_NODAD, IFA_F_PERMANENT = 1, 2, 0x02, 0x80
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_TABLE = 1, 4, 5, 15
RTN_UNICAST, RTN_LOCAL, FR_ACT_TO_TBL = 1, 2, 1
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_HOST = 0, 253, 254
RTPROT_STATIC, RT_TABLE_MAIN = 4, 254
FRA_IIFNAME, FRA_PRIORITY, FRA_TABLE = 3, 6, 15
NDA_DST, NDA_LLADDR, NUD_PERMANENT = 1, 2, 0x80
NEW = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL

_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_NDMSG = struct.Struct("=BxxxiHBB")

type Address = IPv4Address | IPv6Address


def family(address: Address) -> int:
    """The socket address family of an address."""
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def loopback_up() -> Message:
    """Bring `lo` (always index 1) up."""
    return Message(RTM_NEWLINK, NLM_F_ACK, _IFINFO.pack(0, 0, 1, IFF_UP, IFF_UP), "set lo up")


def no_link_local(index: int, name: str) -> Message:
    """Keep an interface, which is still down, from getting a link-local IPv6 address.

    Such an address would start in the tentative state and set off neighbour discovery. A message of its own: in one
    that also brings the interface up, the kernel does that first and makes the address.
    """
    spec = nested(
        IFLA_AF_SPEC,
        nested(socket.AF_INET6, attribute(IFLA_INET6_ADDR_GEN_MODE, bytes([IN6_ADDR_GEN_MODE_NONE]))),
    )
    return Message(RTM_NEWLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, 0, 0) + spec, f"keep {name} without addresses")


def link_up(index: int, name: str) -> Message:
    """Bring an interface up."""
    return Message(RTM_NEWLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, IFF_UP, IFF_UP), f"set {name} up")


def link_state(index: int, name: str) -> Message:
    """Ask for one interface; see `is_operational`. Since Linux 6.8 asking also makes the kernel bring it up to date."""
    return Message(RTM_GETLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, 0, 0), f"look at {name}")


def is_operational(answer: bytes) -> bool:
    """Whether an answer to `link_state` says that packets pass (RFC 2863, operational status `up`)."""
    return decode_attributes(answer[_IFINFO.size :]).get(IFLA_OPERSTATE) == bytes([IF_OPER_UP])


def _end(index: int, name: str, mac: bytes) -> bytes:
    return _IFINFO.pack(0, 0, index, 0, 0) + text(IFLA_IFNAME, name) + attribute(IFLA_ADDRESS, mac)


def veth_pair(*, index: int, near: tuple[str, bytes], far: tuple[str, bytes], far_namespace: int) -> Message:
    """Make a veth pair, both ends down; `far` (name, MAC) is born in the namespace of descriptor `far_namespace`."""
    peer = _end(index, *far) + attribute(IFLA_NET_NS_FD, struct.pack("=I", far_namespace))
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "veth"), nested(IFLA_INFO_DATA, attribute(VETH_INFO_PEER, peer)))
    return Message(RTM_NEWLINK, NEW, _end(index, *near) + info, "create the veth pair")


def address(local: Address, *, index: int) -> Message:
    """Give an interface an address, usable at once (no duplicate address detection) and without a prefix.

    With one, the kernel would look for neighbours that are not there, and a client would wait seconds for the failure.
    """
    flags = IFA_F_NODAD if local.version == 6 else 0
    header = _IFADDR.pack(family(local), local.max_prefixlen, flags, RT_SCOPE_UNIVERSE, index)
    body = attribute(IFA_LOCAL, local.packed) + attribute(IFA_ADDRESS, local.packed)
    return Message(RTM_NEWADDR, NEW, header + body, f"add address {local}")


def neighbour(destination: Address, mac: bytes, *, index: int) -> Message:
    """Pin the link-layer address of the one neighbour, so that nothing is ever asked on the link."""
    header = _NDMSG.pack(family(destination), index, NUD_PERMANENT, 0, RTN_UNICAST)
    body = attribute(NDA_DST, destination.packed) + attribute(NDA_LLADDR, mac)
    return Message(RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE, header + body, f"add neighbour {destination}")


def link_route(destination: Address, *, index: int) -> Message:
    """Say that one address is on the link."""
    length = destination.max_prefixlen
    scope = RT_SCOPE_LINK if destination.version == 4 else RT_SCOPE_UNIVERSE
    header = _RTMSG.pack(family(destination), length, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST, 0)
    body = attribute(RTA_DST, destination.packed) + attribute(RTA_OIF, struct.pack("=I", index))
    return Message(RTM_NEWROUTE, NEW, header + body, f"add the route to {destination}")


def default_route(gateway: Address, *, index: int) -> Message:
    """Route everything to `gateway`."""
    header = _RTMSG.pack(family(gateway), 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST, 0)
    body = attribute(RTA_GATEWAY, gateway.packed) + attribute(RTA_OIF, struct.pack("=I", index))
    return Message(RTM_NEWROUTE, NEW, header + body, f"add the default route to {gateway}")


def everything_local(version: int, *, table: int) -> Message:
    """In `table`, say that every address of this IP version is local (delivered here, never sent on)."""
    header = _RTMSG.pack(
        socket.AF_INET if version == 4 else socket.AF_INET6,
        0, 0, 0, table, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL, 0,
    )  # fmt: skip
    body = attribute(RTA_OIF, struct.pack("=I", 1)) + attribute(RTA_TABLE, struct.pack("=I", table))
    return Message(RTM_NEWROUTE, NEW, header + body, f"make every IPv{version} address local")


def link_local_is_local(index: int, *, table: int) -> Message:
    """In `table`, say that every link-local IPv6 address is local too.

    Their look-up only takes routes of the very interface that the packet came by (RFC 4007 §9).
    """
    header = _RTMSG.pack(socket.AF_INET6, 10, 0, 0, table, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL, 0)
    body = (
        attribute(RTA_DST, IPv6Address("fe80::").packed)
        + attribute(RTA_OIF, struct.pack("=I", index))
        + attribute(RTA_TABLE, struct.pack("=I", table))
    )
    return Message(RTM_NEWROUTE, NEW, header + body, "make every link-local address local")


def rule_for_interface(version: int, *, interface: str, table: int, priority: int) -> Message:
    """Look packets that arrive on `interface` up in `table`."""
    header = _RTMSG.pack(
        socket.AF_INET if version == 4 else socket.AF_INET6,
        0, 0, 0, table, 0, 0, FR_ACT_TO_TBL, 0,
    )  # fmt: skip
    body = (
        text(FRA_IIFNAME, interface)
        + attribute(FRA_PRIORITY, struct.pack("=I", priority))
        + attribute(FRA_TABLE, struct.pack("=I", table))
    )
    return Message(RTM_NEWRULE, NEW, header + body, f"add the IPv{version} rule for {interface}")
