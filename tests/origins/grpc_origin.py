"""A gRPC origin over TLS: `python -m tests.origins.grpc_origin --directory DIR`. Messages are raw octets, no schema.

| method of /test.Echo/ | answer |
|---|---|
| `Unary` | the message, and the metadata `x-echo` back as trailing metadata |
| `Collect` (client stream) | all messages, joined |
| `Count` (server stream) | the numbers below the one asked for |
| `Talk` (both ways) | each message as it comes, while the stream lives |
| `Fail` | NOT_FOUND before any message: a trailers-only response |
| `FailLate` (server stream) | one message, then RESOURCE_EXHAUSTED |
| `Never` | nothing until the client's deadline |
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from tests.origins.serving import announce, argument_parser, until_starter_ends

SERVICE = "test.Echo"


async def unary(message: bytes, context: Any) -> bytes:
    given = dict(context.invocation_metadata())
    context.set_trailing_metadata((("x-echo", str(given.get("x-echo", ""))), ("x-bin", b"\0\xff")))
    return message


async def collect(messages: AsyncIterator[bytes], _: Any) -> bytes:
    return b"".join([message async for message in messages])


async def count(message: bytes, _: Any) -> AsyncIterator[bytes]:
    for number in range(int(message)):
        yield str(number).encode()


async def talk(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def fail(_: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: 100% ümlaut")
    raise AssertionError


async def fail_late(_: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"one"
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")


async def never(_: bytes, __: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


HANDLERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Unary": (grpc.unary_unary_rpc_method_handler, unary),
    "Collect": (grpc.stream_unary_rpc_method_handler, collect),
    "Count": (grpc.unary_stream_rpc_method_handler, count),
    "Talk": (grpc.stream_stream_rpc_method_handler, talk),
    "Fail": (grpc.unary_unary_rpc_method_handler, fail),
    "FailLate": (grpc.unary_stream_rpc_method_handler, fail_late),
    "Never": (grpc.unary_unary_rpc_method_handler, never),
}


async def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    key, chain = ((arguments.directory / name).read_bytes() for name in ("leaf.key", "leaf.pem"))
    server = grpc.aio.server()
    methods = {name: make(function) for name, (make, function) in HANDLERS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_secure_port(f"{arguments.bind}:0", grpc.ssl_server_credentials([(key, chain)]))
    await server.start()
    announce(https=port)
    await until_starter_ends()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
