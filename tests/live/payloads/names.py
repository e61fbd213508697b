"""Asks name servers raw DNS questions, as a resolver without a C library does: one JSON document.

`[server, port is 53, transport, name, type number]` each.
"""

import json
import socket
import struct
import sys
import time


def query(name, kind, ident=0x1234):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def exactly(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


def ask(server, transport, name, kind):
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    where = (server, 53, 0, 1000) if server.startswith("fe80") else (server, 53)
    packet = query(name, kind)
    begin = time.perf_counter()
    if transport == "udp":
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.sendto(packet, where)
            answer, source = sock.recvfrom(4096)
            assert source[0].split("%")[0] == server, source
    else:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(5)
            sock.connect(where)
            sock.sendall(struct.pack(">H", len(packet)) + packet)
            if transport == "tcp, half-closed":
                sock.shutdown(socket.SHUT_WR)
            answer = exactly(sock, struct.unpack(">H", exactly(sock, 2))[0])
    ident, flags, _, answers = struct.unpack_from(">HHHH", answer)
    found = {"id": ident == 0x1234, "rcode": flags & 15, "tc": bool(flags & 0x200), "answers": answers}
    if answers:
        found["address"] = socket.inet_ntoa(answer[len(packet) + 12 :][:4])
    found["ms"] = (time.perf_counter() - begin) * 1000
    return found


print(json.dumps([ask(*one) for one in json.loads(sys.argv[1])]))
