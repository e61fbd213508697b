"""The policy file's text: every problem at once with its line and cure, the notes, and what a good file becomes."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.limits import DEFAULTS, RANGES, Limits
from broker.policy.load import parse_policy
from broker.policy.problems import Mistake, PolicyError, Severity
from broker.policy.reading import Findings
from broker.policy.rule import ORDINARY
from broker.policy.rules import Action, Mode, Policy, TlsMode
from broker.policy.schema import read_rule
from broker.policy.toml_lines import locate

CASES: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "cases" / "policy_mistakes.toml").read_text("utf-8"))
HEAD = "version = 1\n[egress]\nenabled = true\n"


@pytest.mark.parametrize("case", CASES["file"], ids=lambda case: case["name"])
def test_every_problem_is_found_at_once_with_its_line_and_cure(case: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(case["text"].removeprefix("\n"), source="policy.toml")
    problems = [problem for problem in caught.value.problems if problem.severity is Severity.ERROR]
    found: list[list[Any]] = [[problem.line, problem.found, problem.suggestion or ""] for problem in problems]
    expected = case["problems"]
    assert [[line, cure] for line, _, cure in sorted(found)] == [[line, cure] for line, _, cure in sorted(expected)]
    for line, words, cure in expected:
        assert any(line == at and words in text and cure == suggestion for at, text, suggestion in found), words


def test_a_problem_reads_as_file_line_found_expected_cure() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy('version = 1\n[egress]\nmode = "Observe"\n', source="policy.toml")
    assert str(caught.value) == (
        'policy.toml:3: error: [egress]: mode is "Observe"; expected: one of "enforce", "observe"; '
        'write: mode = "observe"'
    )


def test_the_file_of_the_design() -> None:
    policy = parse_policy(
        """
version = 1

[egress]
enabled = false            # the flag
mode = "enforce"

