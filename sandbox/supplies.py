"""Descriptors that bubblewrap is given: files that exist nowhere else, and the pipe that holds its child."""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

MOST_SENT: Final = 4096  # bytes: every socket takes them at once


def hold() -> tuple[int, int]:
    """The descriptor that bubblewrap waits on (`--block-fd`), and ours: a byte there lets the command begin."""
    waits, release_fd = os.pipe2(os.O_CLOEXEC)
    try:
        # Opened for both directions it is its own writer: should we be killed, it reads no end of file and stays held.
        return os.open(f"/proc/self/fd/{waits}", os.O_RDWR | os.O_CLOEXEC), release_fd
    except BaseException:
        os.close(release_fd)
        raise
    finally:
        os.close(waits)


def supply_all(contents: Sequence[bytes], supply: Callable[[int], int], *, told: bool) -> socket.socket | None:
    """Supply generated files in their order; `told`: an end that tells when the last one has been read."""
    if not told or not contents or len(contents[-1]) > MOST_SENT:
        for content in contents:
            supply(file(content))
        return None
    for content in contents[:-1]:
        supply(file(content))
    near, far = _read_once(contents[-1])
    supply(far)
    return near


def file(content: bytes) -> int:
    """A file in memory, to be read from its beginning."""
    fd = os.memfd_create("wicketgate", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read_once(content: bytes) -> tuple[socket.socket, int]:
    """A file that is read to its end and then closed by whoever gets the descriptor, and an end that tells when."""
    near, far = socket.socketpair()
    try:
        near.setblocking(False)
        near.sendall(content)
        near.shutdown(socket.SHUT_WR)
    except BaseException:
        near.close()
        far.close()
        raise
    return near, far.detach()
