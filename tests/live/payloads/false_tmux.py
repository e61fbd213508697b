"""Takes the place of the terminal's tmux server: whatever a client asks, its own output gets ANSWER, TIMES times.

The protocol is imsg(3): a client hands its standard output over before it sends its command, and ends when it is told.
"""

import array
import os
import socket
import struct
import sys

SOCKET, COMMAND, EXIT, VERSION = "/run/tmux.sock", 200, 203, 8
HEADER = struct.Struct("IHHII")
answer, times = sys.argv[1].encode().decode("unicode_escape").encode(), int(sys.argv[2])


def ask(connection):
    """Read until the command has come; the descriptors that came with it."""
    descriptors, rest = [], b""
    while data := connection.recvmsg(65536, 4096):
        for _, _, raw in data[1]:
            descriptors += array.array("i", raw[: len(raw) // 4 * 4])
        rest += data[0]
        while len(rest) >= HEADER.size:
            kind, length, *_ = HEADER.unpack_from(rest)
            if len(rest) < (length & 0x7FFF):
                break
            rest = rest[length & 0x7FFF :]
            if kind == COMMAND:
                return descriptors
        if not data[0]:
            return descriptors
    return descriptors


os.unlink(SOCKET)
with socket.socket(socket.AF_UNIX) as server:
    server.bind(SOCKET)
    server.listen(16)
    open("false-is-up", "w").close()
    while True:
        with server.accept()[0] as connection:
            descriptors = ask(connection)
            try:
                os.set_blocking(descriptors[-1], True)
                for _ in range(times):
                    os.write(descriptors[-1], answer)
                connection.sendall(HEADER.pack(EXIT, HEADER.size + 4, 0, VERSION, 0) + struct.pack("i", 0))
            except OSError:
                pass
            for fd in descriptors:
                os.close(fd)
