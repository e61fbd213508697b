"""Tries to change the sandbox's own network and says what succeeded."""

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import subprocess

libc = ctypes.CDLL(None, use_errno=True)
REQUEST, ACK, CREATE, EXCL = 1, 4, 0x400, 0x200
found = {}


def note(name, action):
    try:
        found[name] = action()
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error.errno))


def call(function, *arguments):
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "refused")
    return "done"


def netlink(kind, payload, flags=0):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(5)
        sock.send(struct.pack("=IHHII", 16 + len(payload), kind, REQUEST | ACK | flags, 1, 0) + payload)
        code = -struct.unpack_from("=i", sock.recv(65536), 16)[0]
    if code:
        raise OSError(code, "refused")
    return "done"


def control(number):
    def action():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, number, struct.pack("16sH22x", b"eth0", 0))
        return "done"

    return action


def write(path):
    def action():
        with open(path, "w") as file:
            file.write("1")
        return "done"

    return action


def option(level, number, value):
    def action():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(level, number, value)
        return "done"

    return action


index = socket.if_nametoindex("eth0")
note("link down", lambda: netlink(16, struct.pack("=BxHiII", 0, 0, index, 0, 1)))
note(
    "new link",
    lambda: netlink(16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + struct.pack("=HH8s", 12, 3, b"dummy0\0\0"), CREATE),
)
note(
    "address",
    lambda: netlink(20, struct.pack("=BBBBI", 2, 24, 0, 0, index) + struct.pack("=HH4s", 8, 2, b"\x0a\0\0\1"), CREATE),
)
note("no route", lambda: netlink(25, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0)))
note(
    "route",
    lambda: netlink(
        24,
        struct.pack("=BBBBBBBBI", 2, 8, 0, 0, 254, 4, 253, 1, 0)
        + struct.pack("=HH4s", 8, 1, b"\x0a\0\0\0")
        + struct.pack("=HHI", 8, 4, index),
        CREATE,
    ),
)
note("rule", lambda: netlink(32, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 100, 0, 0, 1, 0), CREATE))
note(
    "neighbour",
    lambda: netlink(
        28,
        struct.pack("=BxxxiHBB", 2, index, 0x80, 0, 1)
        + struct.pack("=HH4s", 8, 1, b"\x0a\0\0\1")
        + struct.pack("=HH6sxx", 10, 2, b"\2abcde"),
        CREATE,
    ),
)
note(
    "namespace id",
    lambda: netlink(
        88, struct.pack("=Bxxx", 0) + struct.pack("=HHi", 8, 2, 1) + struct.pack("=HHI", 8, 3, os.getpid()), CREATE
    ),
)
for name, number in {
    "SIOCSIFFLAGS": 0x8914,
    "SIOCSIFADDR": 0x8916,
    "SIOCSIFMTU": 0x8922,
    "SIOCADDRT": 0x890B,
    "SIOCSARP": 0x8955,
}.items():
    note(name, control(number))
for name, flags in {"user": 0x10000000, "net": 0x40000000, "both": 0x50000000, "mount": 0x20000}.items():
    note("unshare " + name, lambda flags=flags: call(libc.unshare, flags))
for name in ("net", "user"):
    note("setns " + name, lambda name=name: call(libc.setns, os.open("/proc/1/ns/" + name, os.O_RDONLY), 0))
for name in (
    "net/ipv4/ip_forward",
    "net/ipv4/ping_group_range",
    "net/ipv4/conf/eth0/route_localnet",
    "net/ipv6/conf/all/disable_ipv6",
):
    note("write " + name, write("/proc/sys/" + name))
note("transparent", option(0, 19, 1))
note("mark", option(1, 36, 1))
note("bind to device of another", option(1, 25, b"gate\0"))
note("debug", option(1, 1, 1))
note("receive buffer by force", option(1, 33, 1 << 24))
for words in (
    ["ip", "link", "set", "eth0", "down"],
    ["ip", "netns", "add", "x"],
    ["nft", "flush", "ruleset"],
    ["ip", "route", "flush", "table", "main"],
):
    try:
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        found[" ".join(words)] = "done" if done.returncode == 0 else "refused"
    except FileNotFoundError:
        found[" ".join(words)] = "absent"
print(json.dumps(found))
