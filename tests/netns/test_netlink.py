"""Netlink encoding: golden bytes, what comes back out of them, and answers that lie about their lengths."""

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest

from netns import nftables, rtnetlink
from netns.netlink import HEADER, Message, attribute, decode, decode_attributes, encode, nested, text

NEW = 0x605  # REQUEST, ACK, EXCL, CREATE


def payloads(messages: list[Message]) -> list[bytes]:
    return [payload for _, _, payload in decode(encode(messages))]


def test_an_attribute_is_padded_to_four_bytes_but_says_its_own_length() -> None:
    assert attribute(3, b"gate\0") == bytes.fromhex("0900 0300 67617465 00 000000")
    assert text(3, "gate") == attribute(3, b"gate\0")
    assert nested(4, attribute(1, b"\1\0\0\0")) == bytes.fromhex("0c00 0480 0800 0100 01000000")


def test_messages_follow_each_other_with_rising_numbers() -> None:
    data = encode([Message(16, 4, b"abcde", "one"), Message(20, 4, b"", "two")], first=7)
    assert data == bytes.fromhex(
        "15000000 1000 0500 07000000 00000000 6162636465 000000" + "10000000 1400 0500 08000000 00000000"
    )
    assert list(decode(data)) == [(16, 7, b"abcde"), (20, 8, b"")]


GOLDEN = [
    (rtnetlink.loopback_up(), 16, 0x5, "00 00 0000 01000000 01000000 01000000"),
    (rtnetlink.link_up(1000, "gate"), 16, 0x5, "00 00 0000 e8030000 01000000 01000000"),
    (
        rtnetlink.address(IPv4Address("198.19.255.1"), index=1000),
        20,
        NEW,
        "02 20 00 00 e8030000 0800 0200 c613ff01 0800 0100 c613ff01",
    ),
    (
        rtnetlink.link_route(IPv4Address("198.19.255.2"), index=1000),
        24,
        NEW,
        "02 20 00 00 fe 04 fd 01 00000000 0800 0100 c613ff02 0800 0400 e8030000",
    ),
    (
        rtnetlink.default_route(IPv4Address("198.19.255.1"), index=1000),
        24,
        NEW,
        "02 00 00 00 fe 04 00 01 00000000 0800 0500 c613ff01 0800 0400 e8030000",
    ),
    (
        rtnetlink.everything_local(6, table=100),
        24,
        NEW,
        "0a 00 00 00 64 04 fe 02 00000000 0800 0400 01000000 0800 0f00 64000000",
    ),
    (
        rtnetlink.rule_for_interface(4, interface="gate", table=100, priority=100),
        32,
        NEW,
        "02 00 00 00 64 00 00 01 00000000 0900 0300 6761746500 000000 0800 0600 64000000 0800 0f00 64000000",
    ),
    (
        rtnetlink.neighbour(IPv4Address("198.19.255.2"), bytes.fromhex("027767000002"), index=1000),
        28,
        0x405,
        "02 000000 e8030000 8000 00 01 0800 0100 c613ff02 0a00 0200 027767000002 0000",
    ),
]


@pytest.mark.parametrize(("message", "kind", "flags", "payload"), GOLDEN, ids=[row[0].what for row in GOLDEN])
def test_golden_bytes(message: Message, kind: int, flags: int, payload: str) -> None:
    data = encode([message])
    assert HEADER.unpack_from(data)[1:3] == (kind, flags)
    assert data[HEADER.size :] == bytes.fromhex(payload)


def test_an_ipv6_address_skips_duplicate_address_detection() -> None:
    (payload,) = payloads([rtnetlink.address(IPv6Address("fd77::2"), index=1000)])
    assert payload[:4] == bytes([10, 128, 0x02, 0])
    assert decode_attributes(payload[8:]) == {1: IPv6Address("fd77::2").packed, 2: IPv6Address("fd77::2").packed}


def test_a_veth_pair_is_born_with_its_far_end_elsewhere() -> None:
    message = rtnetlink.veth_pair(index=1000, near=("gate", b"\2abcde"), far=("eth0", b"\2abcdf"), far_namespace=9)
    (payload,) = payloads([message])
    near = decode_attributes(payload[16:])
    assert (near[3], near[1]) == (b"gate\0", b"\2abcde")
    info = decode_attributes(near[18])
    assert info[1] == b"veth\0"
    peer = decode_attributes(info[2])[1]
    far = decode_attributes(peer[16:])
    assert (far[3], far[1], far[28]) == (b"eth0\0", b"\2abcdf", struct.pack("=I", 9))


def test_every_rule_is_inside_one_batch_and_acknowledged() -> None:
    for messages in (nftables.bridge_rules(4321), nftables.sandbox_rules()):
        kinds = [kind for kind, _, _ in decode(encode(messages))]
        assert (kinds[0], kinds[-1]) == (0x10, 0x11)
        assert all(kind >> 8 == 10 for kind in kinds[1:-1])
        assert all(message.flags & 4 for message in messages[1:-1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(15),
        struct.pack("=IHHII", 0, 2, 0, 1, 0),
        struct.pack("=IHHII", 15, 2, 0, 1, 0),
        struct.pack("=IHHII", 100, 2, 0, 1, 0) + bytes(40),
        struct.pack("=IHHII", 0xFFFFFFFF, 2, 0, 1, 0),
    ],
)
def test_a_message_that_lies_about_its_length_ends_the_reading(data: bytes) -> None:
    assert list(decode(data)) == []


@pytest.mark.parametrize("data", [b"\0\0\0\0", b"\3\0\1\0", b"\x08\0\1\0", b"\xff\xff\1\0abcd", b"\4"])
def test_an_attribute_that_lies_about_its_length_ends_the_reading(data: bytes) -> None:
    assert decode_attributes(data) == {}
    whole = attribute(7, b"kept")
    assert decode_attributes(whole + data) == {7: b"kept"}
