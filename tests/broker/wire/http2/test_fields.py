"""Field lists of HTTP/2 as a property: hyper-h2, with all its checks, reads what is accepted as the same message."""

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policy.reasons import Reason, Refusal
from broker.wire.http1.limits import DEFAULT_LIMITS
from broker.wire.http2.answers import format_answer, is_grpc
from broker.wire.http2.fields import (
    Field,
    format_request,
    format_response,
    parse_request,
    parse_response,
    parse_trailers,
)

GOOD: list[Field] = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":authority", b"api.example.com"),
    (b":path", b"/"),
]
ODD = b"\0\r\n \t\x7f\x80\xff:;,#?%@\\[]/."
octets = st.binary(max_size=12) | st.lists(st.sampled_from([bytes([one]) for one in ODD + b"aZ09-_"]), max_size=8).map(
    b"".join
)
names = st.sampled_from(
    [
        *(
            b":method",
            b":scheme",
            b":authority",
            b":path",
            b":status",
            b":protocol",
            b"host",
            b"te",
            b"cookie",
            b"expect",
        ),
        *(
            b"connection",
            b"transfer-encoding",
            b"upgrade",
            b"keep-alive",
            b"content-length",
            b"x-a",
            b"X-A",
            b"trailer",
        ),
        *(b"via", b"forwarded", b"x-forwarded-for", b"proxy-authorization", b"accept", b"", b"x a", b"x\r\n"),
    ]
)
values = octets | st.sampled_from(
    [
        *(b"GET", b"POST", b"https", b"http", b"/", b"/a?b", b"*", b"trailers", b"gzip", b"0", b"5", b"+5"),
        *(b"100-continue", b"api.example.com", b"evil.example", b"API.example.com", b"a\r\nb: c", b" a", b"a "),
    ]
)
fields = st.tuples(names | octets, values)


@st.composite
def requests(draw: st.DrawFn) -> list[Field]:
    """A good list with a few changes: almost all of a random list would be refused for its first field."""
    made = list(GOOD)
    for name, value in draw(st.lists(fields, max_size=4)):
        place = draw(st.integers(0, len(made)))
        match draw(st.integers(0, 3)):
            case 0:
                made.insert(place, (name, value))
            case 1 if place < len(made):
                made[place] = (made[place][0], value)
            case 2 if place < len(made):
                del made[place]
            case _:
                made.append((name, value))
    return made


def read_back(sent: list[Field]) -> list[Field]:
    """The list as a strict server reads it. Raises ProtocolError."""
    raw = h2.config.H2Configuration(
        client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
    )
    client = h2.connection.H2Connection(raw)
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    for one in (client, server):
        one.initiate_connection()
    client.send_headers(1, sent)
    (received,) = [
        one for one in server.receive_data(client.data_to_send()) if isinstance(one, h2.events.RequestReceived)
    ]
    return [(bytes(name), bytes(value)) for name, value in received.headers]


@given(requests())
def test_an_accepted_request_reads_the_same_to_hyper_h2(made: list[Field]) -> None:
    try:
        request = parse_request(made)
    except Refusal:
        return
    sent = format_request(request, host=b"api.example.com")
    received = read_back(sent)
    assert [one for one in received if one[0] != b"cookie"] == [one for one in sent if one[0] != b"cookie"]
    assert dict(received)[b":path"] == dict(made)[b":path"]
    assert dict(received)[b":method"] == dict(made)[b":method"]
    for name, value in received:
        assert not set(name + value) & set(b"\0\r\n")
        assert name == name.lower()
        assert value == value.strip(b" \t")
    assert not {name for name, _ in received} & {
        b"via",
        b"forwarded",
        b"x-forwarded-for",
        b"proxy-authorization",
        b"host",
    }
    assert [name for name, _ in received[:4]] == [b":method", b":scheme", b":authority", b":path"]


