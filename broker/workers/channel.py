"""Messages with descriptors between processes of one broker (SOCK_SEQPACKET, SCM_RIGHTS; unix(7)).

A message of any size: what does not fit into a packet travels in a memory file. Whoever sends keeps its own copies of
the descriptors; whoever receives owns the new ones.
"""

import array
import fcntl
import os
import socket
import stat
from typing import Final

PACKET: Final = 32 * 1024
LARGEST: Final = 512 * 1024 * 1024
MAX_DESCRIPTORS: Final = 4
_SPACE: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_IN_A_FILE: Final = b"\0"  # no JSON text begins with it


class ChannelClosed(Exception):  # noqa: N818
    """The other side has gone, or does not speak as it should."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: bytes, descriptors: tuple[int, ...] = (), *, wait: bool = True) -> None:
    """Send one message. Raises `BlockingIOError` with `wait` off where there is no room, `OSError` for a dead peer."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    if len(message) <= PACKET:
        _send(channel, message, descriptors, flags)
        return
    file = memory_file(message)
    try:
        _send(channel, _IN_A_FILE, (file, *descriptors), flags)
    finally:
        os.close(file)


def receive(channel: socket.socket, *, wait: bool = True) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors; they may be fewer than were sent, where this process has none left.

    Raises `BlockingIOError` with `wait` off where there is none, `TimeoutError` after the channel's timeout,
    `ChannelClosed` at the end.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        message, control, _, _ = channel.recvmsg(PACKET + 1, _SPACE, flags)  # `recv_fds` forgets its flags
    except (BlockingIOError, TimeoutError):
        raise
    except OSError as error:
        raise ChannelClosed(error.strerror or "broken") from error
    descriptors = _descriptors(control)
    if not message:
        _close(descriptors)
        raise ChannelClosed("the other side has gone")
    if message != _IN_A_FILE:
        return message, descriptors
    if not descriptors:
        raise ChannelClosed("a long message was lost: no descriptor is left")
    try:
        return read_memory_file(descriptors[0]), descriptors[1:]
    finally:
        os.close(descriptors[0])


def memory_file(content: bytes) -> int:
    """A descriptor of a file in memory that nobody can change any more."""
    file = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(file)
        raise
    return file


def read_memory_file(file: int) -> bytes:
    """The content of a descriptor that another process made with `memory_file`. Raises `ChannelClosed`."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
        raise ChannelClosed("no memory file")
    parts: list[bytes] = []
    offset = 0
    while part := os.pread(file, min(found.st_size - offset, 1 << 24), offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _send(channel: socket.socket, message: bytes, descriptors: tuple[int, ...], flags: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([message], rights, flags)


def _descriptors(control: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