[[rule]]
name = "project-api"
action = "allow"
hosts = ["api.example.com", "*.pkg.example.net"]
ports = [443]
methods = ["GET", "POST"]
paths = ["/v1/**"]
tls = "inspect"
addresses = []
""",
        source="policy.toml",
    )
    assert (policy.enabled, policy.mode, policy.require_grant) == (False, Mode.ENFORCE, False)
    assert policy.limits == Limits()
    (rule,) = policy.rules
    assert [host.text for host in rule.hosts] == ["api.example.com", "*.pkg.example.net"]
    assert (rule.name, rule.action, rule.tls, rule.addresses) == ("project-api", Action.ALLOW, TlsMode.INSPECT, ())
    assert (rule.ports, rule.methods) == ({443}, {"GET", "HEAD", "POST"})
    assert [path.text for path in rule.paths or ()] == ["/v1/**"]
    assert policy.notes == ()


def test_the_smallest_file_allows_nothing() -> None:
    policy = parse_policy("version = 1", source="x")
    assert (policy.enabled, policy.rules, policy.mode) == (False, (), Mode.ENFORCE)


def test_the_defaults_of_a_rule_are_the_narrow_ones() -> None:
    (rule,) = parse(rule_text()).rules
    assert rule.ports == {443}
    assert (rule.websocket, rule.enforce, rule.plain_http, rule.addresses) == (False, True, None, ())
    assert (rule.methods, rule.paths, rule.query) == (None, None, None)
    (deny,) = parse(rule_text(action="deny")).rules
    assert deny.ports is None


def test_the_version_changes_with_the_text_and_is_stable() -> None:
    versions = {parse(text).version for text in (rule_text(), rule_text(), rule_text(hosts="['b.example.com']"))}
    assert len(versions) == 2
    assert all(len(version) == 12 for version in versions)


def parse(rules: str, *, advise: bool = False) -> Policy:
    return parse_policy(HEAD + rules, source="test", advise=advise)


def rule_text(name: str = "x", action: str = "allow", hosts: str = '["api.example.com"]', more: str = "") -> str:
    return f'[[rule]]\nname = "{name}"\naction = "{action}"\nhosts = {hosts}\n{more}\n'


@pytest.mark.parametrize(
    ("rules", "advise", "severity", "line", "words"),
    [
        (
            rule_text(hosts='["bücher.example"]'),
            False,
            "note",
            7,
            'host "bücher.example" is used as xn--bcher-kva.example',
        ),
        (rule_text(hosts='["*.bücher.example"]'), False, "note", 7, "*.xn--bcher-kva.example"),
        (rule_text(more='methods = ["get"]'), False, "warning", 8, 'method "get"'),
        (rule_text(more='addresses = ["8.8.8.0/24"]'), False, "warning", 8, "public"),
        (rule_text(hosts='["d1.cloudfront.net"]'), True, "warning", 7, "one tenant of cloudfront.net"),
        (rule_text(hosts='["someone.github.io"]', more='tls = "splice"'), True, "warning", 7, "domain fronting"),
        (
            rule_text(hosts='["a.example.com", "b.example.com"]') + rule_text("no", "deny", '["a.example.com"]'),
            False,
            "warning",
            7,
            'host "a.example.com" is denied by rule no',
        ),
        (
            rule_text(more='tls = "splice"') + rule_text("no", "deny", more='paths = ["/admin"]'),
            False,
            "warning",
            7,
            "rule no denies by paths what is spliced",
        ),
    ],
)
def test_what_surprises_is_noted_but_loads(rules: str, advise: bool, severity: str, line: int, words: str) -> None:
    (note,) = parse(rules, advise=advise).notes
    assert (note.severity.value, note.line) == (severity, line)
    assert words in note.found + note.expected


def test_an_ordinary_host_is_not_called_shared() -> None:
    assert parse(rule_text(hosts='["api.example.com", "www.example.co.uk", "*.example.org"]'), advise=True).notes == ()


def test_a_private_suffix_is_opted_into_by_name() -> None:
    (rule,) = parse(rule_text(hosts='["*.github.io"]', more="allow_public_suffix = true")).rules
    assert rule.hosts[0].text == "*.github.io"
    with pytest.raises(PolicyError, match="covers the public suffix com"):
        parse(rule_text(hosts='["*.com"]', more="allow_public_suffix = true"))


@pytest.mark.parametrize(
    ("denial", "shadowed"),
    [
        ('hosts = ["api.example.com"]', True),
        ('hosts = ["*.example.com"]', True),
        ('hosts = ["?.example.com"]\nports = [443, 80]', True),
        ('hosts = ["api.example.com"]\nports = [80]', False),
        ('hosts = ["api.example.com"]\nmethods = ["GET"]', False),
        ('hosts = ["api.example.com"]\nenforce = false', False),
        ('hosts = ["*.api.example.com"]', False),
    ],
)
def test_an_allow_rule_of_which_nothing_is_left_is_refused(denial: str, shadowed: bool) -> None:
    text = f'{HEAD}{rule_text()}[[rule]]\nname = "no"\naction = "deny"\n{denial}\n'
    if shadowed:
        with pytest.raises(PolicyError, match="everything it allows is denied by rule no"):
            parse_policy(text, source="x")
    else:
        assert len(parse_policy(text, source="x").rules) == 2


def test_each_limit_has_a_default_in_its_range_and_can_be_set() -> None:
    assert set(RANGES) == {field.name for field in fields(Limits)} == set(DEFAULTS)
    for name, (low, high) in RANGES.items():
        assert low <= DEFAULTS[name] <= high
        for value in (low, high):
            number = int(value) if isinstance(DEFAULTS[name], int) else value
            assert getattr(parse_policy(f"version = 1\nlimits.{name} = {number}", source="x").limits, name) == value
        for wrong in (low - 1, high * 2):
            with pytest.raises(PolicyError, match=name):
                parse_policy(f"version = 1\nlimits.{name} = {wrong:f}", source="x")
            with pytest.raises(Mistake, match=name):
                Limits(**{name: wrong})  # type: ignore[arg-type]


def test_the_limits_of_the_design() -> None:
    limits = Limits()
    assert (limits.head_bytes, limits.head_fields, limits.head_seconds) == (65536, 100, 10)
    assert (limits.client_hello_bytes, limits.client_hello_seconds) == (16384, 5)
    assert (limits.connect_seconds, limits.resolve_seconds, limits.resolve_answers) == (10, 5, 16)
    assert (limits.session_connections, limits.idle_seconds, limits.silent_seconds) == (256, 300, 5)


LINES = '''# comment [not.a.table]
version = 1
a.b."c.d" = 1
text = """
[[rule]]
x = 1 \\
"""   # still one value
literal = \'\'\'
[y]\'\'\'
[egress] # the flag
mode = "a # b"   # c
"quoted key" = [ # x
  1, [2,
  3], { k = "v", l = [
    4 ] },
]
[[rule]]
name = "a\\"b"
[rule.sub]
z = 1
[[rule]]
when = 1979-05-27T07:32:00Z
[[rule.part]]
p = 1
'''


def test_the_lines_of_a_document() -> None:
    found = locate(LINES)
    expected = {
        ("version",): 2,
        ("a", "b", "c.d"): 3,
        ("text",): 4,
        ("literal",): 8,
        ("egress",): 10,
        ("egress", "mode"): 11,
        ("egress", "quoted key"): 12,
        ("egress", "quoted key", 0): 13,
        ("egress", "quoted key", 1): 13,
        ("egress", "quoted key", 1, 0): 13,
        ("egress", "quoted key", 1, 1): 14,
        ("egress", "quoted key", 2): 14,
        ("egress", "quoted key", 2, "k"): 14,
        ("egress", "quoted key", 2, "l"): 14,
        ("egress", "quoted key", 2, "l", 0): 15,
        ("rule",): 17,
        ("rule", 0): 17,
        ("rule", 0, "name"): 18,
        ("rule", 0, "sub"): 19,
        ("rule", 0, "sub", "z"): 20,
        ("rule", 1): 21,
        ("rule", 1, "when"): 22,
        ("rule", 1, "part"): 23,
        ("rule", 1, "part", 0): 23,
        ("rule", 1, "part", 0, "p"): 24,
    }
    assert {path: line for path, line in found.items() if path in expected} == expected
    assert paths_of(tomllib.loads(LINES)) <= set(found)


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    children: list[tuple[str | int, object]] = []
    if isinstance(value, Mapping):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    below = {found for key, child in children for found in paths_of(child, (*path, key))}
    return below | ({path} if path else set())


KEYS = st.sampled_from(["a", "b-1", '"q.r"', "'l'", '"e\\"s"'])
VALUES = st.recursive(
    st.sampled_from(["1", "true", '"x # y"', "'[z]'", '"""m\n[n]"""', "'''o\n'''", "1.5", '"\\\\"', '"""a\\"""b"""']),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: "[" + ", # c]\n ".join(items) + "]"),
    max_leaves=6,
)
TABLES = st.tuples(st.sampled_from(["", "[t]\n", "[[u]]\n", "[u.v]\n"]), st.lists(st.tuples(KEYS, VALUES), max_size=3))


