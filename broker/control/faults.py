"""What the control API refuses, and with which status: one closed table, and the exception that carries an entry."""

from collections.abc import Sequence
from enum import Enum

from broker.control.schema import PolicyProblem, Problem
from broker.policy.problems import Problem as Finding


class Fault(Enum):
    """A stable code, its status (RFC 9110 §15) and its title."""

    BAD_REQUEST = ("bad_request", 400, "The request cannot be read.")
    UNKNOWN_FIELD = ("unknown_field", 400, "The request has a field that does not exist.")
    INVALID_FIELD = ("invalid_field", 400, "A field of the request has a value that is not possible.")
    INVALID_RULES = ("invalid_rules", 400, "The rules of the grant cannot be read.")
    PEER_REFUSED = ("peer_refused", 403, "This user may not use this socket.")
    CROSS_ORIGIN = ("cross_origin", 403, "This API is not for browsers.")
    NOT_COVERED = ("not_covered", 403, "The policy does not allow all of what was asked for.")
    UNKNOWN_PATH = ("unknown_path", 404, "There is nothing at this path.")
    UNKNOWN_GRANT = ("unknown_grant", 404, "There is no such grant.")
    UNKNOWN_SESSION = ("unknown_session", 404, "There is no such session.")
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, "This path does not have this method.")
    TOO_MANY_GRANTS = ("too_many_grants", 409, "Too many grants are in force.")
    TOO_LARGE = ("too_large", 413, "The request is too large.")
    MEDIA_TYPE = ("unsupported_media_type", 415, "The body must be JSON.")
    POLICY_REFUSED = ("policy_refused", 422, "The policy file is refused; the policy in force stays.")
    INTERNAL = ("internal_error", 500, "An error of the broker itself.")
    RECORD_UNAVAILABLE = ("record_unavailable", 503, "It cannot be put on record, so it was not done.")

    def __init__(self, code: str, status: int, title: str) -> None:
        self.code = code
        self.status = status
        self.title = title


class ApiError(Exception):
    """A request that is refused. `field` names the part of it that is wrong; `findings` are the policy's own words."""

    def __init__(
        self,
        fault: Fault,
        detail: str,
        *,
        field: str | None = None,
        uncovered: Sequence[str] | None = None,
        findings: Sequence[Finding] | None = None,
    ) -> None:
        super().__init__(f"{fault.code}: {detail}")
        self.fault = fault
        self.detail = detail
        self.field = field
        self.uncovered = uncovered
        self.findings = findings

    def document(self, request_id: str) -> Problem:
        """The problem document."""
        fault = self.fault
        return Problem(
            type=f"urn:wicketgate:problem:{fault.code}",
            title=fault.title,
            status=fault.status,
            detail=self.detail,
            code=fault.code,
            request_id=request_id,
            field=self.field,
            uncovered=None if self.uncovered is None else list(self.uncovered),
            problems=None if self.findings is None else [finding_document(one) for one in self.findings],
        )


def finding_document(finding: Finding) -> PolicyProblem:
    """A problem of a policy or a rule, as the API shows it."""
    return PolicyProblem(
        severity=finding.severity.value,
        line=finding.line,
        where=finding.where,
        found=finding.found,
        expected=finding.expected,
        suggestion=finding.suggestion,
    )
