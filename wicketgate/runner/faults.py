"""What the runner's API refuses beside what any request can meet, and what a refused launch or workspace means."""

import errno
from typing import Final

from broker.api.faults import AnyFault, ApiError, FaultKind
from sandbox.errors import Code, LaunchError
from sandbox.workspace import WorkspaceError
from wicketgate.runner.schema import Problem


class Fault(AnyFault):
    """The table of the runner's faults."""

    BAD_CALL: Final = FaultKind("bad_call", 400, "The call cannot be executed.")
    BAD_WORKSPACE: Final = FaultKind("bad_workspace", 400, "The workspace may not be used.")
    WRONG_CONFIRMATION: Final = FaultKind("wrong_confirmation", 400, "The confirmation is not the exact text.")
    NOT_ADMINISTRATOR: Final = FaultKind("not_administrator", 403, "Only an administrator may do this.")
    FULL_ACCESS_OFF: Final = FaultKind("full_access_off", 403, "Full access is not allowed now.")
    UNKNOWN_ID: Final = FaultKind("unknown_id", 404, "There is nothing of this id.")
    BUSY: Final = FaultKind("busy", 409, "It is not possible in the present state.")
    SESSION_OVER: Final = FaultKind("session_over", 409, "The session has ended.")
    TOO_MANY: Final = FaultKind("too_many", 429, "Too many of these exist.")
    EXHAUSTED: Final = FaultKind("exhausted", 503, "The runner has reached a limit of this machine.")
    NOT_LAUNCHED: Final = FaultKind(
        "not_launched", 503, "The sandbox could not be established, so nothing was executed."
    )


_OF_LAUNCH = {
    Code.BAD_CALL: Fault.BAD_CALL,
    Code.COMMAND_NOT_FOUND: Fault.BAD_CALL,
    Code.COMMAND_NOT_EXECUTABLE: Fault.BAD_CALL,
    Code.BAD_WORKSPACE: Fault.BAD_WORKSPACE,
    Code.SESSION_OVER: Fault.SESSION_OVER,
    Code.TOO_MANY: Fault.TOO_MANY,
}


# Descriptors, memory, processes, disk: nothing that the request or this program has done wrong.
_EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS}
)


class WorkspaceApiError(ApiError):
    """A workspace that is refused, with the finer code of its reason."""

    def __init__(self, error: WorkspaceError, field: str) -> None:
        super().__init__(Fault.BAD_WORKSPACE, str(error), field=field)
        self.reason = str(error.code)

    def document(self, request_id: str) -> Problem:
        """The problem document."""
        return self._document(Problem, request_id, reason=self.reason)


def as_refusal(error: Exception) -> ApiError | None:
    """What an error of the sandboxes means to a client; None: it is no refusal."""
    match error:
        case LaunchError():
            return from_launch(error)
        case WorkspaceError():
            return from_workspace(error)
        case OSError(errno=code) if code in _EXHAUSTED:
            cure = "Stop something, or give the runner more; nothing was started."
            return ApiError(Fault.EXHAUSTED, f"The kernel refuses it: {error.strerror}. {cure}")
    return None


def from_launch(error: LaunchError) -> ApiError:
    """A refused launch, under its own code."""
    fault = _OF_LAUNCH.get(error.code, Fault.NOT_LAUNCHED)
    return ApiError(fault, f"{error.cause} {error.cure}".strip(), code=str(error.code))


def from_workspace(error: WorkspaceError, field: str = "authority.workspace") -> ApiError:
    """A refused workspace, with its reason."""
    return WorkspaceApiError(error, field)
