"""The OpenAPI document of the control API. Pure."""

from typing import Any, Final

from broker.api import openapi
from broker.control import schema
from broker.control.routes import ROUTES

API: Final = openapi.Api(
    title="Wicketgate broker: control API",
    description="HTTP on a unix socket, for users whom the broker's configuration names.",
    socket="The broker's control socket.",
    routes=ROUTES,
    problem=schema.Problem,
    also=(schema.GrantRule,),
)


def openapi_document() -> dict[str, Any]:
    """The document, as JSON would hold it. The same on each call."""
    return openapi.openapi_document(API)
