"""What the runner tells the process that forks for it, and those that wait: a word and descriptors. The first of them
holds a document, since a command line may be larger than a message.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandbox.births import Birth, Entry

MAX_ANSWER: Final = 4096
MAX_DESCRIPTORS: Final = 253  # SCM_MAX_FD: more cannot be sent
READY: Final = b"ready"
type Document = Mapping[str, Any]


def tell(channel: socket.socket, what: str, document: Document, descriptors: Sequence[int]) -> None:
    """Send it. Raises OSError."""
    content = os.memfd_create("wicketgate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(content), "wb") as file:
            file.write(json.dumps(document).encode())
        socket.send_fds(channel, [what.encode()], [content, *descriptors])
    finally:
        os.close(content)


def hear(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next word, empty at the end, and its descriptors: none where not all of them could be taken."""
    what, descriptors, flags, _ = socket.recv_fds(channel, MAX_ANSWER, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & socket.MSG_CTRUNC:  # what came without all of its descriptors must not begin
        for fd in descriptors:
            os.close(fd)
        return what, []
    return what, descriptors


def read(content: int) -> dict[str, Any]:
    """The document in the first descriptor of what was heard."""
    with open(content, "rb", closefd=False) as file:
        file.seek(0)
        document: dict[str, Any] = json.load(file)
    return document


def format_birth(birth: Birth) -> tuple[dict[str, Any], list[int]]:
    """A birth as a document and descriptors."""
    numbers = sorted(birth.descriptors)
    descriptors = [birth.bwrap_fd, *(birth.descriptors[number] for number in numbers)]
    if birth.network >= 0:
        descriptors.append(birth.network)
    return {"argv": birth.argv, "reset": birth.reset, "rlimits": birth.rlimits, "numbers": numbers}, descriptors


def parse_birth(document: Document, descriptors: list[int]) -> Birth:
    """What `format_birth` made, with this process's descriptors."""
    bwrap, *rest = descriptors
    numbers = document["numbers"]
    return Birth(
        argv=tuple(document["argv"]),
        bwrap_fd=bwrap,
        descriptors=dict(zip(numbers, rest, strict=False)),
        network=rest[len(numbers)] if len(rest) > len(numbers) else -1,
        reset=tuple(document["reset"]),
        rlimits=_triples(document["rlimits"]),
    )


def format_entry(entry: Entry, reset: tuple[int, ...], report: int) -> tuple[dict[str, Any], list[int]]:
    """What `execution.join` takes as a document and descriptors."""
    numbers = sorted(entry.stdio)
    document = {
        "entry": {**entry._asdict(), "seccomp": entry.seccomp.hex(), "stdio": None},
        "reset": reset,
        "numbers": numbers,
    }
    return document, [report, *(entry.stdio[number] for number in numbers)]


def parse_entry(document: Document, descriptors: list[int]) -> tuple[Entry, tuple[int, ...], int]:
    """What `format_entry` made, with this process's descriptors."""
    report, *stdio = descriptors
    fields = document["entry"]
    entry = Entry(
        **{
            **fields,
            "argv": tuple(fields["argv"]),
            "environment": tuple((name, value) for name, value in fields["environment"]),
            "seccomp": bytes.fromhex(fields["seccomp"]),
            "rlimits": _triples(fields["rlimits"]),
            "groups": tuple(fields["groups"]),
            "stdio": dict(zip(document["numbers"], stdio, strict=True)),
        }
    )
    return entry, tuple(document["reset"]), report


def _triples(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((limit, soft, hard) for limit, soft, hard in rows)
