"""An upstream name server for resolver tests: `python -m tests.origins.dns_origin [--records FILE]`.

UDP and TCP on one port. What it answers, well or badly, is the table tests/cases/dns_records.toml. After the line
with its port it prints one JSON line a query (transport, name, type), so that a test can tell that nothing was asked.
"""

import argparse
import asyncio
import json
import socket
import tomllib
from pathlib import Path
from typing import Any, Final

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.origins.serving import announce, until_starter_ends

RECORDS: Final = Path(__file__).parents[1] / "cases" / "dns_records.toml"
RCODES: Final = {"servfail": dns.rcode.SERVFAIL, "refused": dns.rcode.REFUSED, "formerr": dns.rcode.FORMERR}
DEFAULT_TTL: Final = 60


class Zone:
    """Answers queries from the table; the only state is how often a name was asked for each type."""

    def __init__(self, table: dict[str, dict[str, Any]]) -> None:
        self._table = table
        self._asked: dict[tuple[str, str], int] = {}

    def answer(self, wire: bytes, *, transport: str) -> bytes | None:
        """The response in wire form, or None for silence."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(question.rdtype)
        print(json.dumps({"transport": transport, "name": name, "type": kind}), flush=True)
        response = dns.message.make_response(query, recursion_available=True)
        entry = self._table.get(name)
        if entry is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response.to_wire()
        for rrset in self._rrsets(name, kind, entry):
            response.answer.append(rrset)
        return _misbehave(response, entry.get("behave"), transport)

    def _rrsets(self, name: str, kind: str, entry: dict[str, Any]) -> list[dns.rrset.RRset]:
        rounds = entry.get("answers", [[]])
        turn = self._asked.get((name, kind), 0)
        self._asked[name, kind] = turn + 1
        grouped: dict[tuple[str, str], list[str]] = {}
        for record in rounds[min(turn, len(rounds) - 1)]:
            head, value = record.split(" ", 1)
            record_kind, _, owner = head.partition("@")
            if record_kind in (kind, "CNAME"):
                grouped.setdefault((owner or name, record_kind), []).append(_absolute(record_kind, value))
        ttl = entry.get("ttl", DEFAULT_TTL)
        return [
            dns.rrset.from_text_list(dns.name.from_text(owner), ttl, "IN", record_kind, values)
            for (owner, record_kind), values in grouped.items()
        ]


def _absolute(kind: str, value: str) -> str:
    return f"{value}." if kind == "CNAME" else value


def _misbehave(response: dns.message.Message, behave: str | None, transport: str) -> bytes | None:
    match behave:
        case "silent":
            return None
        case "garbage":
            return b"\x00\x01garbage"
        case "truncated" if transport == "udp":
            response.answer.clear()
            response.flags |= dns.flags.TC
        case "wrong-id":
            response.id ^= 1
        case "wrong-name":
            response.question[0].name = dns.name.from_text("other.example")
        case "servfail" | "refused" | "formerr":
            response.set_rcode(RCODES[behave])
    return response.to_wire()


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, zone: Zone) -> None:
        self._zone = zone
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        answer = self._zone.answer(data, transport="udp")
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)


async def _stream(zone: Zone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """RFC 1035 section 4.2.2: each message after its length in two bytes."""
    try:
        while True:
            length = int.from_bytes(await reader.readexactly(2))
            answer = zone.answer(await reader.readexactly(length), transport="tcp")
            if answer is not None:
                writer.write(len(answer).to_bytes(2) + answer)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _same_port(address: str) -> tuple[socket.socket, socket.socket]:
    """A UDP and a TCP socket on one free port: the kernel picks for one, the other tries it, up to 50 times."""
    for _ in range(50):
        stream = socket.create_server((address, 0))
        datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagram.bind(stream.getsockname())
        except OSError:
            stream.close()
            datagram.close()
            continue
        datagram.setblocking(False)
        return datagram, stream
    raise OSError(f"no port is free for both UDP and TCP on {address}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--records", type=Path, default=RECORDS)
    arguments = parser.parse_args()
    zone = Zone(tomllib.loads(arguments.records.read_text(encoding="utf-8")))
    datagram, stream = _same_port(arguments.bind)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Datagrams(zone), sock=datagram)
    server = await asyncio.start_server(lambda reader, writer: _stream(zone, reader, writer), sock=stream)
    announce(dns=stream.getsockname()[1])
    await until_starter_ends()
    transport.close()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
