"""The packet rules of a bridge and of a sandbox, as nf_tables messages. Pure, but for `count_refused`.

Bridge, prerouting: TCP to any address and port goes to the capture listener (`tproxy`), UDP to port 53 is delivered to
the name server's socket, and all else is refused at once. Sandbox, output: the same refusal one step earlier, so that
even an unconnected datagram socket gets its error from the sending call and no ICMP rate limit can hide it.
The sandbox's rules are for speed and for counting; the bridge's rules are what holds.
"""

import struct

from netns.netlink import (
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    Message,
    Netlink,
    attribute,
    decode_attributes,
    nested,
    text,
)

NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
NFNL_SUBSYS_NFTABLES = 10
NFT_MSG_NEWTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE, NFT_MSG_NEWOBJ, NFT_MSG_GETOBJ = 0, 3, 6, 18, 19
NFPROTO_UNSPEC, NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6 = 0, 1, 2, 10
NF_INET_PRE_ROUTING, NF_INET_FORWARD, NF_INET_LOCAL_OUT = 0, 2, 3
NF_DROP, NF_ACCEPT = 0, 1
PRIORITY_MANGLE, PRIORITY_FILTER = -150, 0
NFT_REG_VERDICT, NFT_REG_1 = 0, 1
NFT_META_OIF, NFT_META_NFPROTO, NFT_META_L4PROTO = 5, 15, 16
NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER = 1, 2
NFT_CMP_EQ, NFT_CMP_GTE = 0, 5
NFT_REJECT_TCP_RST, NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_PORT_UNREACH = 1, 2, 1
NFT_OBJECT_COUNTER = 1
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMPV6 = 6, 17, 58
DNS_PORT = 53
LOOPBACK_INDEX = 1
TABLE, REFUSED = "wicketgate", "refused"


def bridge_rules(capture_port: int) -> list[Message]:
    """The batch for a bridge whose capture listener has `capture_port` (host order)."""
    chain = "capture"
    tcp, udp = _protocol(IPPROTO_TCP), _protocol(IPPROTO_UDP)
    return _batch(
        _table(),
        _counter(REFUSED),
        _chain(chain, NF_INET_PRE_ROUTING, PRIORITY_MANGLE, NF_DROP),
        _chain("never", NF_INET_FORWARD, PRIORITY_FILTER, NF_DROP),
        _rule(chain, *tcp, *_tproxy(capture_port), _verdict(NF_ACCEPT)),
        # Reached only when nobody listens any more: the broker is gone or has closed this session.
        _rule(chain, *tcp, _reject(NFT_REJECT_TCP_RST)),
        _rule(chain, *udp, *_destination_port(DNS_PORT), _verdict(NF_ACCEPT)),
        _rule(chain, _count(REFUSED), _reject(NFT_REJECT_ICMPX_UNREACH)),
    )


def sandbox_rules() -> list[Message]:
    """The batch for a sandbox: what its cable would refuse is refused before it is sent."""
    chain = "refuse"
    return _batch(
        _table(),
        _counter(REFUSED),
        _chain(chain, NF_INET_LOCAL_OUT, PRIORITY_FILTER, NF_ACCEPT),
        _rule(chain, _meta(NFT_META_OIF), _compare(struct.pack("=I", LOOPBACK_INDEX)), _verdict(NF_ACCEPT)),
        _rule(chain, *_protocol(IPPROTO_TCP), _verdict(NF_ACCEPT)),
        # The kernel's own group reports (MLD, RFC 3810): nobody tried anything. A payload has no ICMP socket.
        _rule(chain, *_protocol(IPPROTO_ICMPV6), _verdict(NF_DROP)),
        *(_rule(chain, *many, _count(REFUSED), _reject(NFT_REJECT_ICMPX_UNREACH)) for many in _not_unicast()),
        _rule(chain, *_protocol(IPPROTO_UDP), *_destination_port(DNS_PORT), _verdict(NF_ACCEPT)),
        _rule(chain, _count(REFUSED), _reject(NFT_REJECT_ICMPX_UNREACH)),
    )


