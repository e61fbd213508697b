"""Request targets: which form, which authority, and that two authorities in one request must agree."""

import pytest

from broker.policy.authority import parse_authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.heads import RequestHead, parse_request_head
from broker.wire.http1.limits import DEFAULT_LIMITS
from broker.wire.http1.rewrite import Scheme
from broker.wire.http1.targets import (
    AbsoluteForm,
    AsteriskForm,
    AuthorityForm,
    OriginForm,
    Target,
    classify_target,
    request_authority,
)


def read(start: str, host: str | None = "mirror.example") -> RequestHead:
    line = "" if host is None else f"Host: {host}\r\n"
    head = parse_request_head(f"{start}\r\n{line}\r\n".encode("latin-1"), DEFAULT_LIMITS)
    assert head is not None
    return head


MIRROR = parse_authority(b"mirror.example:80", default_port=None)
API = parse_authority(b"api.example.com:443", default_port=None)


@pytest.mark.parametrize(
    ("start", "form"),
    [
        ("GET / HTTP/1.1", OriginForm(b"/")),
        ("GET //x/../y?z HTTP/1.1", OriginForm(b"//x/../y?z")),
        ("GET http://mirror.example/a?b HTTP/1.1", AbsoluteForm(MIRROR, b"/a?b")),
        ("GET HTTP://mirror.EXAMPLE.:80 HTTP/1.1", AbsoluteForm(MIRROR, b"/")),
        ("GET http://mirror.example?x HTTP/1.1", AbsoluteForm(MIRROR, b"/?x")),
        ("OPTIONS http://mirror.example HTTP/1.1", AbsoluteForm(MIRROR, b"*")),
        ("OPTIONS http://mirror.example/ HTTP/1.1", AbsoluteForm(MIRROR, b"/")),
        ("OPTIONS http://mirror.example?x HTTP/1.1", AbsoluteForm(MIRROR, b"/?x")),
        ("OPTIONS * HTTP/1.1", AsteriskForm()),
        ("CONNECT api.example.com:443 HTTP/1.1", AuthorityForm(API)),
        ("CONNECT API.example.com.:443 HTTP/1.1", AuthorityForm(API)),
    ],
)
def test_the_form_of_a_target(start: str, form: Target) -> None:
    assert classify_target(read(start)) == form


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("GET * HTTP/1.1", Reason.BAD_REQUEST),
        ("GET ** HTTP/1.1", Reason.BAD_REQUEST),
        ("OPTIONS *x HTTP/1.1", Reason.BAD_REQUEST),
        ("GET mirror.example:80 HTTP/1.1", Reason.BAD_REQUEST),
        ("GET mirror.example HTTP/1.1", Reason.BAD_REQUEST),
        ("GET ?x HTTP/1.1", Reason.BAD_REQUEST),
        ("GET http:/mirror.example/ HTTP/1.1", Reason.BAD_REQUEST),
        ("GET http:mirror.example HTTP/1.1", Reason.BAD_REQUEST),
        ("GET http:///x HTTP/1.1", Reason.BAD_AUTHORITY),
        ("GET https://mirror.example/ HTTP/1.1", Reason.SCHEME_REFUSED),
        ("GET ftp://mirror.example/ HTTP/1.1", Reason.SCHEME_REFUSED),
        ("GET gopher://mirror.example/ HTTP/1.1", Reason.SCHEME_REFUSED),
        ("GET ws://mirror.example/ HTTP/1.1", Reason.SCHEME_REFUSED),
        ("GET file://mirror.example/etc/passwd HTTP/1.1", Reason.SCHEME_REFUSED),
        ("GET http://mirror.example@evil.example/ HTTP/1.1", Reason.BAD_AUTHORITY),
        ("GET http://mirror.example%2eevil.example/ HTTP/1.1", Reason.BAD_AUTHORITY),
        ("CONNECT api.example.com HTTP/1.1", Reason.BAD_PORT),
        ("CONNECT https://api.example.com:443 HTTP/1.1", Reason.BAD_AUTHORITY),
        ("CONNECT / HTTP/1.1", Reason.BAD_AUTHORITY),
        ("CONNECT api.example.com:443/ HTTP/1.1", Reason.BAD_AUTHORITY),
        ("CONNECT x@api.example.com:443 HTTP/1.1", Reason.BAD_AUTHORITY),
        ("CONNECT [api.example.com]:443 HTTP/1.1", Reason.BAD_ADDRESS),
        ("CONNECT api.example.com..:443 HTTP/1.1", Reason.BAD_NAME),
    ],
)
def test_a_target_that_is_refused(start: str, reason: Reason) -> None:
    with pytest.raises(Refusal) as caught:
        classify_target(read(start))
    assert caught.value.reason is reason
    assert caught.value.reason.status == 400


def test_connect_to_an_asterisk() -> None:
    with pytest.raises(Refusal):
        classify_target(read("CONNECT * HTTP/1.1"))


@pytest.mark.parametrize(
    ("start", "host", "scheme", "authority"),
    [
        ("GET / HTTP/1.1", "MIRROR.example", "http", b"mirror.example:80"),
        ("GET / HTTP/1.1", "mirror.example", "https", b"mirror.example:443"),
        ("GET / HTTP/1.1", "mirror.example:8080", "https", b"mirror.example:8080"),
        ("OPTIONS * HTTP/1.1", "mirror.example", "http", b"mirror.example:80"),
        ("GET http://mirror.example/ HTTP/1.1", "mirror.example:80", "http", b"mirror.example:80"),
        ("GET http://mirror.example:81/ HTTP/1.1", "mirror.example.:81", "http", b"mirror.example:81"),
        ("GET http://mirror.example/ HTTP/1.0", None, "http", b"mirror.example:80"),
        ("CONNECT api.example.com:443 HTTP/1.1", "api.example.com", "https", b"api.example.com:443"),
        ("CONNECT api.example.com:8443 HTTP/1.1", "api.example.com:8443", "https", b"api.example.com:8443"),
        ("CONNECT api.example.com:443 HTTP/1.0", None, "https", b"api.example.com:443"),
    ],
)
def test_the_authority_of_a_request(start: str, host: str | None, scheme: Scheme, authority: bytes) -> None:
    head = read(start, host)
    assert request_authority(head, classify_target(head), scheme) == parse_authority(authority, default_port=None)


@pytest.mark.parametrize(
    ("start", "host"),
    [
        ("GET http://mirror.example/ HTTP/1.1", "evil.example"),
        ("GET http://mirror.example/ HTTP/1.1", "mirror.example:81"),
        ("GET http://mirror.example:81/ HTTP/1.1", "mirror.example"),
        ("GET http://mirror.example/ HTTP/1.0", "evil.example"),
        ("CONNECT api.example.com:443 HTTP/1.1", "evil.example:443"),
        ("CONNECT api.example.com:443 HTTP/1.1", "api.example.com:80"),
    ],
)
def test_a16_host_and_target_must_agree(start: str, host: str) -> None:
    head = read(start, host)
    target = classify_target(head)
    with pytest.raises(Refusal) as caught:
        request_authority(head, target, "http")
    assert caught.value.reason is Reason.BAD_REQUEST


def test_a_host_that_is_no_authority_is_refused_behind_any_target() -> None:
    for start in ("GET / HTTP/1.1", "GET http://mirror.example/ HTTP/1.1"):
        for host in ("x@mirror.example", "mirror.example/", "[mirror.example]", "mirror.example:", "%6dirror.example"):
            head = read(start, host)
            target = classify_target(head)
            with pytest.raises(Refusal):
                request_authority(head, target, "http")
