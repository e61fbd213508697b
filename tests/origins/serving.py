"""What every origin process does the same way: say that it is ready, live as long as its starter, serve TLS.

An origin prints exactly one line, a JSON object of what it serves on (name to port), when connections are accepted. It
ends when its standard input does: the starter holds the other end of that pipe, so a killed starter leaves no origin.
"""

import argparse
import asyncio
import json
import ssl
import sys
from pathlib import Path

BACKLOG = 4096


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all origins take: --directory (certificates), --bind (address)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--directory", type=Path, required=True, help="where leaf.pem and leaf.key are")
    parser.add_argument("--bind", default="127.0.0.1")
    return parser


def server_context(directory: Path, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(directory / "leaf.pem", directory / "leaf.key")
    context.set_alpn_protocols(list(alpn))
    return context


def announce(**ports: int) -> None:
    print(json.dumps(ports), flush=True)


async def until_starter_ends() -> None:
    """Return at the end of standard input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
