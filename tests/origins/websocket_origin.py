"""A WebSocket echo over TLS and in clear: `python -m tests.origins.websocket_origin --directory DIR`.

Text and binary messages come back as they were; `close CODE` closes with that code.
"""

import asyncio

from websockets.asyncio.server import Server, ServerConnection, serve

from tests.origins.serving import announce, argument_parser, server_context, until_starter_ends

MAX_MESSAGE = 1 << 26


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        if isinstance(message, str) and message.startswith("close "):
            await connection.close(int(message.removeprefix("close ")))
            return
        await connection.send(message)


def _port(server: Server) -> int:
    port = next(iter(server.sockets)).getsockname()[1]
    assert isinstance(port, int)
    return port


async def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    tls = server_context(arguments.directory)
    async with (
        serve(echo, arguments.bind, 0, ssl=tls, max_size=MAX_MESSAGE) as over_tls,
        serve(echo, arguments.bind, 0, max_size=MAX_MESSAGE) as in_clear,
    ):
        announce(https=_port(over_tls), http=_port(in_clear))
        await until_starter_ends()


if __name__ == "__main__":
    asyncio.run(main())
