"""A WebSocket client of the standard library alone: upgrades, has 200 messages echoed, closes."""

import os
import socket
import ssl
import sys

scheme, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
sock = socket.create_connection((host, port), 20)
if scheme == "wss":
    sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
stream = sock.makefile("rb")


def send(kind: int, payload: bytes) -> None:
    mask = os.urandom(4)
    masked = bytes(octet ^ mask[index & 3] for index, octet in enumerate(payload))
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2)
    sock.sendall(bytes((0x80 | kind,)) + size + mask + masked)


def receive() -> tuple[int, bytes]:
    first, length = stream.read(2)
    if length == 126:
        length = int.from_bytes(stream.read(2))
    return first & 15, stream.read(length)


request = ["GET /chat?x=1 HTTP/1.1", f"Host: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade"]
request += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
sock.sendall("\r\n".join(request).encode())
status = stream.readline().split()[1].decode()
while stream.readline() != b"\r\n":
    pass
echoed = 0
for number in range(200):
    message = f"{number} ".encode() * (1000 // len(f"{number} ") + 1)
    send(1, message)
    echoed += receive() == (1, message)
send(8, (1000).to_bytes(2))
kind, payload = receive()
print(status, "echoed", echoed, "closed", int.from_bytes(payload[:2]) if kind == 8 else kind)
