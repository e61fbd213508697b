"""The sockets in a bridge that the broker serves: one TCP capture listener and the name server's UDP sockets.

All are transparent (IP_TRANSPARENT, ip(7)): an accepted TCP socket tells by getsockname(2) which address and port the
sandbox wanted, and a datagram is answered from the address that was asked. Only the maker needs the capability for
that; whoever is handed the descriptors does not.
"""

import socket

import msgspec

IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
IP_PKTINFO = 8
BACKLOG = 4096
DNS_PORT = 53


class Listeners(msgspec.Struct):
    """The sockets of one bridge, in the order in which they are handed over."""

    capture: socket.socket
    names: tuple[socket.socket, ...]
    capture_port: int

    def descriptors(self) -> list[int]:
        """The descriptors to hand over: the capture listener first, then the name server's sockets."""
        return [self.capture.fileno(), *(one.fileno() for one in self.names)]

    def close(self) -> None:
        """Close this process's copies."""
        for one in (self.capture, *self.names):
            one.close()


def open_listeners(*, ipv6: bool, port: int = 0) -> Listeners:
    """Open them in the calling thread's network namespace (the bridge).

    `port` is the capture listener's: 0 for a new bridge, the same as before where the bridge's rules name one already.
    """
    capture = _capture(port, ipv6=ipv6)
    families = (socket.AF_INET, socket.AF_INET6) if ipv6 else (socket.AF_INET,)
    return Listeners(capture, tuple(_names(family) for family in families), capture.getsockname()[1])


def _capture(port: int, *, ipv6: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    if ipv6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
    listener.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
    # A connection of a former broker to the very same port may still be in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::" if ipv6 else "0.0.0.0", port))  # noqa: S104  every address of the bridge is ours
    listener.listen(BACKLOG)
    return listener


def _names(family: socket.AddressFamily) -> socket.socket:
    names = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    if family == socket.AF_INET6:
        names.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        names.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        names.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        names.bind(("::", DNS_PORT))
    else:
        names.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        names.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        names.bind(("0.0.0.0", DNS_PORT))  # noqa: S104  every address of the bridge is ours
    return names
