"""Handing a bridge's sockets to the broker: one message with descriptors over a unix socket (SCM_RIGHTS, unix(7)).

The connection is of type SOCK_SEQPACKET, so that a message and its descriptors arrive together or not at all. It is the
session's lease: when it closes, the broker drops the listeners. A socket keeps the network namespace that it was made
in, whoever holds it.
"""

import array
import os
import socket

MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 8


class HandoffError(Exception):
    """The other side broke the protocol: too long, too many descriptors, or gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends for a broker and a runner that are started together."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(connection: socket.socket, message: bytes, descriptors: list[int] | None = None) -> None:
    """Send one message, with descriptors if there are any. The sender keeps its own copies."""
    if len(message) > MAX_MESSAGE or len(descriptors or ()) > MAX_DESCRIPTORS:
        raise HandoffError("a message for the attach socket is too long or carries too many descriptors")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([message], rights)


def announce(connection: socket.socket, message: bytes) -> None:
    """Send a message with a descriptor of this very process (pidfd_open(2))."""
    own = os.pidfd_open(os.getpid())
    try:
        send(connection, message, [own])
    finally:
        os.close(own)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors (close-on-exec; the caller owns them). Empty bytes: the peer is gone.

    Raises HandoffError when it was cut short; the descriptors that came with it are closed.
    """
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    message, control, flags, _ = connection.recvmsg(MAX_MESSAGE + 1, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(message) > MAX_MESSAGE:
        for fd in descriptors:
            os.close(fd)
        raise HandoffError("a message on the attach socket was cut short")
    return message, list(descriptors)
