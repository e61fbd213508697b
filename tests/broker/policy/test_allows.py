"""`--allow`: what the command line's words become, and how a wrong one is corrected."""

import pytest

from broker.policy.allows import policy_from_allows
from broker.policy.decide import Allowed, decide
from broker.policy.problems import PolicyError
from broker.policy.rules import TlsMode
from tests.broker.policy.asking import ask


@pytest.mark.parametrize(
    ("text", "hosts", "ports"),
    [
        ("api.example.com", "api.example.com", {443, 80}),
        ("API.example.com.:8443", "api.example.com", {8443}),
        ("*.pkg.example", "*.pkg.example", {443, 80}),
        ("?.pkg.example:443", "?.pkg.example", {443}),
        ("bücher.example:443", "xn--bcher-kva.example", {443}),
        ("8.8.4.4", "8.8.4.4", {443, 80}),
        ("8.8.4.4:53", "8.8.4.4", {53}),
        ("[2606:4700::1]:443", "2606:4700::1", {443}),
        ("[2606:4700::1]", "2606:4700::1", {443, 80}),
        ("2606:4700::1", "2606:4700::1", {443, 80}),
    ],
)
def test_spellings(text: str, hosts: str, ports: set[int]) -> None:
    (rule,) = policy_from_allows([text]).rules
    assert [host.text for host in rule.hosts] == [hosts]
    assert rule.ports == ports


def test_the_flag_is_on_and_nothing_else_is_allowed() -> None:
    policy = policy_from_allows(["api.example.com:443"])
    assert isinstance(decide(ask("CONNECT https://api.example.com:443"), policy, None, 0.0), Allowed)
    assert isinstance(decide(ask("GET wss://api.example.com/"), policy, None, 0.0), Allowed)
    for text in (
        "CONNECT https://api.example.com:80",
        "CONNECT https://example.com:443",
        "CONNECT tcp://api.example.com:443",
    ):
        assert not isinstance(decide(ask(text), policy, None, 0.0), Allowed)
    assert policy_from_allows([]).rules == ()


def test_ports_of_one_host_add_up() -> None:
    (rule,) = policy_from_allows(["a.example.com:443", "A.example.com:8443"]).rules
    assert rule.ports == {443, 8443}


def test_private_networks_go_to_every_rule() -> None:
    policy = policy_from_allows(["db.internal:5432", "10.1.2.3:80"], ["10.0.0.0/8", "127.0.0.1"])
    assert {tuple(str(network) for network in rule.addresses) for rule in policy.rules} == {
        ("10.0.0.0/8", "127.0.0.1/32")
    }


def test_splice_shows_no_requests() -> None:
    (rule,) = policy_from_allows(["api.example.com"], tls=TlsMode.SPLICE).rules
    assert (rule.tls, rule.judges_requests) == (TlsMode.SPLICE, False)


def test_the_version_tells_policies_apart() -> None:
    one, same, other = (policy_from_allows([text]).version for text in ("a.example", "A.example", "b.example"))
    assert one == same != other


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("https://api.example.com/", "api.example.com:443"),
        ("http://api.example.com/x?y", "api.example.com:80"),
        ("https://api.example.com:8443/v1", "api.example.com:8443"),
        ("https://user:secret@api.example.com/", "api.example.com:443"),
        ("wss://api.example.com", "api.example.com:443"),
        ("https://[2606:4700::1]/", "[2606:4700::1]:443"),
        ("api.example.com/v1", "api.example.com"),
        ("api.example.com:https", "api.example.com:443"),
        ("api.example.com:", "api.example.com:443"),
        ("api.example.com:0", "api.example.com:443"),
        ("api.example.com:65536", "api.example.com:443"),
        ("api.example.com:-1", "api.example.com:443"),
        ("api.example.com:\uff14\uff14\uff13", "api.example.com:443"),
        (".example.com", '"*.example.com"'),
        ("*.com", '"*.yours.com"'),
        ("*.github.io", '"*.yours.github.io"'),
        ("10.1.2.3", "--private 10.1.2.3/32"),
        ("127.0.0.1:8080", "--private 127.0.0.1/32"),
        ("*", None),
        ("", None),
        (":443", None),
        ("localhost", None),
        ("localhost:8080", None),
        ("127.1", None),
        ("[api.example.com]:443", None),
        ("fe80::1%eth0", None),
        ("a b", None),
        ("*.internal", None),
        ("api.example.com:443:443", None),
        ("api.example.com\r\n:443", '"api.example.com"'),
    ],
)
def test_a_wrong_word_is_refused_with_the_right_one(text: str, suggestion: str | None) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_allows([text])
    (problem,) = caught.value.problems
    assert problem.suggestion == suggestion
    assert problem.format("command line").isprintable()


def test_every_wrong_word_is_named() -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_allows(["*.com", "ok.example.com", "a..b"], ["10.0.0.1/8", "0.0.0.0/0"])
    assert len(caught.value.problems) == 4