@given(st.lists(fields, max_size=6), st.sampled_from([b"200", b"204", b"103", b"101", b"99", b"abc", b"1000", b""]))
def test_an_accepted_response_has_one_status_and_no_offers(rest: list[Field], status: bytes) -> None:
    try:
        response = parse_response([(b":status", status), *rest])
    except Refusal as refusal:
        reason: Reason | None = refusal.reason
    else:
        reason = None
    assert reason in {None, Reason.UPSTREAM_PROTOCOL}
    if reason is not None:
        return
    sent = format_response(response)
    assert sent[0] == (b":status", status)
    assert status not in {b"101", b"99", b"abc", b"1000", b""}
    assert not any(name.startswith(b":") for name, _ in sent[1:])
    assert not any(set(name + value) & set(b"\0\r\n") for name, value in sent)


def test_offers_of_other_protocols_are_not_passed_on() -> None:
    offers = [(b"alt-svc", b'h3=":443"'), (b"alternate-protocol", b"443:quic"), (b"x-a", b"b")]
    sent = format_response(parse_response([(b":status", b"200"), *offers]))
    assert sent == [(b":status", b"200"), (b"x-a", b"b")]


# What CGI and WSGI servers read as another name, and what servers believe about the sender.
@pytest.mark.parametrize(
    "name",
    [
        *(b"x_forwarded_for", b"x-forwarded_for", b"x_http_method_override", b"x_original_url", b"proxy_authorization"),
        *(b"http2_settings", b"x_real_ip", b"keep_alive", b"x-http-method-override", b"x-host", b"proxy", b"via"),
        *(b"cf-connecting-ip", b"cf_connecting_ip", b"x-original-forwarded-for", b"x-remote-addr"),
    ],
)
def test_second_names_and_second_spellings_stay_behind(name: bytes) -> None:
    request = parse_request([*GOOD, (name, b"x"), (b"x_custom", b"1")])
    assert format_request(request, host=b"api.example.com") == [*GOOD, (b"x_custom", b"1")]


@pytest.mark.parametrize("name", [b"content_length", b"transfer_encoding"])
def test_a_framing_field_spelled_with_an_underscore_is_refused(name: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse_request([*GOOD, (name, b"5")])
    assert refused.value.reason is Reason.BAD_FRAMING


@pytest.mark.parametrize(
    "name",
    [
        *(b"content-length", b"host", b"authorization", b"set-cookie", b"te", b"trailer", b"set_cookie"),
        *(b"x-http-method-override", b"x_forwarded_for", b"proxy-authorization", b"location", b"if-match"),
    ],
)
def test_trailers_that_would_change_the_message_are_dropped(name: bytes) -> None:
    kept = parse_trailers([(b"grpc-status", b"0"), (name, b"1")], DEFAULT_LIMITS, Reason.BAD_REQUEST)
    assert kept == [(b"grpc-status", b"0")]


@pytest.mark.parametrize("name", [b":path", b":status", b"connection", b"transfer-encoding", b"X-A"])
def test_trailers_that_are_malformed_are_refused(name: bytes) -> None:
    with pytest.raises(Refusal):
        parse_trailers([(name, b"1")], DEFAULT_LIMITS, Reason.BAD_REQUEST)


@pytest.mark.parametrize("reason", [one for one in Reason if one.status >= 400])
@pytest.mark.parametrize("grpc", [False, True])
def test_every_refusal_can_be_said(reason: Reason, grpc: bool) -> None:
    detail = "a name:\r\n\0 \u00e4%"
    headers, body = format_answer(reason, detail=detail, rule=None, reachable=(), record="x-1", grpc=grpc)
    assert dict(headers)[b":status"] == str(reason.status).encode()
    assert not any(set(value) & set(b"\r\n\0") for _, value in headers)
    assert (body == b"") is grpc
    assert (b"grpc-status" in dict(headers)) is grpc


def test_grpc_is_told_by_its_type() -> None:
    assert is_grpc([(b"content-type", b"application/grpc+proto")])
    assert not is_grpc([(b"content-type", b"application/json"), (b"accept", b"application/grpc")])
