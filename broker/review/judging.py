"""A request judged as the broker would: the connection first, because its rule chooses the plane."""

from broker.policy.decide import Denied, Verdict, decide
from broker.policy.facts import Facts, Stage
from broker.policy.grants import Grant
from broker.policy.rule import TlsMode
from broker.policy.rules import Policy
from broker.review.asked import opening_of


def judge(facts: Facts, policy: Policy, grant: Grant | None = None, now: float = 0.0) -> Verdict:
    """`decide`, of the connection alone where that is denied or spliced: then no request is judged."""
    if facts.stage is Stage.REQUEST and facts.scheme == "https":
        opening = decide(opening_of(facts), policy, grant, now)
        if isinstance(opening, Denied) or opening.rule.tls is TlsMode.SPLICE:
            return opening
    return decide(facts, policy, grant, now)