def count_refused(netlink: Netlink) -> int:
    """How many packets the rules of the socket's network namespace have refused so far."""
    body = text(1, TABLE) + text(2, REFUSED) + attribute(3, struct.pack(">I", NFT_OBJECT_COUNTER))
    answers = netlink.ask(_message(NFT_MSG_GETOBJ, 0, body, "read the refused counter"))
    data = decode_attributes(decode_attributes(answers[0][4:])[4])
    return int.from_bytes(data[2], "big")


def _batch(*messages: Message) -> list[Message]:
    head = struct.pack(">BBH", NFPROTO_UNSPEC, 0, NFNL_SUBSYS_NFTABLES)
    begin = Message(NFNL_MSG_BATCH_BEGIN, 0, head, "begin the rule batch")
    return [begin, *messages, Message(NFNL_MSG_BATCH_END, 0, head, "end the rule batch")]


def _message(kind: int, flags: int, body: bytes, what: str) -> Message:
    payload = struct.pack(">BBH", NFPROTO_INET, 0, 0) + body
    return Message(NFNL_SUBSYS_NFTABLES << 8 | kind, NLM_F_ACK | flags, payload, what)


def _table() -> Message:
    return _message(NFT_MSG_NEWTABLE, NLM_F_CREATE, text(1, TABLE), "create the nftables table")


def _counter(name: str) -> Message:
    kind = attribute(3, struct.pack(">I", NFT_OBJECT_COUNTER))
    body = text(1, TABLE) + text(2, name) + kind + nested(4)
    return _message(NFT_MSG_NEWOBJ, NLM_F_CREATE, body, "create the counter")


def _chain(name: str, hook: int, priority: int, policy: int) -> Message:
    where = nested(4, attribute(1, struct.pack(">I", hook)), attribute(2, struct.pack(">i", priority)))
    body = text(1, TABLE) + text(3, name) + where + attribute(5, struct.pack(">I", policy)) + text(7, "filter")
    return _message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, body, f"create the chain {name}")


def _rule(chain: str, *expressions: bytes) -> Message:
    body = text(1, TABLE) + text(2, chain) + nested(4, *expressions)
    return _message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, body, f"add a rule to {chain}")


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *attributes))


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value))


def _meta(key: int) -> bytes:
    return _expression("meta", _number(1, NFT_REG_1), _number(2, key))


def _compare(value: bytes, operator: int = NFT_CMP_EQ) -> bytes:
    return _expression("cmp", _number(1, NFT_REG_1), _number(2, operator), nested(3, attribute(1, value)))


def _load(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", _number(1, NFT_REG_1), _number(2, base), _number(3, offset), _number(4, length))


def _protocol(number: int) -> tuple[bytes, bytes]:
    return _meta(NFT_META_L4PROTO), _compare(bytes([number]))


def _destination_port(port: int) -> tuple[bytes, bytes]:
    return _load(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2), _compare(struct.pack(">H", port))


def _not_unicast() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Multicast and broadcast: no name server can answer from such an address (RFC 1122 §3.2.1.3, RFC 4291 §2.7)."""
    version = _meta(NFT_META_NFPROTO)
    first_4, first_6 = _load(NFT_PAYLOAD_NETWORK_HEADER, 16, 1), _load(NFT_PAYLOAD_NETWORK_HEADER, 24, 1)
    return (
        (version, _compare(bytes([NFPROTO_IPV4])), first_4, _compare(b"\xe0", NFT_CMP_GTE)),
        (version, _compare(bytes([NFPROTO_IPV6])), first_6, _compare(b"\xff")),
    )


def _tproxy(port: int) -> tuple[bytes, bytes]:
    value = nested(2, attribute(1, struct.pack(">H", port)))
    load = _expression("immediate", _number(1, NFT_REG_1), value)
    return load, _expression("tproxy", _number(1, NFPROTO_UNSPEC), _number(3, NFT_REG_1))


def _verdict(code: int) -> bytes:
    return _expression("immediate", _number(1, NFT_REG_VERDICT), nested(2, nested(2, _number(1, code))))


def _count(name: str) -> bytes:
    return _expression("objref", _number(1, NFT_OBJECT_COUNTER), text(2, name))


def _reject(kind: int) -> bytes:
    code = NFT_REJECT_ICMPX_PORT_UNREACH if kind == NFT_REJECT_ICMPX_UNREACH else 0
    return _expression("reject", _number(1, kind), attribute(2, bytes([code])))
