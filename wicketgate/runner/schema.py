"""The documents of the runner's API as value types. Pure. The server, the client and the OpenAPI document use the same.

A request has two halves. `Call` holds what a model may have written; `Authority` only what the server decides. They are
two closed types in two places: no field of the one is a field of the other, and an unknown field is refused.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from broker.api.faults import ProblemDocument
from broker.control.messages import Id

MAX_SCRIPT = 120 * 1024  # bytes of one argument that Linux takes are 131,072 (MAX_ARG_STRLEN, execve(2))
MAX_ARGUMENTS = 1000
MAX_STDIN = 8 << 20
MAX_SECONDS = 366 * 86_400
_BIG = 2**53 - 1  # what a JSON reader with doubles keeps exact (RFC 8259 §6)

type Count = Annotated[int, Meta(ge=0, le=_BIG)]
type Bound = Annotated[int, Meta(ge=1, le=_BIG)]
type Time = Annotated[datetime, Meta(tz=True)]
type Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
# No NUL: an argument ends there, and what was judged must be what is executed.
type Script = Annotated[str, Meta(min_length=1, max_length=MAX_SCRIPT, pattern=r"^[^\x00]*(?![\s\S])")]
type Argument = Annotated[str, Meta(max_length=MAX_SCRIPT, pattern=r"^[^\x00]*(?![\s\S])")]
type Columns = Annotated[int, Meta(ge=2, le=1000)]
type Rows = Annotated[int, Meta(ge=2, le=1000)]
type Label = Annotated[str, Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*(?![\s\S])")]
# tmux types a name that it does not know letter by letter. No `;`, which parts its commands.
type Key = Annotated[
    str,
    Meta(
        pattern=r"^(?:[CMS]-){0,3}(?:Enter|Escape|Space|B?Tab|BSpace|Up|Down|Left|Right|Home|End|Page(?:Up|Down)"
        r"|[NP]Page|Pg(?:Up|Dn)|Insert|Delete|[ID]C|F(?:[1-9]|1[0-2])|[!-:<-~])(?![\s\S])"
    ),
]
# Relative, without a step up; where links lead inside the sandbox is the sandbox's own matter.
type Directory = Annotated[
    str, Meta(max_length=4096, pattern=r"^(?!/)(?!(?:[^\x00]*/)?\.\.(?:/|(?![\s\S])))[^\x00]*(?![\s\S])")
]


class Sent(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Base of what a client sends."""


class Answer(Struct, frozen=True, kw_only=True):
    """Base of what the runner answers."""


# ---- call: what a model may write -----------------------------------------------------------------------------------


