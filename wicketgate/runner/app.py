"""The runner's API server."""

import asyncio
from typing import Final

from broker.api.server import ApiServer, Bounds
from wicketgate.runner.faults import as_refusal
from wicketgate.runner.operations import Operations
from wicketgate.runner.routes import ROUTES
from wicketgate.runner.schema import MAX_SCRIPT, MAX_STDIN

MAX_BODY: Final = 6 * MAX_STDIN + 8 * MAX_SCRIPT  # JSON may write one byte as six
# A client that closes its connection ends what it waits for.
BOUNDS: Final = Bounds(body=MAX_BODY, connections=512, lasting=False)


def runner_server(operations: Operations, loop: asyncio.AbstractEventLoop) -> ApiServer:
    """A server of the runner's API."""
    return ApiServer(ROUTES, operations, loop, bounds=BOUNDS, refusal=as_refusal)
