"""Tries what it is told (JSON, first argument) and prints how each ended and after how many milliseconds.

`[name, {"type": "udp" | "tcp" | "socket" | "dns", ...}]`. Nothing here decides whether an outcome is right.
"""

import errno
import json
import socket
import sys
import time

WAIT = 4.0


def family_of(address):
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def udp(address, connected=False, size=1200, **_):
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as sock:
        sock.settimeout(WAIT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if connected:
            sock.connect(tuple(address))
            sock.send(bytes(size))
        else:
            sock.sendto(bytes(size), tuple(address))
        return f"received {len(sock.recvfrom(65535)[0])}"


def tcp(address, send="", fast_open=False, bind=None, options=None, **_):
    with socket.socket(family_of(address), socket.SOCK_STREAM) as sock:
        if fast_open:
            sock.sendto(send.encode(), 0x20000000, tuple(address))  # MSG_FASTOPEN
            sock.settimeout(WAIT)
        else:
            sock.settimeout(WAIT)
            if options:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes.fromhex(options))
            if bind:
                sock.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
                sock.bind(tuple(bind))
            sock.connect(tuple(address))
            if send:
                sock.sendall(send.encode())
        data = b""
        while len(data) < 65536:
            piece = sock.recv(4096)
            if not piece:
                break
            data += piece
        return "received " + data[:120].decode("latin-1")


def make(family, kind, protocol, **_):
    with socket.socket(family, kind, protocol):
        return "made"


def multipath(address, send, **_):
    """As clients do that want MPTCP and take TCP where there is none."""
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with sock:
        sock.settimeout(WAIT)
        sock.connect(tuple(address))
        sock.sendall(send.encode())
        return "received " + sock.recv(120).decode("latin-1")


def ping(address, **_):
    with socket.socket(family_of(address), socket.SOCK_DGRAM, 58 if ":" in address[0] else 1) as sock:
        sock.settimeout(WAIT)
        sock.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]), tuple(address))
        return f"received {len(sock.recvfrom(100)[0])}"


TYPES = {"udp": udp, "tcp": tcp, "socket": make, "multipath": multipath, "ping": ping}


def attempt(wanted):
    begin = time.perf_counter()
    try:
        outcome = TYPES[wanted["type"]](**{key: value for key, value in wanted.items() if key != "type"})
    except TimeoutError:
        outcome = "silence"
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error.errno))
    return {"outcome": outcome, "ms": (time.perf_counter() - begin) * 1000}


print(json.dumps({name: attempt(wanted) for name, wanted in json.loads(sys.argv[1])}))
