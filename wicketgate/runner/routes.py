"""The routes of the runner's API: one table, from which the server routes and the OpenAPI document is written. Pure."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from wicketgate.runner import schema
from wicketgate.runner.faults import Fault


class Kind(Enum):
    """How an operation answers: one document, JSON lines as they come, or a WebSocket."""

    DOCUMENT = "document"
    EVENTS = "events"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation. `name` is the method of `Operations` that does it, and the OpenAPI operation id."""

    method: str
    path: str
    name: str
    summary: str
    answer: Any = None
    status: int = 200
    query: Any = None
    body: Any = None
    kind: Kind = Kind.DOCUMENT
    faults: tuple[Fault, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))


ANYWHERE: Final = (Fault.BAD_REQUEST, Fault.PEER_REFUSED, Fault.CROSS_ORIGIN, Fault.INTERNAL)
WITH_BODY: Final = (Fault.UNKNOWN_FIELD, Fault.INVALID_FIELD, Fault.TOO_LARGE, Fault.MEDIA_TYPE)
WITH_QUERY: Final = (Fault.UNKNOWN_FIELD, Fault.INVALID_FIELD)
_LAUNCH: Final = (
    Fault.BAD_CALL,
    Fault.BAD_WORKSPACE,
    Fault.FULL_ACCESS_OFF,
    Fault.TOO_MANY,
    Fault.NOT_LAUNCHED,
)
_ONE: Final = (Fault.UNKNOWN_ID,)
_IN_ONE: Final = (Fault.UNKNOWN_ID, Fault.SESSION_OVER, Fault.NOT_LAUNCHED)


def _get(path: str, name: str, summary: str, answer: Any, **rest: Any) -> Route:
    return Route(method="GET", path=path, name=name, summary=summary, answer=answer, **rest)


def _post(path: str, name: str, summary: str, answer: Any, **rest: Any) -> Route:
    return Route(method="POST", path=path, name=name, summary=summary, answer=answer, **rest)


def _delete(path: str, name: str, summary: str, answer: Any, **rest: Any) -> Route:
    return Route(method="DELETE", path=path, name=name, summary=summary, answer=answer, **rest)


