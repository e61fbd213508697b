"""What a payload can see of a network: one JSON document."""

import contextlib
import json
import os
import socket
import sys

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy")


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def attempt(kind, address, family=socket.AF_UNIX):
    with socket.socket(family, kind) as sock:
        sock.settimeout(3)
        try:
            sock.connect(address)
        except OSError as error:
            return type(error).__name__
        return "connected"


wanted = json.loads(sys.argv[1])
found = {
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "routes": [line.split()[:3] for line in read("/proc/net/route").splitlines()[1:]],
    "routes6": [line.split()[-1] for line in read("/proc/net/ipv6_route").splitlines()],
    "unix": [line.split()[-1] for line in read("/proc/net/unix").splitlines()[1:] if len(line.split()) == 8],
    "proxies": {name: value for name, value in os.environ.items() if name.lower() in PROXIES},
    "pathnames": {
        path: [attempt(kind, path) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)] for path in wanted["pathnames"]
    },
    "abstract": {
        name: [attempt(kind, "\0" + name) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
        for name in wanted["abstract"]
    },
    "loopback": {
        str(port): [
            attempt(socket.SOCK_STREAM, ("127.0.0.1", port), socket.AF_INET),
            attempt(socket.SOCK_STREAM, ("::1", port), socket.AF_INET6),
        ]
        for port in wanted["ports"]
    },
    "descriptors": [os.readlink("/proc/self/fd/" + fd) for fd in ("0", "1", "2")],
}
more = []
for fd in os.listdir("/proc/self/fd"):
    if int(fd) > 2:
        with contextlib.suppress(FileNotFoundError):
            more.append(os.readlink("/proc/self/fd/" + fd))
found["inherited"] = more
print(json.dumps(found))
