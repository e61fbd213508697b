"""What is typed of a run's rules, and what it means."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from broker.policy.allows import policy_from_allows
from wicketgate.rules import RulesError, Words, understand, words_of


def test_the_words_are_those_that_were_typed() -> None:
    typed = {"command": ("true",), "allow": ("a.example",), "private": ("10.0.0.0/8",), "timeout": 3.0}
    assert words_of(typed) == Words(allow=("a.example",), private=("10.0.0.0/8",))
    assert words_of({"policy": "rules.toml"}) == words_of({"policy": Path("rules.toml")})


def test_what_is_allowed_is_the_policy() -> None:
    rules = understand(Words(allow=("a.example", "b.example:8443"), private=("10.0.0.0/8",)))
    assert rules.policy == policy_from_allows(("a.example", "b.example:8443"), ("10.0.0.0/8",))
    assert rules.fixed == {}


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        'version = 1\n[egress]\nenabled = true\n[[rule]]\nname = "api"\naction = "allow"\nhosts = ["a.example"]\n'
    )
    file.chmod(0o600)
    assert [rule.name for rule in understand(Words(policy=file)).policy.rules] == ["api"]


def test_fixed_addresses_of_one_authority_are_together() -> None:
    resolve = ("a.example:443:192.0.2.7", "a.example:443:[2001:db8::7]", "a.example:80:192.0.2.8")
    fixed = understand(Words(allow=("a.example",), resolve=resolve)).fixed
    assert {authority.port: addresses for authority, addresses in fixed.items()} == {
        443: (ip_address("192.0.2.7"), ip_address("2001:db8::7")),
        80: (ip_address("192.0.2.8"),),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (Words(allow=("a..b",)), "empty label"),
        (Words(allow=("a.example",), private=("10.0.0",)), "--private"),
        (Words(policy=Path("/nonexistent/policy.toml")), "nonexistent"),
        (Words(allow=("a.example",), resolve=("a.example:443:127.1",)), "HOST:PORT:ADDR"),
        (Words(allow=("a.example",), resolve=("a..b:443:192.0.2.1",)), "--resolve"),
    ],
)
def test_what_means_nothing_is_said(words: Words, said: str) -> None:
    with pytest.raises(RulesError, match=said):
        understand(words)
