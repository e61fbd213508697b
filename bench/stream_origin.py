"""The origin of raw streams: reads one ClientHello, then sends, without looking into it.

Three ports: `greet` sends the greeting of bench.load and closes; `bulk` sends its block for ever by sendfile(2), so
that its own cost stays in the kernel; `hold` sends one byte and keeps the connection. Prints one JSON line when it
serves, ends with its standard input. Standard library only, as bench.load.
"""

import contextlib
import json
import os
import socket
import struct
import sys
import threading

from bench.load import BLOCK, GREETING, block

HELLO = 16384
RECORD_HEADER = 5  # its last two octets are the length of what follows (RFC 8446 §5.1)
DEFER_SECONDS = 5
PATIENCE = struct.pack("ll", DEFER_SECONDS, 0)


def _serve_greet(listener: socket.socket) -> None:
    """One after the other, four calls each: the kernel hands over a connection only when it has said something.

    The whole hello is read: what is left unread would turn the close into a reset.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)  # accepted sockets inherit it
    while True:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                hello = connection.recv(HELLO)
                while hello and len(hello) < RECORD_HEADER + int.from_bytes(hello[3:RECORD_HEADER], "big"):
                    more = connection.recv(HELLO)
                    hello = hello + more if more else b""
                if hello:
                    connection.sendall(GREETING)


def _bulk(connection: socket.socket, source: int) -> None:
    with connection, contextlib.suppress(OSError):
        connection.recv(HELLO)
        while True:
            offset = 0
            while offset < BLOCK:
                sent = os.sendfile(connection.fileno(), source, offset, BLOCK - offset)
                if sent == 0:
                    return
                offset += sent


def _hold(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.recv(HELLO)
        connection.sendall(b"b")
        connection.recv(1)


def _serve_bulk(listener: socket.socket) -> None:
    source = os.memfd_create("block")
    with open(source, "wb", closefd=False) as out:
        out.write(block())
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_bulk, args=(connection, source), daemon=True).start()


def _serve_hold(listener: socket.socket) -> None:
    threading.stack_size(64 * 1024)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_hold, args=(connection,), daemon=True).start()


def main() -> None:
    ports = {}
    for name, serve in {"greet": _serve_greet, "bulk": _serve_bulk, "hold": _serve_hold}.items():
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        ports[name] = listener.getsockname()[1]
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
