"""What the control API refuses beside what any request can meet, and the policy's own words in a problem document."""

from collections.abc import Sequence
from typing import Final

from broker.api.faults import AnyFault, ApiError, FaultKind
from broker.control.schema import PolicyProblem, Problem
from broker.policy.problems import Problem as Finding


class Fault(AnyFault):
    """The table of the control API's faults."""

    INVALID_RULES: Final = FaultKind("invalid_rules", 400, "The rules of the grant cannot be read.")
    NOT_COVERED: Final = FaultKind("not_covered", 403, "The policy does not allow all of what was asked for.")
    UNKNOWN_GRANT: Final = FaultKind("unknown_grant", 404, "There is no such grant.")
    UNKNOWN_SESSION: Final = FaultKind("unknown_session", 404, "There is no such session.")
    TOO_MANY_GRANTS: Final = FaultKind("too_many_grants", 409, "Too many grants are in force.")
    POLICY_REFUSED: Final = FaultKind("policy_refused", 422, "The policy file is refused; the policy in force stays.")
    NOT_TAKEN: Final = FaultKind("not_taken", 503, "The broker did not take the connection.")
    RECORD_UNAVAILABLE: Final = FaultKind("record_unavailable", 503, "It cannot be put on record, so it was not done.")


class RulesError(ApiError):
    """A request that is refused for its rules: what the policy does not cover, or what cannot be read in them."""

    def __init__(
        self,
        fault: FaultKind,
        detail: str,
        *,
        field: str | None = None,
        uncovered: Sequence[str] | None = None,
        findings: Sequence[Finding] | None = None,
    ) -> None:
        super().__init__(fault, detail, field=field)
        self.uncovered = None if uncovered is None else list(uncovered)
        self.problems = None if findings is None else [finding_document(one) for one in findings]

    def document(self, request_id: str) -> Problem:
        """The problem document."""
        return self._document(Problem, request_id, uncovered=self.uncovered, problems=self.problems)


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
