"""A bridge and a sandbox namespace, joined by one veth pair and ready for traffic.

The calling thread must have CAP_NET_ADMIN and CAP_SYS_ADMIN in its user namespace. `build_bridge` leaves it in the
sandbox's network namespace, so that a child started next is born there. Nothing is named and nothing is mounted: both
namespaces live as long as a descriptor, a process or a socket in them does, and go by themselves.
"""

import contextlib
import errno
import os
import socket
import time
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Self

import msgspec

from netns import nftables, rtnetlink
from netns.listeners import Listeners, open_listeners
from netns.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, Message, Netlink, NetlinkError

INDEX = 1000  # of both ends: naming it ahead lets one batch make the link and use it
GATE = ("gate", bytes.fromhex("027767000001"))
ETH0 = ("eth0", bytes.fromhex("027767000002"))
# The same in every pair. From the block for benchmarking between networks (RFC 2544), the last /24 of which the
# broker's synthetic names leave free, and from a unique local prefix (RFC 4193).
GATE_4, SANDBOX_4 = IPv4Address("198.19.255.1"), IPv4Address("198.19.255.2")
GATE_6, SANDBOX_6 = IPv6Address("fd77:6963:6b65:7400::1"), IPv6Address("fd77:6963:6b65:7400::2")
GATE_OF: dict[int, rtnetlink.Address] = {4: GATE_4, 6: GATE_6}
SANDBOX_OF: dict[int, rtnetlink.Address] = {4: SANDBOX_4, 6: SANDBOX_6}
CAPTURE_TABLE, CAPTURE_PRIORITY = 100, 100
OPERATIONAL_SECONDS, POLL_SECONDS = 5.0, 0.0005
# Without these the kernel would send one refusal a second and stay silent for the rest (icmp(7)).
UNLIMITED = ("net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit")