class Call(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to execute: exactly one of `bash` (a script), `python` (a script) and `argv`.

    `timeout` can only shorten what the authority allows. `directory` is relative to the workspace.
    """

    bash: Script | None = None
    python: Script | None = None
    argv: Annotated[list[Argument], Meta(min_length=1, max_length=MAX_ARGUMENTS)] | None = None
    stdin: Annotated[str, Meta(max_length=MAX_STDIN)] = ""
    timeout: Seconds | None = None
    directory: Directory = ""


class TerminalCall(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How large a terminal is, and where its shell begins."""

    columns: Columns = 80
    rows: Rows = 24
    directory: Directory = ""


# ---- authority: what the server decides -----------------------------------------------------------------------------


class LimitsAsked(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of one session, each at most what the runner's configuration says; see the configuration for units."""

    memory_bytes: Bound | None = None
    tasks: Bound | None = None
    cpus: Annotated[float, Meta(gt=0, le=4096)] | None = None
    cpu_seconds: Bound | None = None
    file_bytes: Bound | None = None
    descriptors: Bound | None = None
    output_bytes: Bound | None = None
    tmp_bytes: Bound | None = None


class Authority(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is allowed. Never fill it from a model's words.

    `workspace`: a directory by its path, or `user`: the one that this user chose last; without both the sandbox has
    none. `network` `brokered` may name the broker's `grant`. `call` is the tool call that the broker's log will name.
    """

    workspace: Annotated[str, Meta(max_length=4096)] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    network: Literal["none", "brokered"] = "none"
    grant: Id | None = None
    call: Id | None = None
    timeout: Seconds | None = None
    limits: LimitsAsked = LimitsAsked()
    mode: Literal["sandbox", "full-access"] = "sandbox"


# ---- requests -------------------------------------------------------------------------------------------------------


class StartRun(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command in a sandbox of its own."""

    call: Call
    authority: Authority = Authority()


class StartJob(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command in the background. `name` is for people."""

    call: Call
    authority: Authority = Authority()
    name: Label = ""


class OpenSession(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sandbox for several calls."""

    authority: Authority = Authority()


class SessionRun(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command in a session: it has the session's authority, so there is no other half."""

    call: Call


class OpenTerminal(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A terminal with a shell. `name` is for people: any text, and no two need differ."""

    call: TerminalCall = TerminalCall()
    authority: Authority = Authority()
    name: Label = ""


class SendToTerminal(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`text` as if pasted (no control characters but tab and line end), then `keys` by name, for example `C-c`.

    A key is a character of ASCII or `Enter`, `Escape`, `Space`, `Tab`, `BTab`, `BSpace`, `Up`, `Down`, `Left`, `Right`,
    `Home`, `End`, `PageUp`, `PageDown`, `Insert`, `Delete`, `F1` to `F12`, after any of `C-`, `M-` and `S-`.
    """

    text: Annotated[str, Meta(max_length=1 << 20, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f\x80-\x9f]*(?![\s\S])")] = ""
    keys: Annotated[
        list[Key],
        Meta(max_length=100),
    ] = []


class RunInTerminal(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command line for the terminal's shell; the answer comes when it has ended or its time is up."""

    command: Script
    timeout: Annotated[float, Meta(gt=0, le=86_400)] = 60.0


class ResizeTerminal(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new size."""

    columns: Columns
    rows: Rows


class ScreenQuery(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`scrollback`: everything that is kept, not only the screen. `join`: wrapped lines as one."""

    scrollback: bool = False
    join: bool = False


class LogsQuery(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """From which byte on, and whether to go on until the job is over."""

    offset: Count = 0
    follow: bool = False


class WaitQuery(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long to wait at most."""

    timeout: Annotated[float, Meta(ge=0, le=3600)] = 60.0


class AttachQuery(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The size and the kind (TERM) of the person's terminal."""

    columns: Columns = 80
    rows: Rows = 24
    term: Annotated[str, Meta(max_length=64)] = "xterm-256color"


class SwitchMode(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an administrator types to allow full access until it is switched off or the runner ends."""

    confirm: Annotated[str, Meta(max_length=200)]


class WorkspaceAsked(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A path to judge; with `user`, it is remembered as this user's choice if it may be used."""

    path: Annotated[str, Meta(max_length=8192)]
    user: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class NewWorkspace(Sent, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A folder to make under the managed root; with `user`, it becomes this user's choice."""

    name: Annotated[str, Meta(max_length=256)]
    user: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


# ---- answers --------------------------------------------------------------------------------------------------------


class Started(Answer, tag_field="type", tag="started", frozen=True, kw_only=True):
    """The command has been started."""

    id: str


class Output(Answer, tag_field="type", tag="output", frozen=True, kw_only=True, omit_defaults=True):
    """What was written: `text`, or `base64` where it is no UTF-8. `offset` and `cut_bytes` are for a job's log."""

    stream: Literal["stdout", "stderr", "log"]
    text: str | None = None
    base64: str | None = None
    offset: Count = 0
    cut_bytes: Count = 0


class Ended(Answer, tag_field="type", tag="ended", frozen=True, kw_only=True):
    """How it ended: the last event. `code` 128+n for signal n, 124 for a time-out.

    `dropped_bytes`: output beyond the bound. `set_aside`: what was made harmless in the workspace.
    """

    code: int
    timed_out: bool
    dropped_bytes: Count
    set_aside: list[str]
    session_ended: bool


class LogEnd(Answer, tag_field="type", tag="log_end", frozen=True, kw_only=True):
    """The last event of a log: what the job is now, and the offset to go on from."""

    state: str
    offset: Count


type RunEvent = Started | Output | Ended
type LogEvent = Output | LogEnd


class Rights(Answer, frozen=True, kw_only=True):
    """The authority as it was taken at the start."""

    workspace: str | None
    network: str
    grant: str
    call: str
    timeout: float | None
    limits: dict[str, float | None]
    mode: str


class SessionState(Answer, frozen=True, kw_only=True):
    """An open session. `attached`: whether the broker serves it now; null without a network."""

    id: str
    opened_at: Time
    rights: Rights
    attached: bool | None


class SessionList(Answer, frozen=True, kw_only=True):
    """The open sessions, oldest first."""

    sessions: list[SessionState]


class JobState(Answer, frozen=True, kw_only=True):
    """A job. `lost`: it was running when the runner that had it ended, and everything of it with it."""

    id: str
    name: str
    argv: list[str]
    state: Literal["running", "ended", "timed_out", "stopped", "failed", "lost"]
    code: int | None
    started_at: Time
    ended_at: Time | None
    output_bytes: Count
    dropped_bytes: Count
    set_aside: list[str]
    rights: Rights


class JobList(Answer, frozen=True, kw_only=True):
    """All jobs that are remembered, oldest first."""

    jobs: list[JobState]


class TerminalState(Answer, frozen=True, kw_only=True):
    """A terminal. `state` `ended`: its shell has ended, and everything in it."""

    id: str
    name: str
    state: Literal["open", "ended"]
    columns: int
    rows: int
    opened_at: Time
    attached_clients: Count
    rights: Rights


class TerminalList(Answer, frozen=True, kw_only=True):
    """The terminals, oldest first."""

    terminals: list[TerminalState]


class Screen(Answer, frozen=True, kw_only=True):
    """What a terminal shows, lines from the top. `history`: lines above the screen that are kept."""

    lines: list[str]
    columns: int
    rows: int
    cursor_column: int
    cursor_row: int
    history: Count


class TerminalResult(Answer, frozen=True, kw_only=True):
    """How a command line ended. `code` is null where it did not end by itself.

    `output`: what was shown, without control sequences. `shell_replaced`: only a new shell could end the command.
    """

    code: int | None
    output: str
    timed_out: bool
    dropped_bytes: Count
    shell_replaced: bool


class ModeState(Answer, frozen=True, kw_only=True):
    """Whether full access may be asked for, by whom it was allowed, and the words to type."""

    full_access: bool
    allowed_by: str | None
    allowed_at: Time | None
    confirmation: str


class WorkspaceState(Answer, frozen=True, kw_only=True):
    """A directory that may be used."""

    path: str


class WorkspaceList(Answer, frozen=True, kw_only=True):
    """The folders under the managed root."""

    root: str | None
    names: list[str]


class Health(Answer, frozen=True, kw_only=True):
    """`bounds`: by what memory, tasks and cpu of a session are bounded: v2, v1 or none (then rlimits alone).

    `parked`: sandboxes that are ready for a session; `released`: how many sessions got one so far.
    `refused`: the code with which every launch is refused now, null where sandboxes can be started.
    """

    version: str
    started_at: Time
    sessions: Count
    jobs_running: Count
    terminals: Count
    bounds: str
    broker: str | None
    parked: Count
    released: Count
    refused: str | None


class Problem(ProblemDocument, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document. `reason` is the finer code of a refused workspace."""

    reason: str | None = None
