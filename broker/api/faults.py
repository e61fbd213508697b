"""What any request can be refused with, the exception that carries a refusal, and its problem document (RFC 9457).

Each API adds its own faults by a subclass of `AnyFault`; `faults_in` lists such a table.
"""

from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A stable code, its status (RFC 9110 §15) and its title."""

    code: str
    status: int
    title: str


class AnyFault:
    """The faults of the HTTP side, the same for every API."""

    BAD_REQUEST: Final = FaultKind("bad_request", 400, "The request cannot be read.")
    UNKNOWN_FIELD: Final = FaultKind("unknown_field", 400, "The request has a field that does not exist.")
    INVALID_FIELD: Final = FaultKind("invalid_field", 400, "A field of the request has a value that is not possible.")
    PEER_REFUSED: Final = FaultKind("peer_refused", 403, "This user may not use this socket.")
    CROSS_ORIGIN: Final = FaultKind("cross_origin", 403, "This API is not for browsers.")
    UNKNOWN_PATH: Final = FaultKind("unknown_path", 404, "There is nothing at this path.")
    METHOD_NOT_ALLOWED: Final = FaultKind("method_not_allowed", 405, "This path does not have this method.")
    TOO_LARGE: Final = FaultKind("too_large", 413, "The request is too large.")
    MEDIA_TYPE: Final = FaultKind("unsupported_media_type", 415, "The body must be JSON.")
    INTERNAL: Final = FaultKind("internal_error", 500, "An error of the daemon itself.")


def faults_in(table: type[AnyFault]) -> list[FaultKind]:
    """All faults of a table, those of any request too, by status."""
    found = [value for one in table.__mro__ for value in vars(one).values() if isinstance(value, FaultKind)]
    return sorted(found, key=lambda fault: fault.status)


class ProblemDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457). `field` names what is wrong in the request."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str = ""
    field: str | None = None


class ApiError(Exception):
    """A request that is refused. `field` names the part of it that is wrong; `code` replaces the fault's own."""

    def __init__(self, fault: FaultKind, detail: str, *, field: str | None = None, code: str = "") -> None:
        self.fault = fault
        self.detail = detail
        self.field = field
        self.code = code or fault.code
        super().__init__(f"{self.code}: {detail}")

    def document(self, request_id: str) -> ProblemDocument:
        """The problem document."""
        return self._document(ProblemDocument, request_id)

    def _document[P: ProblemDocument](self, kind: type[P], request_id: str, **more: Any) -> P:
        return kind(
            type=f"urn:wicketgate:problem:{self.code}",
            title=self.fault.title,
            status=self.fault.status,
            detail=self.detail,
            code=self.code,
            request_id=request_id,
            field=self.field,
            **more,
        )
