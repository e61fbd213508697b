"""The OpenAPI document of the runner's API. Pure."""

from typing import Any, Final

from broker.api import openapi
from wicketgate.runner import schema
from wicketgate.runner.routes import ROUTES

API: Final = openapi.Api(
    title="Wicketgate runner API",
    description="HTTP on a unix socket, for users whom the runner's configuration names.",
    socket="The runner's socket.",
    routes=ROUTES,
    problem=schema.Problem,
)


def openapi_document() -> dict[str, Any]:
    """The document, as JSON would hold it. The same on each call."""
    return openapi.openapi_document(API)
