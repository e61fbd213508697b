"""Tells the service manager of the system how far the start is (sd_notify(3)), where there is one."""

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send one state. Without NOTIFY_SOCKET, and where nobody reads it, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # A leading "@" stands for the abstract namespace's zero byte.
    place = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(place)
        sender.send(state.encode())
