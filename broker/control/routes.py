"""The routes of the control API: one table, from which the server routes and the OpenAPI document is written. Pure."""

from typing import Any, Final

from broker.api.routes import delete, get, post, put
from broker.control import schema
from broker.control.faults import Fault

ROUTES: Final = (
    get("/v1/health", "show_health", "Whether the broker serves, and what is wrong with it", schema.Health),
    get("/v1/policy", "show_policy", "The policy in force", schema.PolicyDocument),
    post(
        "/v1/policy/reload",
        "reload_policy",
        "Read the policy file again; a broken one leaves the policy in force as it is",
        schema.PolicyDocument,
        faults=(Fault.POLICY_REFUSED,),
    ),
    get("/v1/egress", "show_egress", "Whether egress is on", schema.Egress),
    put(
        "/v1/egress",
        "switch_egress",
        "Turn the operator's switch; off closes every listener and tunnel at once",
        schema.Egress,
        body=schema.SwitchEgress,
    ),
    post(
        "/v1/grants",
        "issue_grant",
        "Issue a grant, covered by the policy",
        schema.Grant,
        body=schema.IssueGrant,
        status=201,
        faults=(Fault.INVALID_RULES, Fault.NOT_COVERED, Fault.TOO_MANY_GRANTS, Fault.RECORD_UNAVAILABLE),
    ),
    get("/v1/grants", "list_grants", "List grants, oldest first", schema.GrantPage, query=schema.GrantQuery),
    get("/v1/grants/{id}", "show_grant", "Show a grant with its use", schema.Grant, faults=(Fault.UNKNOWN_GRANT,)),
    delete(
        "/v1/grants/{id}",
        "revoke_grant",
        "Revoke a grant; its tunnels are cut",
        schema.Grant,
        faults=(Fault.UNKNOWN_GRANT, Fault.RECORD_UNAVAILABLE),
    ),
    get("/v1/sessions", "list_sessions", "List the attached sessions", schema.SessionList),
    get(
        "/v1/sessions/{id}", "show_session", "Show an attached session", schema.Session, faults=(Fault.UNKNOWN_SESSION,)
    ),
    delete(
        "/v1/sessions/{id}",
        "cut_session",
        "Cut a session from the network for good",
        schema.Session,
        faults=(Fault.UNKNOWN_SESSION,),
    ),
    post(
        "/v1/explain",
        "explain",
        "Say what would be decided on a request, by which rule, and what would turn it",
        schema.Explanation,
        body=schema.Explain,
        faults=(Fault.UNKNOWN_GRANT,),
    ),
    get("/v1/counters", "show_counters", "Totals since the start, and what is open now", schema.Counters),
    get("/v1/openapi.json", "show_openapi", "This API as an OpenAPI document", dict[str, Any]),
)
