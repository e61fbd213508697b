"""What an API's table of routes is made of. Pure."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from broker.api.faults import AnyFault, FaultKind

PREFIX: Final = "/v1"


class Kind(Enum):
    """How an operation answers: one document, JSON lines as they come, or a WebSocket."""

    DOCUMENT = "document"
    EVENTS = "events"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation. `name` is the method that does it, and the OpenAPI operation id.

    `query` and `body` are what is sent, `answer` what comes back with `status`; None for nothing. `faults` are those
    that this operation has beside the ones that every request can meet. A name in braces in `path` is an argument.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: Any = None
    status: int = 200
    query: Any = None
    body: Any = None
    kind: Kind = Kind.DOCUMENT
    faults: tuple[FaultKind, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def pattern(self) -> re.Pattern[str]:
        """What matches a whole raw path: an id needs no escape, and two spellings of one path would be one too many."""
        parts = re.split(r"(\{\w+\})", self.path)
        return re.compile("".join(_argument(part) if part.startswith("{") else re.escape(part) for part in parts))


def _argument(part: str) -> str:
    return f"(?P<{part[1:-1]}>[A-Za-z0-9._:-]{{1,128}})"


def _route(method: str, path: str, name: str, summary: str, answer: Any, **rest: Any) -> Route:
    return Route(method=method, path=path, name=name, summary=summary, answer=answer, **rest)


get = partial(_route, "GET")
put = partial(_route, "PUT")
post = partial(_route, "POST")
delete = partial(_route, "DELETE")

ANYWHERE: Final = (AnyFault.BAD_REQUEST, AnyFault.PEER_REFUSED, AnyFault.CROSS_ORIGIN, AnyFault.INTERNAL)
WITH_QUERY: Final = (AnyFault.UNKNOWN_FIELD, AnyFault.INVALID_FIELD)
WITH_BODY: Final = (*WITH_QUERY, AnyFault.TOO_LARGE, AnyFault.MEDIA_TYPE)


def faults_of(route: Route) -> tuple[FaultKind, ...]:
    """Everything that an operation can be refused with."""
    sent = (*(WITH_BODY if route.body else ()), *(WITH_QUERY if route.query else ()))
    return tuple(dict.fromkeys((*ANYWHERE, *sent, *route.faults)))