@given(st.lists(TABLES, max_size=4))
def test_the_scanner_finds_every_path_that_the_parser_finds(tables: Any) -> None:
    text = "".join(head + "".join(f"{key} = {value} # d\n" for key, value in pairs) for head, pairs in tables)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = locate(text)
    assert paths_of(document) <= set(found)
    assert all(1 <= line <= text.count("\n") + 1 for line in found.values())


@pytest.mark.parametrize("depth", [50, 200, 400, 450, 480, 490, 495, 499, 2000])
@pytest.mark.parametrize("key", ["unknown", "version", "egress.mode", "egress.enabled", "limits.head_bytes", "rule"])
def test_deep_nesting_is_a_problem_not_a_crash(key: str, depth: int) -> None:
    for value in ("[" * depth + "]" * depth, "{a=" * depth + "1" + "}" * depth):
        with pytest.raises(PolicyError):
            parse_policy(f"version = 1\n{key} = {value}\n", source="x")
    with pytest.raises(PolicyError):
        parse_policy(f"version = 1\n{key}{'.a' * depth} = 1\n", source="x")


@pytest.mark.parametrize("key", ["name", "action", "hosts", "ports", "methods", "query", "tls", "websocket", "preset"])
def test_deep_nesting_in_a_rule_is_a_problem_too(key: str) -> None:
    for value in ("[" * 450 + "]" * 450, "[" + "{a=" * 400 + "1" + "}" * 400 + "]"):
        with pytest.raises(PolicyError):
            parse_policy(f"version = 1\n[[rule]]\n{key} = {value}\n", source="x")
    with pytest.raises(PolicyError):
        parse_policy(f"version = 1\n[[rule]]\n{key}{'.a' * 5000} = 1\n", source="x")


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0o" + "7" * 6000])
@pytest.mark.parametrize(
    "key", ["version", "unknown", "egress.mode", "egress.enabled", "limits.head_bytes", "limits.idle_seconds", "rule"]
)
def test_a_number_that_cannot_be_written_out_is_a_problem_not_a_crash(key: str, number: str) -> None:
    for value in (number, f"[{number}]", f"{{a = {number}}}"):
        with pytest.raises(PolicyError) as caught:
            parse_policy(f"version = 1\n{key} = {value}\n", source="x")
        assert caught.value.problems[0].line in {1, 2}


@pytest.mark.parametrize("key", ["name", "action", "hosts", "ports", "methods", "query", "tls", "addresses", "enforce"])
def test_such_a_number_in_a_rule_is_a_problem_too(key: str) -> None:
    number = 16**5000
    for value in (number, -number, [number], [[number]], {"a": number}):
        findings = Findings()
        assert (
            read_rule({"name": "a", "action": "allow", "hosts": ["a.example"], key: value}, 1, findings, ()).rule
            is None
        )
        assert findings.errors


def test_a_date_is_shown_as_it_was_written() -> None:
    with pytest.raises(PolicyError, match=r"mode is 2026-01-31T10:00:00\+00:00"):
        parse_policy("version = 1\n[egress]\nmode = 2026-01-31T10:00:00Z\n", source="x")


@given(st.text(max_size=60))
def test_any_text_is_a_policy_or_is_refused(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text + "\nnot_a_key = 1", source="x")
    assert caught.value.problems


@given(
    st.dictionaries(
        st.sampled_from(
            ["name", "action", "hosts", "ports", "methods", "paths", "query", "tls", "addresses", "enforce"]
        ),
        st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)),
    )
)
def test_values_of_any_kind_are_problems_not_crashes(values: dict[str, Any]) -> None:
    findings = Findings()
    text = read_rule(values, 1, findings, ())
    assert (text.rule is None) is bool(findings.errors)


def test_a_rule_that_says_nothing_of_its_upstream_has_the_ordinary_one_itself() -> None:
    """The data path asks by identity, for every request; an equal value would put each rule's upstreams apart."""
    rule = '[[rule]]\nname = "a"\naction = "allow"\nhosts = ["a.example"]\nports = [443]\n'
    assert parse_policy(HEAD + rule, source="test").rules[0].upstream is ORDINARY
    other = parse_policy(HEAD + rule + 'upstream_cacert = "/etc/ca.pem"\n', source="test").rules[0].upstream
    assert other.cacert == "/etc/ca.pem"