ROUTES: Final = (
    _get("/v1/health", "show_health", "Whether the runner serves, and by what it bounds sessions", schema.Health),
    _post(
        "/v1/runs",
        "run",
        "Run a command in a sandbox of its own; closing the connection ends it",
        schema.RunEvent,
        body=schema.StartRun,
        kind=Kind.EVENTS,
        faults=_LAUNCH,
    ),
    _post(
        "/v1/sessions",
        "open_session",
        "Open a sandbox for several calls",
        schema.SessionState,
        body=schema.OpenSession,
        status=201,
        faults=_LAUNCH,
    ),
    _get("/v1/sessions", "list_sessions", "The open sessions", schema.SessionList),
    _get("/v1/sessions/{id}", "show_session", "One session", schema.SessionState, faults=_ONE),
    _delete("/v1/sessions/{id}", "close_session", "End everything in a session", schema.SessionState, faults=_ONE),
    _post(
        "/v1/sessions/{id}/runs",
        "run_in_session",
        "Run a command in a session; closing the connection ends it and all that it started",
        schema.RunEvent,
        body=schema.SessionRun,
        kind=Kind.EVENTS,
        faults=(*_IN_ONE, Fault.BAD_CALL),
    ),
    _post(
        "/v1/jobs",
        "start_job",
        "Start a command in the background",
        schema.JobState,
        body=schema.StartJob,
        status=201,
        faults=_LAUNCH,
    ),
    _get("/v1/jobs", "list_jobs", "All jobs", schema.JobList),
    _get("/v1/jobs/{id}", "show_job", "One job", schema.JobState, faults=_ONE),
    _get(
        "/v1/jobs/{id}/logs",
        "read_logs",
        "What a job wrote, with `follow` until it is over",
        schema.LogEvent,
        query=schema.LogsQuery,
        kind=Kind.EVENTS,
        faults=_ONE,
    ),
    _get(
        "/v1/jobs/{id}/wait",
        "wait_job",
        "Wait until a job is over or the time is up",
        schema.JobState,
        query=schema.WaitQuery,
        faults=_ONE,
    ),
    _post("/v1/jobs/{id}/stop", "stop_job", "End everything of a job", schema.JobState, faults=_ONE),
    _delete("/v1/jobs/{id}", "remove_job", "Forget a job that is over", schema.JobState, faults=(*_ONE, Fault.BUSY)),
    _post(
        "/v1/terminals",
        "open_terminal",
        "Open a terminal",
        schema.TerminalState,
        body=schema.OpenTerminal,
        status=201,
        faults=_LAUNCH,
    ),
    _get("/v1/terminals", "list_terminals", "The terminals", schema.TerminalList),
    _get("/v1/terminals/{id}", "show_terminal", "One terminal", schema.TerminalState, faults=_ONE),
    _post(
        "/v1/terminals/{id}/send",
        "send_to_terminal",
        "Paste text and press keys",
        schema.TerminalState,
        body=schema.SendToTerminal,
        faults=_IN_ONE,
    ),
    _get(
        "/v1/terminals/{id}/screen",
        "read_terminal",
        "What it shows, with `scrollback` all that is kept",
        schema.Screen,
        query=schema.ScreenQuery,
        faults=_IN_ONE,
    ),
    _post(
        "/v1/terminals/{id}/run",
        "run_in_terminal",
        "Have its shell run a command line, and wait for the end",
        schema.TerminalResult,
        body=schema.RunInTerminal,
        faults=(*_IN_ONE, Fault.BUSY),
    ),
    _post(
        "/v1/terminals/{id}/resize",
        "resize_terminal",
        "Change its size",
        schema.TerminalState,
        body=schema.ResizeTerminal,
        faults=_IN_ONE,
    ),
    _get(
        "/v1/terminals/{id}/attach",
        "attach_terminal",
        "A person's terminal on it: binary frames are what is typed and shown, a text frame is a new size",
        None,
        query=schema.AttachQuery,
        kind=Kind.SOCKET,
        status=101,
        faults=_IN_ONE,
    ),
    _delete("/v1/terminals/{id}", "close_terminal", "End everything in a terminal", schema.TerminalState, faults=_ONE),
    _get("/v1/mode", "show_mode", "Whether full access may be asked for", schema.ModeState),
    Route(
        method="PUT",
        path="/v1/mode",
        name="allow_full_access",
        summary="Allow full access until it is switched off or the runner ends",
        answer=schema.ModeState,
        body=schema.SwitchMode,
        faults=(Fault.WRONG_CONFIRMATION, Fault.NOT_ADMINISTRATOR),
    ),
    _delete("/v1/mode", "forbid_full_access", "Switch full access off; running sessions keep it", schema.ModeState),
    _post(
        "/v1/workspaces/check",
        "check_workspace",
        "Judge a directory, and remember it as a user's choice",
        schema.WorkspaceState,
        body=schema.WorkspaceAsked,
        faults=(Fault.BAD_WORKSPACE,),
    ),
    _post(
        "/v1/workspaces",
        "create_workspace",
        "Make a folder under the managed root",
        schema.WorkspaceState,
        body=schema.NewWorkspace,
        status=201,
        faults=(Fault.BAD_WORKSPACE,),
    ),
    _get(
        "/v1/workspaces",
        "list_workspaces",
        "The folders under the managed root",
        schema.WorkspaceList,
        faults=(Fault.BAD_WORKSPACE,),
    ),
    _get("/v1/openapi.json", "show_openapi", "This API as an OpenAPI document", dict[str, Any]),
)


def faults_of(route: Route) -> tuple[Fault, ...]:
    """Everything that an operation can be refused with."""
    sent = (*(WITH_BODY if route.body else ()), *(WITH_QUERY if route.query else ()))
    return tuple(dict.fromkeys((*ANYWHERE, *sent, *route.faults)))
