"""The origin of raw streams: reads one ClientHello, then sends, without looking into it.

Two ports: `bulk` sends the block of bench.load for ever by sendfile(2), so that its own cost stays in the kernel;
`hold` sends one byte and keeps the connection. Prints one JSON line when it serves, ends with its standard input.
"""

import contextlib
import json
import os
import socket
import sys
import threading

from bench.load import BLOCK, block

HELLO = 16384


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
    bulk = socket.create_server(("127.0.0.1", 0), backlog=1024)
    hold = socket.create_server(("127.0.0.1", 0), backlog=1024)
    for serve, listener in ((_serve_bulk, bulk), (_serve_hold, hold)):
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print(json.dumps({"bulk": bulk.getsockname()[1], "hold": hold.getsockname()[1]}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
