"""What the runner's API refuses, and with which status: one closed table, and the exception that carries an entry."""

from enum import Enum

from sandbox.errors import Code, LaunchError
from sandbox.workspace import WorkspaceError
from wicketgate.runner.schema import Problem


class Fault(Enum):
    """A stable code, its status (RFC 9110 §15) and its title."""

    BAD_REQUEST = ("bad_request", 400, "The request cannot be read.")
    UNKNOWN_FIELD = ("unknown_field", 400, "The request has a field that does not exist.")
    INVALID_FIELD = ("invalid_field", 400, "A field of the request has a value that is not possible.")
    BAD_CALL = ("bad_call", 400, "The call cannot be executed.")
    BAD_WORKSPACE = ("bad_workspace", 400, "The workspace may not be used.")
    WRONG_CONFIRMATION = ("wrong_confirmation", 400, "The confirmation is not the exact text.")
    PEER_REFUSED = ("peer_refused", 403, "This user may not use this socket.")
    CROSS_ORIGIN = ("cross_origin", 403, "This API is not for browsers.")
    NOT_ADMINISTRATOR = ("not_administrator", 403, "Only an administrator may do this.")
    FULL_ACCESS_OFF = ("full_access_off", 403, "Full access is not allowed now.")
    UNKNOWN_PATH = ("unknown_path", 404, "There is nothing at this path.")
    UNKNOWN_ID = ("unknown_id", 404, "There is nothing of this id.")
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, "This path does not have this method.")
    BUSY = ("busy", 409, "It is not possible in the present state.")
    SESSION_OVER = ("session_over", 409, "The session has ended.")
    TOO_LARGE = ("too_large", 413, "The request is too large.")
    MEDIA_TYPE = ("unsupported_media_type", 415, "The body must be JSON.")
    TOO_MANY = ("too_many", 429, "Too many of these exist.")
    INTERNAL = ("internal_error", 500, "An error of the runner itself.")
    NOT_LAUNCHED = ("not_launched", 503, "The sandbox could not be established, so nothing was executed.")

    def __init__(self, code: str, status: int, title: str) -> None:
        self.code = code
        self.status = status
        self.title = title


_OF_LAUNCH = {
    Code.BAD_CALL: Fault.BAD_CALL,
    Code.COMMAND_NOT_FOUND: Fault.BAD_CALL,
    Code.COMMAND_NOT_EXECUTABLE: Fault.BAD_CALL,
    Code.BAD_WORKSPACE: Fault.BAD_WORKSPACE,
    Code.SESSION_OVER: Fault.SESSION_OVER,
    Code.TOO_MANY: Fault.TOO_MANY,
}


class ApiError(Exception):
    """A request that is refused. `field` names the part of it that is wrong; `code` replaces the fault's own."""

    def __init__(
        self, fault: Fault, detail: str, *, field: str | None = None, code: str = "", reason: str | None = None
    ) -> None:
        super().__init__(f"{code or fault.code}: {detail}")
        self.fault = fault
        self.detail = detail
        self.field = field
        self.code = code or fault.code
        self.reason = reason

    def document(self, request_id: str) -> Problem:
        """The problem document."""
        return Problem(
            type=f"urn:wicketgate:problem:{self.code}",
            title=self.fault.title,
            status=self.fault.status,
            detail=self.detail,
            code=self.code,
            request_id=request_id,
            field=self.field,
            reason=self.reason,
        )


def from_launch(error: LaunchError) -> ApiError:
    """A refused launch, under its own code."""
    fault = _OF_LAUNCH.get(error.code, Fault.NOT_LAUNCHED)
    return ApiError(fault, f"{error.cause} {error.cure}".strip(), code=str(error.code))


def from_workspace(error: WorkspaceError, field: str = "authority.workspace") -> ApiError:
    """A refused workspace, with its reason."""
    return ApiError(Fault.BAD_WORKSPACE, str(error), field=field, reason=str(error.code))
