"""What a request is refused for before the policy is asked: names by way of a request, whichever form they have."""

from base64 import b64encode, urlsafe_b64encode

import pytest

from broker.gateway.requests import question
from broker.policy.authority import parse_authority
from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.heads import parse_request_head
from broker.wire.http1.limits import DEFAULT_LIMITS

AUTHORITY = parse_authority(b"api.example.com", default_port=443)
QUERY = bytes.fromhex("000001000001000000000000") + b"\x06secret\x04evil\x04test\x00" + b"\0\x01\0\x01"
PLAIN = urlsafe_b64encode(QUERY).decode().rstrip("=")
ODD = urlsafe_b64encode(QUERY[:-4] + b"\xff\xfe\0\x01").decode().rstrip("=")
ANSWER = urlsafe_b64encode(QUERY[:2] + b"\x81\x80" + QUERY[4:]).decode().rstrip("=")


def asked(target: str, *fields: str, method: str = "GET") -> Reason | None:
    lines = [f"{method} {target} HTTP/1.1", "Host: api.example.com", *fields, "", ""]
    head = parse_request_head("\r\n".join(lines).encode(), DEFAULT_LIMITS)
    assert head is not None
    try:
        question(head, "https", AUTHORITY)
    except Refusal as refusal:
        return refusal.reason
    return None


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/dns-query", ("Accept: application/dns-message",)),
        ("/dns-query", ("accept:  text/html , APPLICATION/DNS-MESSAGE;q=0.1",)),
        ("/x", ("Content-Type: application/dns-message", "Content-Length: 0")),
        ("/x", ("Content-Type: application/oblivious-dns-message",)),
        ("/x", ("Content-Type: application/dns-udpwireformat",)),
        ("/resolve?name=a.example", ("Accept: application/dns-json",)),
        (f"/dns-query?dns={PLAIN}", ()),
        (f"/dns-query?dns={PLAIN}", ("Accept: */*",)),
        (f"/elsewhere?x=1&dns={PLAIN}&y", ()),
        (f"/?dns={PLAIN}==", ()),
        (f"/?DNS={PLAIN}", ()),
        (f"/?%64n%73={PLAIN}", ()),
        (f"/?dns=%41{PLAIN[1:]}", ()),
        (f"/?dns={b64encode(QUERY).decode()}", ()),
        (f"/?dns=x&dns={PLAIN}", ()),
        (f"/?dns={ODD}", ()),
        (f"/?a=1;dns={PLAIN}", ()),  # some servers part there
        (f"/?dns={PLAIN};b", ()),
    ],
)
def test_names_are_not_asked_by_way_of_a_request(target: str, fields: tuple[str, ...]) -> None:
    assert asked(target, *fields) is Reason.DNS_OVER_HTTPS


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/dns-query", ("Accept: */*",)),
        ("/x", ("Accept: application/dns-messages",)),
        ("/x", ("X-About: application/dns-message",)),
        ("/?dns=", ()),
        ("/?dns=8.8.8.8", ()),
        ("/?dns=enabled", ()),
        ("/?dns=AAAA", ()),
        (f"/?dns={ANSWER}", ()),
        (f"/?domains={PLAIN}", ()),
        (f"/?q=dns={PLAIN}", ()),
        ("/?dns=%zz", ()),
    ],
)
def test_what_only_looks_like_it_is_judged_like_any_other(target: str, fields: tuple[str, ...]) -> None:
    assert asked(target, *fields) is None


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("api.example.com", Reason.NOT_TLS),  # F16: what everybody sends who forgets TLS
        ("API.example.com.:80", Reason.NOT_TLS),
        ("api.example.com:443", None),  # judged by the policy, which may allow it
        ("evil.example", Reason.NAME_MISMATCH),
    ],
)
def test_plain_http_on_the_port_of_tls_is_called_that(host: str, reason: Reason | None) -> None:
    head = parse_request_head(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), DEFAULT_LIMITS)
    assert head is not None
    if reason is None:
        assert question(head, "http", AUTHORITY).facts.authority == AUTHORITY
        return
    with pytest.raises(Refusal) as refused:
        question(head, "http", AUTHORITY)
    assert refused.value.reason is reason
