"""The routes of the runner's API: one table, from which the server routes and the OpenAPI document is written. Pure."""

from typing import Any, Final

from broker.api.routes import Kind, delete, get, post, put
from wicketgate.runner import schema
from wicketgate.runner.faults import Fault

_LAUNCH: Final = (
    Fault.BAD_CALL,
    Fault.BAD_WORKSPACE,
    Fault.FULL_ACCESS_OFF,
    Fault.TOO_MANY,
    Fault.EXHAUSTED,
    Fault.NOT_LAUNCHED,
)
_ONE: Final = (Fault.UNKNOWN_ID,)
_IN_ONE: Final = (Fault.UNKNOWN_ID, Fault.SESSION_OVER, Fault.EXHAUSTED, Fault.NOT_LAUNCHED)

ROUTES: Final = (
    get("/v1/health", "show_health", "Whether the runner serves, and by what it bounds sessions", schema.Health),
    post(
        "/v1/runs",
        "run",
        "Run a command in a sandbox of its own; closing the connection ends it",
        schema.RunEvent,
        body=schema.StartRun,
        kind=Kind.EVENTS,
        faults=_LAUNCH,
    ),
    post(
        "/v1/sessions",
        "open_session",
        "Open a sandbox for several calls",
        schema.SessionState,
        body=schema.OpenSession,
        status=201,
        faults=_LAUNCH,
    ),
    get("/v1/sessions", "list_sessions", "The open sessions", schema.SessionList),
    get("/v1/sessions/{identity}", "show_session", "One session", schema.SessionState, faults=_ONE),
    delete("/v1/sessions/{identity}", "close_session", "End everything in a session", schema.SessionState, faults=_ONE),
    post(
        "/v1/sessions/{identity}/runs",
        "run_in_session",
        "Run a command in a session; closing the connection ends it and all that it started",
        schema.RunEvent,
        body=schema.SessionRun,
        kind=Kind.EVENTS,
        faults=(*_IN_ONE, Fault.BAD_CALL),
    ),
    post(
        "/v1/jobs",
        "start_job",
        "Start a command in the background",
        schema.JobState,
        body=schema.StartJob,
        status=201,
        faults=_LAUNCH,
    ),
    get("/v1/jobs", "list_jobs", "All jobs", schema.JobList),
    get("/v1/jobs/{identity}", "show_job", "One job", schema.JobState, faults=_ONE),
    get(
        "/v1/jobs/{identity}/logs",
        "read_logs",
        "What a job wrote, with `follow` until it is over",
        schema.LogEvent,
        query=schema.LogsQuery,
        kind=Kind.EVENTS,
        faults=_ONE,
    ),
    get(
        "/v1/jobs/{identity}/wait",
        "wait_job",
        "Wait until a job is over or the time is up",
        schema.JobState,
        query=schema.WaitQuery,
        faults=_ONE,
    ),
    post("/v1/jobs/{identity}/stop", "stop_job", "End everything of a job", schema.JobState, faults=_ONE),
    delete(
        "/v1/jobs/{identity}", "remove_job", "Forget a job that is over", schema.JobState, faults=(*_ONE, Fault.BUSY)
    ),
    post(
        "/v1/terminals",
        "open_terminal",
        "Open a terminal",
        schema.TerminalState,
        body=schema.OpenTerminal,
        status=201,
        faults=_LAUNCH,
    ),
    get("/v1/terminals", "list_terminals", "The terminals", schema.TerminalList),
    get("/v1/terminals/{identity}", "show_terminal", "One terminal", schema.TerminalState, faults=_ONE),
    post(
        "/v1/terminals/{identity}/send",
        "send_to_terminal",
        "Paste text and press keys",
        schema.TerminalState,
        body=schema.SendToTerminal,
        faults=_IN_ONE,
    ),
    get(
        "/v1/terminals/{identity}/screen",
        "read_terminal",
        "What it shows, with `scrollback` all that is kept",
        schema.Screen,
        query=schema.ScreenQuery,
        faults=_IN_ONE,
    ),
    post(
        "/v1/terminals/{identity}/run",
        "run_in_terminal",
        "Have its shell run a command line, and wait for the end",
        schema.TerminalResult,
        body=schema.RunInTerminal,
        faults=(*_IN_ONE, Fault.BUSY),
    ),
    post(
        "/v1/terminals/{identity}/resize",
        "resize_terminal",
        "Change its size",
        schema.TerminalState,
        body=schema.ResizeTerminal,
        faults=_IN_ONE,
    ),
    get(
        "/v1/terminals/{identity}/attach",
        "attach_terminal",
        "A person's terminal on it: binary frames are what is typed and shown, a text frame is a new size",
        None,
        query=schema.AttachQuery,
        kind=Kind.SOCKET,
        status=101,
        faults=_IN_ONE,
    ),
    delete(
        "/v1/terminals/{identity}", "close_terminal", "End everything in a terminal", schema.TerminalState, faults=_ONE
    ),
    get("/v1/mode", "show_mode", "Whether full access may be asked for", schema.ModeState),
    put(
        "/v1/mode",
        "allow_full_access",
        "Allow full access until it is switched off or the runner ends",
        schema.ModeState,
        body=schema.SwitchMode,
        faults=(Fault.WRONG_CONFIRMATION, Fault.NOT_ADMINISTRATOR),
    ),
    delete("/v1/mode", "forbid_full_access", "Switch full access off; running sessions keep it", schema.ModeState),
    post(
        "/v1/workspaces/check",
        "check_workspace",
        "Judge a directory, and remember it as a user's choice",
        schema.WorkspaceState,
        body=schema.WorkspaceAsked,
        faults=(Fault.BAD_WORKSPACE,),
    ),
    post(
        "/v1/workspaces",
        "create_workspace",
        "Make a folder under the managed root",
        schema.WorkspaceState,
        body=schema.NewWorkspace,
        status=201,
        faults=(Fault.BAD_WORKSPACE,),
    ),
    get(
        "/v1/workspaces",
        "list_workspaces",
        "The folders under the managed root",
        schema.WorkspaceList,
        faults=(Fault.BAD_WORKSPACE,),
    ),
    get("/v1/openapi.json", "show_openapi", "This API as an OpenAPI document", dict[str, Any]),
)
