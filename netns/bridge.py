"""A bridge and a sandbox namespace, joined by one veth pair and ready for traffic.

The calling thread must have CAP_NET_ADMIN and CAP_SYS_ADMIN in its user namespace. `build_bridge` leaves it in the
sandbox's network namespace, so that a child started next is born there. Nothing is named and nothing is mounted: both
namespaces live as long as a descriptor, a process or a socket in them does, and go by themselves.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Self

from netns import nftables, rtnetlink
from netns.listeners import Listeners, open_listeners
from netns.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, Message, Netlink

INDEX = 1000  # of both ends: naming it ahead lets one batch make the link and use it
GATE = ("gate", bytes.fromhex("027767000001"))
ETH0 = ("eth0", bytes.fromhex("027767000002"))
# The same in every pair. From the block for benchmarking between networks (RFC 2544), the last /24 of which the
# broker's synthetic names leave free, and from a unique local prefix (RFC 4193).
GATE_4, SANDBOX_4, PREFIX_4 = IPv4Address("198.19.255.1"), IPv4Address("198.19.255.2"), 30
GATE_6, SANDBOX_6, PREFIX_6 = IPv6Address("fd77:6963:6b65:7400::1"), IPv6Address("fd77:6963:6b65:7400::2"), 126
CAPTURE_TABLE, CAPTURE_PRIORITY = 100, 100
# Without these the kernel would send one refusal a second and stay silent for the rest (icmp(7)).
UNLIMITED = ("net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit")


@dataclass(slots=True, kw_only=True)
class Bridge:
    """Both namespaces, as descriptors, and the sockets in the bridge. Close it to let them go."""

    bridge_fd: int
    sandbox_fd: int
    listeners: Listeners
    ipv6: bool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the descriptors. The namespaces end with the last process or socket in them."""
        self.listeners.close()
        for fd in (self.bridge_fd, self.sandbox_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.bridge_fd = self.sandbox_fd = -1

    def count_refused(self) -> int:
        """How many packets were refused since the start (UDP, ICMP and whatever else is not TCP or a name query)."""
        total = 0
        for fd in (self.bridge_fd, self.sandbox_fd):
            os.setns(fd, os.CLONE_NEWNET)
            total += nftables.count_refused()
        return total


def build_bridge() -> Bridge:
    """Make the pair, its routes, its capture rules and its listeners; leave the thread in the sandbox's namespace.

    Raises NetlinkError (an OSError) that names the step which the kernel refused.
    """
    sandbox_fd = _new_namespace()
    with Netlink(NETLINK_ROUTE) as sandbox:
        bridge_fd = _new_namespace()
        _lift_limits()
        with Netlink(NETLINK_ROUTE) as bridge:
            bridge.apply(_bridge_links(sandbox_fd))
            ipv6 = _try(bridge, _bridge_ipv6())
        listeners = open_listeners(ipv6=ipv6)
        with Netlink(NETLINK_NETFILTER) as filters:
            filters.apply(nftables.bridge_rules(listeners.capture_port))
        sandbox.apply(_sandbox_links())
        if ipv6:
            sandbox.apply(_sandbox_ipv6())
    os.setns(sandbox_fd, os.CLONE_NEWNET)
    with Netlink(NETLINK_NETFILTER) as filters:
        filters.apply(nftables.sandbox_rules())
    return Bridge(bridge_fd=bridge_fd, sandbox_fd=sandbox_fd, listeners=listeners, ipv6=ipv6)


def _new_namespace() -> int:
    os.unshare(os.CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _lift_limits() -> None:
    for name in UNLIMITED:
        # Read-only in some containers: the sandbox's own refusal does not depend on it.
        with contextlib.suppress(OSError):
            Path("/proc/sys", name).write_text("0")


def _try(netlink: Netlink, messages: list[Message]) -> bool:
    # A kernel or a namespace without IPv6: the sandbox then has no route for it, so it fails at once.
    if not socket.has_ipv6 or not Path("/proc/sys/net/ipv6").exists():
        return False
    netlink.apply(messages)
    return True


def _bridge_links(sandbox_fd: int) -> list[Message]:
    return [
        rtnetlink.loopback_up(),
        rtnetlink.veth_pair(index=INDEX, near=GATE, far=ETH0, far_namespace=sandbox_fd),
        rtnetlink.link_up(INDEX, GATE[0]),
        rtnetlink.address(GATE_4, PREFIX_4, index=INDEX),
        rtnetlink.neighbour(SANDBOX_4, ETH0[1], index=INDEX),
        rtnetlink.everything_local(4, table=CAPTURE_TABLE),
        rtnetlink.rule_for_interface(4, interface=GATE[0], table=CAPTURE_TABLE, priority=CAPTURE_PRIORITY),
    ]


def _bridge_ipv6() -> list[Message]:
    return [
        rtnetlink.address(GATE_6, PREFIX_6, index=INDEX),
        rtnetlink.neighbour(SANDBOX_6, ETH0[1], index=INDEX),
        rtnetlink.everything_local(6, table=CAPTURE_TABLE),
        rtnetlink.rule_for_interface(6, interface=GATE[0], table=CAPTURE_TABLE, priority=CAPTURE_PRIORITY),
    ]


def _sandbox_links() -> list[Message]:
    return [
        rtnetlink.loopback_up(),
        rtnetlink.link_up(INDEX, ETH0[0]),
        rtnetlink.address(SANDBOX_4, PREFIX_4, index=INDEX),
        rtnetlink.neighbour(GATE_4, GATE[1], index=INDEX),
        rtnetlink.default_route(GATE_4, index=INDEX),
    ]


def _sandbox_ipv6() -> list[Message]:
    return [
        rtnetlink.address(SANDBOX_6, PREFIX_6, index=INDEX),
        rtnetlink.neighbour(GATE_6, GATE[1], index=INDEX),
        rtnetlink.default_route(GATE_6, index=INDEX),
    ]
