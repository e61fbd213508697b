"""The routes of the control API: one table, from which the server routes and the OpenAPI document is written. Pure."""

import re
from dataclasses import dataclass
from typing import Any, Final

from broker.control import schema
from broker.control.faults import Fault

PREFIX: Final = "/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation. `name` is the method of `Operations` that does it, and the OpenAPI operation id.

    `query` and `body` are what is sent, `answer` what comes back with `status`; None for nothing. `faults` are those
    that this operation has beside the ones that every request can meet.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: Any = None
    status: int = 200
    query: Any = None
    body: Any = None
    faults: tuple[Fault, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def mutates(self) -> bool:
        """Whether it changes something, and so is put on record."""
        return self.method in {"PUT", "DELETE"} or self.name in {"issue_grant", "reload_policy"}


ANYWHERE: Final = (Fault.BAD_REQUEST, Fault.PEER_REFUSED, Fault.CROSS_ORIGIN, Fault.INTERNAL)
WITH_BODY: Final = (Fault.UNKNOWN_FIELD, Fault.INVALID_FIELD, Fault.TOO_LARGE, Fault.MEDIA_TYPE)
WITH_QUERY: Final = (Fault.UNKNOWN_FIELD, Fault.INVALID_FIELD)

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/health",
        name="show_health",
        summary="Whether the broker serves, and what is wrong with it",
        answer=schema.Health,
    ),
    Route(
        method="GET",
        path="/v1/policy",
        name="show_policy",
        summary="The policy in force",
        answer=schema.PolicyDocument,
    ),
    Route(
        method="POST",
        path="/v1/policy/reload",
        name="reload_policy",
        summary="Read the policy file again; a broken one leaves the policy in force as it is",
        answer=schema.PolicyDocument,
        faults=(Fault.POLICY_REFUSED,),
    ),
    Route(
        method="GET",
        path="/v1/egress",
        name="show_egress",
        summary="Whether egress is on",
        answer=schema.Egress,
    ),
    Route(
        method="PUT",
        path="/v1/egress",
        name="switch_egress",
        summary="Turn the operator's switch; off closes every listener and tunnel at once",
        body=schema.SwitchEgress,
        answer=schema.Egress,
    ),
    Route(
        method="POST",
        path="/v1/grants",
        name="issue_grant",
        summary="Issue a grant, covered by the policy",
        body=schema.IssueGrant,
        answer=schema.Grant,
        status=201,
        faults=(Fault.INVALID_RULES, Fault.NOT_COVERED, Fault.TOO_MANY_GRANTS, Fault.RECORD_UNAVAILABLE),
    ),
    Route(
        method="GET",
        path="/v1/grants",
        name="list_grants",
        summary="List grants, oldest first",
        query=schema.GrantQuery,
        answer=schema.GrantPage,
    ),
    Route(
        method="GET",
        path="/v1/grants/{id}",
        name="show_grant",
        summary="Show a grant with its use",
        answer=schema.Grant,
        faults=(Fault.UNKNOWN_GRANT,),
    ),
    Route(
        method="DELETE",
        path="/v1/grants/{id}",
        name="revoke_grant",
        summary="Revoke a grant; its tunnels are cut",
        answer=schema.Grant,
        faults=(Fault.UNKNOWN_GRANT, Fault.RECORD_UNAVAILABLE),
    ),
    Route(
        method="GET",
        path="/v1/sessions",
        name="list_sessions",
        summary="List the attached sessions",
        answer=schema.SessionList,
    ),
    Route(
        method="GET",
        path="/v1/sessions/{id}",
        name="show_session",
        summary="Show an attached session",
        answer=schema.Session,
        faults=(Fault.UNKNOWN_SESSION,),
    ),
    Route(
        method="DELETE",
        path="/v1/sessions/{id}",
        name="cut_session",
        summary="Cut a session from the network for good",
        answer=schema.Session,
        faults=(Fault.UNKNOWN_SESSION,),
    ),
    Route(
        method="POST",
        path="/v1/explain",
        name="explain",
        summary="Say what would be decided on a request, by which rule, and what would turn it",
        body=schema.Explain,
        answer=schema.Explanation,
        faults=(Fault.UNKNOWN_GRANT,),
    ),
    Route(
        method="GET",
        path="/v1/counters",
        name="show_counters",
        summary="Totals since the start, and what is open now",
        answer=schema.Counters,
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        name="show_openapi",
        summary="This API as an OpenAPI document",
        answer=dict[str, Any],
    ),
)


def faults_of(route: Route) -> tuple[Fault, ...]:
    """Everything that an operation can be refused with."""
    sent = (*(WITH_BODY if route.body else ()), *(WITH_QUERY if route.query else ()))
    return tuple(dict.fromkeys((*ANYWHERE, *sent, *route.faults)))
