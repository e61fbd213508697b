"""The problem document: complete for every denial and failure, readable, bounded and inert."""

import json
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.reasons import Family, Reason
from broker.wire.problem import DETAIL_MAX, REACHABLE_MAX, http_response, problem
from broker.wire.sentences import PROXY_STATUS, SENTENCES

TOLD = [reason for reason in Reason if reason.family in (Family.DENY, Family.FAILURE)]
UNTOLD = [reason for reason in Reason if reason not in TOLD]
PARTS: dict[str, Any] = {
    "detail": "no rule names it",
    "rule": None,
    "reachable": ("api.example.com:443",),
    "record": "r-1",
}


def parse(response: bytes, method: str = "GET") -> tuple[h11.Response, bytes]:
    """Read the response as a client does, to the last byte."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "api.example.com")]))
    client.send(h11.EndOfMessage())
    client.receive_data(response)
    head, body = client.next_event(), b""
    assert isinstance(head, h11.Response)
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.trailing_data[0] == b""
    return head, body


def test_there_is_one_sentence_for_each_denial_and_failure() -> None:
    assert set(SENTENCES) == set(TOLD)
    assert len(set(SENTENCES.values())) == len(TOLD)
    assert all(text[0].isupper() and text.endswith(".") and text.isascii() for text in SENTENCES.values())
    assert set(PROXY_STATUS) <= set(TOLD)


@pytest.mark.parametrize("reason", TOLD)
def test_document_and_response_agree(reason: Reason) -> None:
    head, body = parse(http_response(reason, **PARTS))
    assert body == problem(reason, **PARTS)
    assert json.loads(body) == {
        "type": f"urn:wicketgate:reason:{reason}",
        "title": SENTENCES[reason],
        "status": reason.status,
        "detail": "no rule names it",
        "reason": str(reason),
        "rule": None,
        "reachable": ["api.example.com:443"],
        "reachable_total": 1,
        "record": "r-1",
    }
    headers = dict(head.headers)
    assert head.status_code == reason.status
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"connection"] == b"close"
    assert headers[b"proxy-status"].endswith(f'; details="{reason}"'.encode())


@pytest.mark.parametrize("reason", UNTOLD)
def test_an_allow_or_an_end_has_no_document(reason: Reason) -> None:
    with pytest.raises(ValueError, match="neither"):
        problem(reason, **PARTS)
    with pytest.raises(ValueError, match="neither"):
        http_response(reason, **PARTS)


def test_a_denial_is_never_sent_as_a_success() -> None:
    with pytest.raises(ValueError, match="no error status"):
        http_response(Reason.INTERNAL, **PARTS, status=200)


def test_head_gets_the_length_but_no_body() -> None:
    whole, head = http_response(Reason.RULE_DENY, **PARTS), http_response(Reason.RULE_DENY, **PARTS, head=True)
    parsed, body = parse(head, "HEAD")
    assert body == b""
    assert head == whole[: len(head)]
    assert int(dict(parsed.headers)[b"content-length"]) == len(whole) - len(head)


def test_options_of_the_response() -> None:
    options = {**PARTS, "status": 407, "keep_alive": True, "date": "Sun, 29 Nov 2026 18:00:00 GMT"}
    head, body = parse(http_response(Reason.GRANT_MISSING, **options))
    assert (head.status_code, json.loads(body)["status"]) == (407, 407)
    assert dict(head.headers)[b"connection"] == b"keep-alive"
    assert dict(head.headers)[b"date"] == b"Sun, 29 Nov 2026 18:00:00 GMT"
    refused, _ = parse(http_response(Reason.METHOD_REFUSED, **PARTS))
    assert refused.status_code == 405
    assert b"GET" in dict(refused.headers)[b"allow"]
    for busy in (Reason.RATE_LIMITED, Reason.TOO_MANY_CONNECTIONS):
        assert dict(parse(http_response(busy, **PARTS))[0].headers)[b"retry-after"] == b"1"


def test_a_long_list_is_cut_and_counted() -> None:
    document = json.loads(
        problem(
            Reason.HOST_NOT_ALLOWED,
            detail="x" * 10_000,
            rule="deny-all",
            reachable=[f"h{number}.example:443" for number in range(1000)],
            record=None,
        )
    )
    assert len(document["detail"]) == DETAIL_MAX
    assert document["reachable"] == [f"h{number}.example:443" for number in range(REACHABLE_MAX)]
    assert (document["reachable_total"], document["rule"], document["record"]) == (1000, "deny-all", None)


@given(st.text(), st.text(), st.lists(st.text(), max_size=3))
def test_any_text_is_inert_and_cannot_leave_the_body(detail: str, rule: str, reachable: list[str]) -> None:
    options: dict[str, Any] = {
        "detail": detail + "\x7f\x1b[2J</script>\udc80",
        "rule": rule,
        "reachable": reachable,
        "record": detail,
    }
    response = http_response(Reason.HOST_NOT_ALLOWED, **options)
    _, body = parse(response)
    assert all(0x20 <= byte < 0x7F for byte in body.removesuffix(b"\n"))
    assert not {*b"<>&"} & {*body}
    document = json.loads(body)
    json.dumps(document, ensure_ascii=False).encode("utf-8")  # no lone surrogate
    plain = [text.encode("utf-8", "backslashreplace").decode()[:DETAIL_MAX] for text in (rule, *reachable)]
    assert [document["rule"], *document["reachable"]] == plain