class Bridge(msgspec.Struct, kw_only=True):
    """Both namespaces, as descriptors, and the sockets in the bridge. Close it to let them go.

    `filters`: a socket in each of both, over which its rules were made. A socket stays in its namespace.
    """

    bridge_fd: int
    sandbox_fd: int
    listeners: Listeners
    filters: tuple[Netlink, ...]
    ipv6: bool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the descriptors. The namespaces end with the last process or socket in them."""
        self.listeners.close()
        for netlink in self.filters:
            netlink.close()
        for fd in (self.bridge_fd, self.sandbox_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.bridge_fd = self.sandbox_fd = -1

    def reopen_listeners(self) -> Listeners:
        """New listeners on the port that the bridge's rules name, when the former ones are closed; the caller's own.

        Leaves the thread in the sandbox's network namespace. Raises OSError.
        """
        os.setns(self.bridge_fd, os.CLONE_NEWNET)
        try:
            return open_listeners(ipv6=self.ipv6, port=self.listeners.capture_port)
        finally:
            os.setns(self.sandbox_fd, os.CLONE_NEWNET)

    def count_refused(self) -> int:
        """How many packets were refused since the start (UDP, ICMP and whatever else is not TCP or a name query)."""
        return sum(map(nftables.count_refused, self.filters))


def build_bridge() -> Bridge:
    """Make the pair, its routes, its capture rules and its listeners; leave the thread in the sandbox's namespace.

    Raises NetlinkError (an OSError) that names the step which the kernel refused.
    """
    with contextlib.ExitStack() as undo:
        sandbox_fd = _new_namespace(undo)
        with Netlink(NETLINK_ROUTE) as sandbox:
            bridge_fd = _new_namespace(undo)
            _lift_limits()
            versions = _ip_versions()
            with Netlink(NETLINK_ROUTE) as bridge:
                bridge.apply(_bridge_messages(sandbox_fd, versions))
                listeners = open_listeners(ipv6=6 in versions)
                undo.callback(listeners.close)
                filters = [_filters(nftables.bridge_rules(listeners.capture_port), undo)]
                sandbox.apply(_sandbox_messages(versions))
                _wait_operational(bridge, GATE[0])
                _wait_operational(sandbox, ETH0[0])
        os.setns(sandbox_fd, os.CLONE_NEWNET)
        filters.append(_filters(nftables.sandbox_rules(), undo))
        undo.pop_all()
    return Bridge(
        bridge_fd=bridge_fd,
        sandbox_fd=sandbox_fd,
        listeners=listeners,
        filters=tuple(filters),
        ipv6=6 in versions,
    )


def _filters(rules: list[Message], undo: contextlib.ExitStack) -> Netlink:
    """Make packet rules in the namespace of the calling thread; the socket to ask about them."""
    netlink = Netlink(NETLINK_NETFILTER)
    undo.callback(netlink.close)
    netlink.apply(rules)
    return netlink


def _wait_operational(netlink: Netlink, name: str) -> None:
    """Until the kernel has taken notice of the carrier it throws away what is sent, without a word.

    It does so in a work queue: a first name query or SYN could be lost, and a client would wait seconds to repeat it.
    """
    deadline = time.monotonic() + OPERATIONAL_SECONDS
    while not rtnetlink.is_operational(netlink.ask(rtnetlink.link_state(INDEX, name))[0]):
        if time.monotonic() > deadline:
            raise NetlinkError(errno.ETIMEDOUT, f"bring {name} into operation")
        time.sleep(POLL_SECONDS)


def _new_namespace(undo: contextlib.ExitStack) -> int:
    os.unshare(os.CLONE_NEWNET)
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    undo.callback(os.close, fd)
    return fd


def _lift_limits() -> None:
    for name in UNLIMITED:
        # Read-only in some containers: the sandbox's own refusal does not depend on it.
        with contextlib.suppress(OSError):
            Path("/proc/sys", name).write_text("0")


def _ip_versions() -> tuple[int, ...]:
    """The versions that the sandbox is given. Without IPv6 it has no route for it, so trying it fails at once."""
    switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")  # of this thread's network namespace
    if not socket.has_ipv6 or not switch.exists() or switch.read_text().strip() != "0":
        return (4,)
    return (4, 6)


def _bridge_messages(sandbox_fd: int, versions: tuple[int, ...]) -> list[Message]:
    messages = [rtnetlink.veth_pair(index=INDEX, near=GATE, far=ETH0, far_namespace=sandbox_fd)]
    messages += _interfaces_up(GATE[0], versions)
    for version in versions:
        messages += _one_neighbour(GATE_OF[version], SANDBOX_OF[version], ETH0[1])
        messages += [
            rtnetlink.everything_local(version, table=CAPTURE_TABLE),
            rtnetlink.rule_for_interface(version, interface=GATE[0], table=CAPTURE_TABLE, priority=CAPTURE_PRIORITY),
        ]
    if 6 in versions:
        messages.append(rtnetlink.link_local_is_local(INDEX, table=CAPTURE_TABLE))
    return messages


def _sandbox_messages(versions: tuple[int, ...]) -> list[Message]:
    messages = _interfaces_up(ETH0[0], versions)
    for version in versions:
        messages += _one_neighbour(SANDBOX_OF[version], GATE_OF[version], GATE[1])
        messages.append(rtnetlink.default_route(GATE_OF[version], index=INDEX))
    return messages


def _interfaces_up(name: str, versions: tuple[int, ...]) -> list[Message]:
    quiet = [rtnetlink.no_link_local(INDEX, name)] if 6 in versions else []
    return [rtnetlink.loopback_up(), *quiet, rtnetlink.link_up(INDEX, name)]


def _one_neighbour(own: rtnetlink.Address, other: rtnetlink.Address, mac: bytes) -> list[Message]:
    return [
        rtnetlink.address(own, index=INDEX),
        rtnetlink.link_route(other, index=INDEX),
        rtnetlink.neighbour(other, mac, index=INDEX),
    ]
