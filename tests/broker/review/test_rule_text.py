"""Text that goes into a policy file: whatever it is, it ends neither a string nor a comment."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.document import parse_policy
from broker.policy.rules import Policy, Rule
from broker.review.rule_text import comment, format_rule, quoted
from tests.broker.policy.asking import policy_of
from tests.broker.review.requests import policies

TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)


@given(TEXTS)
def test_a_string_is_read_back(text: str) -> None:
    wanted = "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)
    assert tomllib.loads(f"a = {quoted(text)}") == {"a": wanted}
    assert quoted(text).isprintable()


@given(TEXTS)
def test_a_comment_is_one_line_that_says_nothing_to_a_parser(text: str) -> None:
    line = comment(text)
    assert line.startswith("#")
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert tomllib.loads(line + "a = 1") == {"a": 1}


@given(policies())
def test_a_rule_is_read_back(policy: Policy) -> None:
    for rule in policy.rules:
        if rule.action.value == "allow" and rule.enforce:
            assert read_back(rule) == rule


def read_back(rule: Rule) -> Rule:
    (one,) = parse_policy(f"version = 1\n{format_rule(rule)}", source="test").rules
    return one


@pytest.mark.parametrize(
    "more",
    [
        'query = "none"',
        "plain_http = true\nports = [443, 80]",
        'addresses = ["10.0.0.0/8", "fd00::/8"]\nwebsocket = true',
        'upstream_cacert = "/etc/a\\"b.pem"\nupstream_certificate = "/c"\nupstream_key = "/k"',
        f"paths = [{', '.join(quoted(f'/a-rather-long-path/{n}') for n in range(20))}]",
    ],
)
def test_every_key_is_read_back(more: str) -> None:
    (rule,) = policy_of(f'[[rule]]\nname = "r"\naction = "allow"\nhosts = ["a.example.com"]\n{more}').rules
    assert read_back(rule) == rule
