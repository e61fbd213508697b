"""What a request for a grant means under a policy, where it asks for very much."""

import pytest

from broker.api.faults import ApiError
from broker.control.grant_request import rules_of
from broker.control.schema import IssueGrant
from broker.policy.document import parse_policy
from broker.policy.grant_rules import MAX_RULES

RULE = '[[rule]]\nname = "r{0}"\naction = "allow"\nhosts = ["api.example.com"]\npaths = ["/{0}/**"]\n'


def test_allow_takes_as_many_rules_as_a_grant_may_have_and_no_more() -> None:
    most = parse_policy("version = 1\n" + "".join(map(RULE.format, range(MAX_RULES))), source="test")
    _, rules = rules_of(IssueGrant(allow=["api.example.com:443"], ttl_seconds=5.0), most)
    assert len(rules) == MAX_RULES
    with pytest.raises(ApiError, match=f"more than {MAX_RULES} rules") as refused:
        rules_of(IssueGrant(allow=["api.example.com:443"] * 2, ttl_seconds=5.0), most)
    assert refused.value.field == "allow[1]"
