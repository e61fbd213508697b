"""Host patterns: how they are spelled, what they stand for, what is refused with which cure; the index over them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.authority import parse_host
from broker.policy.hosts import HostKind, HostPattern, parse_host_pattern
from broker.policy.index import HostIndex
from broker.policy.names import HostName
from broker.policy.problems import Mistake


@pytest.mark.parametrize(
    ("written", "kind", "text"),
    [
        ("api.example.com", HostKind.EXACT, "api.example.com"),
        ("API.Example.COM.", HostKind.EXACT, "api.example.com"),
        ("bücher.example", HostKind.EXACT, "xn--bcher-kva.example"),
        ("*.bücher.example", HostKind.ANY_DEPTH, "*.xn--bcher-kva.example"),
        ("*.pkg.example", HostKind.ANY_DEPTH, "*.pkg.example"),
        ("?.PKG.example", HostKind.ONE_LABEL, "?.pkg.example"),
        ("_dmarc.pkg.example", HostKind.EXACT, "_dmarc.pkg.example"),
        ("198.51.100.7", HostKind.ADDRESS, "198.51.100.7"),
        ("[2606:4700::0:1]", HostKind.ADDRESS, "2606:4700::1"),
        ("2606:4700::1", HostKind.ADDRESS, "2606:4700::1"),
        ("::ffff:8.8.8.8", HostKind.ADDRESS, "8.8.8.8"),
        ("github.io", HostKind.EXACT, "github.io"),
        ("0xfe.ed", HostKind.EXACT, "0xfe.ed"),
        ("0xab.cafe.example", HostKind.EXACT, "0xab.cafe.example"),
        ("1.2.de", HostKind.EXACT, "1.2.de"),
        ("db.internal", HostKind.EXACT, "db.internal"),
        ("host.docker.internal", HostKind.EXACT, "host.docker.internal"),
    ],
)
def test_spellings(written: str, kind: HostKind, text: str) -> None:
    pattern = parse_host_pattern(written)
    assert (pattern.kind, pattern.text) == (kind, text)
    assert parse_host_pattern(pattern.text) == pattern


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("api.example.com", ["api.example.com"], ["example.com", "x.api.example.com", "api.example.com.evil.example"]),
        ("*.pkg.example", ["a.pkg.example", "a.b.pkg.example", "0x7f.pkg.example"], ["pkg.example", "evilpkg.example"]),
        ("?.pkg.example", ["a.pkg.example"], ["pkg.example", "a.b.pkg.example", "evilpkg.example"]),
        ("198.51.100.7", ["198.51.100.7"], ["198.51.100.70", "7.example.com"]),
    ],
)
def test_what_a_pattern_stands_for(pattern: str, yes: list[str], no: list[str]) -> None:
    parsed = parse_host_pattern(pattern)
    index = HostIndex([(parsed, 1)])
    for host in (*yes, *no):
        assert parsed.matches(parse_host(host)) is (host in yes)
        assert bool(index.find(parse_host(host))) is (host in yes)


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "**",
        "?",
        "*.*",
        "*.com",
        "?.com",
        "*.co.uk",
        "*.github.io",
        "*.s3.amazonaws.com",
        "*.amazonaws.com",
        "*.ck",
        "*.foo.ck",
        "*.example",
        "*.公司.cn",
        "*.xn--55qx5d.cn",
        "*.cloudfront.net",
        "*.digitaloceanspaces.com",
        "*.storage.googleapis.com",
        "*.eastus.cloudapp.azure.com",
        "*.azure.com",
        "*.oss-cn-hangzhou.aliyuncs.com",
        "*.nip.io",
        "?.webhook.site",
        "*.net.",
        "*.COM",
    ],
)
def test_a_wildcard_over_a_public_suffix_is_refused(text: str) -> None:
    with pytest.raises(Mistake):
        parse_host_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        *("*.github.io", "*.s3.amazonaws.com", "*.amazonaws.com", "?.github.io", "*.compute.amazonaws.com"),
        *("*.digitaloceanspaces.com", "*.nyc3.digitaloceanspaces.com", "*.azure.com", "*.nip.io"),
    ],
)
def test_a_private_suffix_can_be_opted_into(text: str) -> None:
    assert parse_host_pattern(text, private_suffix_ok=True).text == text


@pytest.mark.parametrize("text", ["*", "*.com", "*.co.uk", "*.ck", "?.com", "*.local", "*.internal"])
def test_a_registry_suffix_can_not(text: str) -> None:
    with pytest.raises(Mistake):
        parse_host_pattern(text, private_suffix_ok=True)


@pytest.mark.parametrize(
    "text",
    [
        "*.local",
        "*.internal",
        "*.docker.internal",
        "*.home.arpa",
        "*.onion",
        "*.localhost",
        "?.internal",
        "*.svc",
        "*.cluster.local",
        "*.test",
        "*.google.internal",
        "*.svc.cluster.local",
    ],
)
def test_a_wildcard_over_special_names_is_refused(text: str) -> None:
    with pytest.raises(Mistake, match=r"name each host|special"):
        parse_host_pattern(text)


@pytest.mark.parametrize(
    "text", ["localhost", "LOCALHOST.", "foo.localhost", "metadata.google.internal", "wpad", "1.0.0.127.in-addr.arpa"]
)
def test_a_name_that_is_never_reached_is_refused(text: str) -> None:
    with pytest.raises(Mistake, match="no rule can open it"):
        parse_host_pattern(text)


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        (".example.com", '"*.example.com"'),
        ("https://api.example.com/v1", '"api.example.com"'),
        ("https://api.example.com:8443", '"api.example.com"'),
        ("https://user:secret@api.example.com/", '"api.example.com"'),
        ("api.example.com/v1", '"api.example.com"'),
        ("api.example.com:8443", 'hosts = ["api.example.com"], ports = [8443]'),
        ("[2606:4700::1]:443", 'hosts = ["[2606:4700::1]"], ports = [443]'),
        (" api.example.com", '"api.example.com"'),
        ("*foo.example.com", '"*.foo.example.com"'),
        ("foo-*.example.com", '"*.example.com"'),
        ("a.*.example.com", '"*.example.com"'),
        ("10.0.0.0/8", 'addresses = ["10.0.0.0/8"]'),
        ("user@api.example.com", None),
        ("", None),
        ("127.1", None),
        ("0x7f000001", None),
        ("0x7f.1", None),
        ("0xa9.0xfe.0xa9.0xfe", None),
        ("dead.0xbeef", None),
        ("2130706433", None),
        ("010.0.0.1", None),
        ("fe80::1%eth0", None),
        ("[api.example.com]", None),
        ("api..example.com", None),
        ("-a.example.com", None),
        ("a b.example.com", None),
        ("api.example.com\n", '"api.example.com"'),
        ("xn--.example.com", None),
        ("exa\u00admple.com", None),
        ("^api\\.example\\.com$", None),
    ],
)
def test_a_wrong_spelling_is_refused_with_the_right_one(text: str, suggestion: str | None) -> None:
    with pytest.raises(Mistake) as caught:
        parse_host_pattern(text)
    assert caught.value.suggestion == suggestion
    assert "secret" not in (caught.value.suggestion or "")


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("a.example.com", "a.example.com", True),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "*.example.com", True),
        ("*.example.com", "*.b.example.com", True),
        ("*.example.com", "?.example.com", True),
        ("*.example.com", "?.b.example.com", True),
        ("?.example.com", "a.example.com", True),
        ("?.example.com", "?.example.com", True),
        ("198.51.100.7", "198.51.100.7", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "*.badexample.com", False),
        ("*.b.example.com", "*.example.com", False),
        ("?.example.com", "*.example.com", False),
        ("?.example.com", "a.b.example.com", False),
        ("?.example.com", "?.b.example.com", False),
        ("a.example.com", "*.example.com", False),
        ("a.example.com", "*.a.example.com", False),
        ("198.51.100.7", "198.51.100.8", False),
        ("*.example.com", "198.51.100.7", False),
    ],
)
def test_cover(wide: str, narrow: str, expected: bool) -> None:
    one, other = parse_host_pattern(wide), parse_host_pattern(narrow)
    assert one.covers(other) is expected
    assert bool(HostIndex([(one, 1)]).covering(other)) is expected


def test_a_wildcard_does_not_hand_on_a_special_name() -> None:
    wide = HostPattern(kind=HostKind.ANY_DEPTH, host=HostName("docker.internal"))
    special = parse_host_pattern("host.docker.internal")
    assert not wide.covers(special)
    assert not HostIndex([(wide, 1)]).covering(special)


def test_the_most_specific_pattern_comes_first() -> None:
    written = ["*.example.com", "*.b.example.com", "?.b.example.com", "a.b.example.com", "*.example.com"]
    index = HostIndex((parse_host_pattern(text), number) for number, text in enumerate(written))
    assert index.find(HostName("a.b.example.com")) == (3, 2, 1, 0, 4)
    assert index.find(HostName("b.example.com")) == (0, 4)
    assert index.find(HostName("example.com")) == ()


LABELS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=0, max_size=3).map(
    lambda labels: ".".join([*labels, "example.com"])
)
PATTERNS = st.builds(
    lambda kind, name: HostPattern(kind=kind, host=HostName(name)),
    st.sampled_from([HostKind.EXACT, HostKind.ONE_LABEL, HostKind.ANY_DEPTH]),
    LABELS,
)


@given(st.lists(PATTERNS, max_size=8), LABELS)
def test_the_index_finds_what_the_patterns_match(patterns: list[HostPattern], host: str) -> None:
    found = HostIndex(enumerate_patterns(patterns)).find(HostName(host))
    assert sorted(found) == [number for number, pattern in enumerate(patterns) if pattern.matches(HostName(host))]


@given(st.lists(PATTERNS, max_size=8), PATTERNS)
def test_the_index_finds_what_covers(patterns: list[HostPattern], narrow: HostPattern) -> None:
    found = HostIndex(enumerate_patterns(patterns)).covering(narrow)
    assert sorted(found) == [number for number, pattern in enumerate(patterns) if pattern.covers(narrow)]


@given(PATTERNS, PATTERNS, LABELS)
def test_cover_is_sound(wide: HostPattern, narrow: HostPattern, host: str) -> None:
    if wide.covers(narrow) and narrow.matches(HostName(host)):
        assert wide.matches(HostName(host))


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_a_mistake(text: str) -> None:
    found = outcome(text)
    assert str(found).isprintable() if isinstance(found, Mistake) else found.text.isascii()


def outcome(text: str) -> HostPattern | Mistake:
    try:
        return parse_host_pattern(text)
    except Mistake as mistake:
        return mistake


def enumerate_patterns(patterns: list[HostPattern]) -> list[tuple[HostPattern, Any]]:
    return [(pattern, number) for number, pattern in enumerate(patterns)]
