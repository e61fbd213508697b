"""The documents of the control API as value types: what may be sent, what is answered. Pure.

The server decodes and encodes with these, the client too, and the OpenAPI document is generated from them. Everything
that is sent in is closed: an unknown field is refused.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from broker.api.faults import ProblemDocument
from broker.control.messages import Id

MAX_PAGE, DEFAULT_PAGE = 1000, 100
MAX_ALLOW = 1000
_BIG = 2**53 - 1  # what a JSON reader with doubles keeps exact (RFC 8259 §6)

type Count = Annotated[int, Meta(ge=0, le=_BIG)]
type Bound = Annotated[int, Meta(ge=1, le=_BIG)]
type Time = Annotated[datetime, Meta(tz=True)]
type Seconds = Annotated[float, Meta(gt=0, le=10**10)]


class Sent(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of what a client sends."""


class Answer(Struct, frozen=True, kw_only=True):
    """Base of what the broker answers."""


class Budgets(Sent, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Upper bounds over a grant's whole life; without a value a thing is not bounded.

    `uses` are sandboxes that may attach with the grant, `rate` is requests per second.
    """

    uses: Bound | None = None
    requests: Bound | None = None
    connections: Bound | None = None
    bytes_up: Bound | None = None
    bytes_down: Bound | None = None
    rate: Annotated[float, Meta(gt=0, le=10**6)] | None = None


class GrantRule(Sent, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """One rule of a grant: a rule of the policy file without the keys that only the server's owner may use."""

    name: str
    action: Literal["allow", "deny"]
    hosts: Annotated[list[str], Meta(min_length=1)]
    ports: list[Annotated[int, Meta(ge=1, le=65535)]] | UnsetType = UNSET
    methods: list[str] | UnsetType = UNSET
    paths: list[str] | UnsetType = UNSET
    query: list[str] | Literal["none"] | UnsetType = UNSET
    tls: Literal["inspect", "splice"] | UnsetType = UNSET
    addresses: list[str] | UnsetType = UNSET
    websocket: bool | UnsetType = UNSET
    plain_http: bool | UnsetType = UNSET


# Read by the policy's own reader, whose problems say where, what was expected and how to spell it.
_LIKE_A_RULE = Meta(extra_json_schema={"$ref": "#/components/schemas/GrantRule"})
type RuleList = list[Annotated[dict[str, Any], _LIKE_A_RULE]]


class IssueGrant(Sent, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """A grant to issue: `rules`, or `allow` for what the policy allows of some hosts; and its end, exactly one way."""

    allow: Annotated[list[str], Meta(min_length=1, max_length=MAX_ALLOW)] | None = None
    rules: RuleList | None = None
    call: Id | None = None
    ttl_seconds: Seconds | None = None
    expires_at: Time | None = None
    budgets: Budgets = Budgets()


class GrantState(StrEnum):
    """Whether a grant can be used, and if not, why."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"
    EXHAUSTED = "exhausted"


class Usage(Answer, frozen=True, kw_only=True):
    """What was used of a grant so far. After a broker was killed, at most a reservation more than what really was."""

    uses: Count
    requests: Count
    connections: Count
    bytes_up: Count
    bytes_down: Count


class Grant(Answer, frozen=True, kw_only=True):
    """One issued grant. `sessions` are attached or may attach again, `policy` is the version it was checked against."""

    id: str
    call: str
    state: GrantState
    rules: RuleList
    budgets: Budgets
    usage: Usage
    issued_at: Time
    expires_at: Time
    revoked_at: Time | None
    issued_by: str
    policy: str
    sessions: list[str]


class GrantPage(Answer, frozen=True, kw_only=True):
    """Some grants, oldest first. `next` is to be passed as `after` for those behind; null at the end."""

    grants: list[Grant]
    next: str | None


class GrantQuery(Sent, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which grants to list."""

    call: Id | None = None
    state: GrantState | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE
    after: Annotated[str, Meta(pattern=r"^[0-9]{1,18}(?![\s\S])")] | None = None


class Degradation(Answer, frozen=True, kw_only=True):
    """One thing that is not as it should be: a stable code and a sentence."""

    code: str
    detail: str


class Worker(Answer, frozen=True, kw_only=True):
    """One of the broker's processes that serve sessions. `log`: the id of its part of the log."""

    pid: int
    log: str
    ready: bool
    sessions: Count


class Health(Answer, frozen=True, kw_only=True):
    """`ready`: attached sessions are served. `degraded` says what an operator should look at."""

    ready: bool
    degraded: list[Degradation]
    version: str
    pid: int
    started_at: Time
    user_namespace: bool
    policy: str
    egress: bool
    workers: list[Worker]


class PolicyProblem(Answer, frozen=True, kw_only=True):
    """One finding about a policy or a rule; `line` is 0 where there is no line."""

    severity: str
    line: int
    where: str
    found: str
    expected: str
    suggestion: str | None


class PolicyDocument(Answer, frozen=True, kw_only=True):
    """The policy in force. `version` is the digest that every record carries."""

    version: str
    source: str
    enabled: bool
    mode: str
    require_grant: bool
    rules: int
    notes: list[PolicyProblem]
    loaded_at: Time


class Egress(Answer, frozen=True, kw_only=True):
    """The flag of the policy file, the operator's switch, and what holds: both."""

    enabled: bool
    policy_enabled: bool
    switched_on: bool


class SwitchEgress(Sent, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Turn the operator's switch. Off closes every listener and tunnel at once, and stays so over a restart."""

    enabled: bool


class Session(Answer, frozen=True, kw_only=True):
    """One attached session."""

    id: str
    call: str
    grant: str | None
    attached_at: Time
    connections: Count
    allowed: Count
    denied: Count
    failures: Count
    name_queries: Count


class SessionList(Answer, frozen=True, kw_only=True):
    """The attached sessions."""

    sessions: list[Session]


class Explain(Sent, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """A request to be judged without being made. Method CONNECT asks about the connection alone; wss: a WebSocket."""

    url: Annotated[str, Meta(max_length=65536)]
    method: Annotated[str, Meta(max_length=64)] = "GET"
    grant: Id | None = None


class Explanation(Answer, frozen=True, kw_only=True):
    """What would be decided now. `turn` is what would make it the other way round."""

    verdict: Literal["allow", "deny"]
    reason: str
    rule: str | None
    would: str | None
    policy: str
    sentence: str
    turn: str


class Counters(Answer, frozen=True, kw_only=True):
    """Totals since the broker started, and what is open now."""

    sessions: Count
    connections: Count
    attached: Count
    allowed: Count
    denied: Count
    failures: Count
    peers_refused: Count
    grants_open: Count


class Problem(ProblemDocument, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document. `uncovered` is what the policy lacks, `problems` what is wrong in a policy or a rule."""

    uncovered: list[str] | None = None
    problems: list[PolicyProblem] | None = None
