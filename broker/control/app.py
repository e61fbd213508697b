"""The control API's server."""

import asyncio
from typing import Final

from broker.api.faults import ApiError
from broker.api.server import ApiServer, Bounds
from broker.control.faults import Fault
from broker.control.operations import Operations
from broker.control.routes import ROUTES
from broker.control.store import StoreError

MAX_BODY: Final = 1024 * 1024
BOUNDS: Final = Bounds(body=MAX_BODY, connections=256)


def control_server(operations: Operations, loop: asyncio.AbstractEventLoop) -> ApiServer:
    """A server of the control API."""
    return ApiServer(ROUTES, operations, loop, bounds=BOUNDS, refusal=_as_refusal)


def _as_refusal(error: Exception) -> ApiError | None:
    return ApiError(Fault.INTERNAL, str(error)) if isinstance(error, StoreError) else None
