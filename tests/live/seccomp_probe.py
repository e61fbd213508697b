"""Runs inside the sandbox: makes raw system calls from a table on standard input and prints what each one answered.

Standard library only, any Python 3: it is executed by the interpreter that the sandbox shows. Each call is made in a
process of its own, so that one that forks, unshares or dies does not disturb the next.
"""

import ctypes
import errno
import json
import os
import signal
import sys
from typing import Any


def argument(value: str | int, keep: list[object]) -> ctypes.c_long:
    if value == "null":
        return ctypes.c_long(0)
    if isinstance(value, int):
        return ctypes.c_long(value)
    kind, _, text = value.partition(":")
    buffer = ctypes.create_string_buffer(text.encode() if kind == "path" else int(text))
    keep.append(buffer)
    return ctypes.c_long(ctypes.addressof(buffer))


def call(number: int, values: list[str | int]) -> str:
    """The errno's name, or "ok"."""
    keep: list[object] = []
    words = [argument(value, keep) for value in values]
    libc = ctypes.CDLL(None, use_errno=True)
    me = os.getpid()
    result = libc.syscall(ctypes.c_long(number), *words)
    code = ctypes.get_errno()
    if os.getpid() != me:
        os._exit(0)  # the child of a clone
    return "ok" if result != -1 else errno.errorcode.get(code, str(code))


def probe(row: dict[str, Any]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            os.write(writer, call(row["number"], row["args"]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    return text or f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


print(json.dumps([probe(row) for row in json.load(sys.stdin)]))
