"""`wicketgate run --runner SOCKET`: one command through a running runner, in a sandbox of its own.

Loading modules is most of what such a start takes, so nothing but the interpreter's `json` and `socket` is loaded.
There is no other way: without the runner nothing is executed.
"""

import binascii
import json
import os
import socket
import stat

from wicketgate.speech import say, write_all

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than a sandbox to start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

REFUSED, NOT_FOUND, NOT_EXECUTABLE = 125, 127, 126
CODES = {"command_not_found": NOT_FOUND, "command_not_executable": NOT_EXECUTABLE}
OPTIONS = frozenset({"command", "runner", "workspace", "grant", "timeout"})
MAX_STDIN, MAX_TIMEOUT = 8 << 20, 366 * 24 * 3600
MAX_HEAD, CHUNK = 1 << 16, 1 << 16
READ_WHOLE = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK)


def suits(typed: "dict[str, Any]") -> bool:
    """Whether what was typed (`wicketgate.typed`) is for `run_through` as it is, and free of mistakes."""
    return "runner" in typed and typed.keys() <= OPTIONS and 0 < typed.get("timeout", 1) <= MAX_TIMEOUT and _are_open()


def run_through(
    *,
    runner: str,
    command: tuple[str, ...],
    workspace: str | None = None,
    grant: str | None = None,
    timeout: float | None = None,
) -> int:
    """Run the command; its exit code, or 125 where it was refused. A signal that ends this process ends the command."""
    try:
        body = _body(command, workspace, grant, timeout)
        with _connect(runner) as connection:
            connection.sendall(b"POST /v1/runs HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            connection.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            return _report(_lines(connection))
    except _Failed as failed:
        say(str(failed))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        say(f"The runner at {runner} did not answer to the end ({why}); what it was running ends.")
    return REFUSED


class _Failed(Exception):  # noqa: N818  the text is the sentence that is said
    pass


def _body(command: tuple[str, ...], workspace: str | None, grant: str | None, timeout: float | None) -> bytes:
    authority: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if workspace is not None:
        authority["workspace"] = os.path.join(os.getcwd(), workspace)  # noqa: PTH109, PTH118  pathlib takes long to load
    if grant is not None:
        authority |= {"network": "brokered", "grant": grant}
    document = {"call": {"argv": command, "stdin": _standard_input()}, "authority": authority}
    try:
        return json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Failed("What was typed is no valid text (UTF-8), and a runner takes nothing else.") from None


def _standard_input() -> str:
    """All of a file or pipe. A terminal or another device is not read: nobody could type in time."""
    if stat.S_IFMT(os.fstat(0).st_mode) not in READ_WHOLE:
        return ""
    found = bytearray()
    while piece := os.read(0, CHUNK):
        found += piece
        if len(found) > MAX_STDIN:
            raise _Failed(f"Standard input is longer than {MAX_STDIN} bytes, the most that a runner takes.")
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise _Failed("Standard input is no valid text (UTF-8), and a runner takes nothing else.") from None


def _connect(runner: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(runner)
    except (OSError, ValueError) as error:
        connection.close()
        why = getattr(error, "strerror", None) or error
        start = "Start it with `wicketgate runner --config FILE`, or name its socket; nothing was executed."
        raise _Failed(f"No runner can be reached at {runner} ({why}). {start}") from error
    return connection


def _lines(connection: socket.socket) -> "Iterator[dict[str, Any]]":
    """The documents of an answer, one a line. In HTTP/1.0 the body ends with the connection (RFC 9112 §6.3)."""
    rest = bytearray()
    while b"\r\n\r\n" not in rest:
        piece = connection.recv(CHUNK)
        rest += piece
        if not piece or len(rest) > MAX_HEAD:
            raise _Failed("The runner gave no answer; `wicketgate health` tells more.")
    _, _, rest = rest.partition(b"\r\n\r\n")
    while True:
        *lines, rest = rest.split(b"\n")
        yield from map(json.loads, lines)
        piece = connection.recv(CHUNK)
        if not piece:
            break
        rest += piece
    if rest:
        yield json.loads(rest)  # a refusal is one document without an end of its line


def _report(documents: "Iterator[dict[str, Any]]") -> int:
    """Pass the output on; the exit code."""
    for document in documents:
        match document.get("type"):
            case "started":
                continue
            case "output":
                data = document.get("text", "").encode() or binascii.a2b_base64(document.get("base64", ""))
                if not write_all(2 if document["stream"] == "stderr" else 1, data):
                    return REFUSED  # whoever read it has gone; closing the connection ends the command
            case "ended":
                return _end(document)
            case _:
                say(f"{document.get('title', 'Refused.')} {document.get('detail', '')}".rstrip())
                return CODES.get(document.get("code", ""), REFUSED)
    raise _Failed("The runner went away before the command's end was known; what it was running has ended.")


def _end(document: "dict[str, Any]") -> int:
    for finding in document["set_aside"]:
        say(finding)
    if document["timed_out"]:
        say("the time limit is over; everything in the sandbox was ended")
    if document["dropped_bytes"]:
        say(f"{document['dropped_bytes']} bytes of output were dropped: it was longer than the runner keeps")
    return int(document["code"])


def _are_open() -> bool:
    """Whether the three standard descriptors are; where not, the command line fills them before anything is opened."""
    try:
        for fd in (0, 1, 2):
            os.fstat(fd)
    except OSError:
        return False
    return True
