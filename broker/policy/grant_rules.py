"""The rules of a grant, from the parsed JSON of the control API: the policy file's rule keys without the server's own.

Reads and refuses; whether the policy covers the rules is `grants.uncovered`.
"""

from typing import Final

from broker.policy.problems import Mistake, PolicyError, Problem, quote
from broker.policy.reading import Findings
from broker.policy.rules import Rule
from broker.policy.schema import RULE_KEYS, UPSTREAM_KEYS, read_rule, refuse_duplicates

# A grant can neither widen by observing, nor stand over strangers' names, nor read the server's configuration.
# What only the server's own policy says.
_SERVERS: Final = frozenset({"preset", "enforce", "allow_public_suffix", *UPSTREAM_KEYS})
GRANT_RULE_KEYS: Final = tuple(key for key in RULE_KEYS if key not in _SERVERS)
MAX_RULES: Final = 1000
MAX_ENTRIES: Final = 10_000  # of all lists of all rules: each is compared with the policy while the broker waits


def parse_grant_rules(document: object, *, source: str = "rules") -> tuple[Rule, ...]:
    """Return the rules of a grant. `document` is a list of objects. Raises `PolicyError` with every problem at once."""
    if not isinstance(document, list) or not document:
        raise PolicyError(
            source, [Problem(found=f"rules is {quote(document)}", expected="a list of at least one rule")]
        )
    if len(document) > MAX_RULES:
        raise PolicyError(source, [Problem(found=f"{len(document)} rules", expected=f"at most {MAX_RULES}")])
    entries = sum(
        len(value) for item in document if isinstance(item, dict) for value in item.values() if isinstance(value, list)
    )
    if entries > MAX_ENTRIES:
        found = f"{entries} hosts, ports, methods, paths, parameters and addresses"
        raise PolicyError(source, [Problem(found=found, expected=f"at most {MAX_ENTRIES} in a grant")])
    findings = Findings()
    texts = []
    for number, item in enumerate(document, 1):
        if isinstance(item, dict):
            texts.append(read_rule(item, number, findings, (), GRANT_RULE_KEYS))
        else:
            findings.mistake(f"rule {number}", (), Mistake(f"{quote(item)}", "an object with the keys of a rule"))
    refuse_duplicates(texts, findings)
    if findings.errors:
        raise PolicyError(source, findings.errors)
    return tuple(text.rule for text in texts if text.rule is not None)
