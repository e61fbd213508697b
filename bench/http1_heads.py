"""Microseconds for one HTTP/1.1 head: read, written anew, and the same head through llhttp and h11.

Usage: python bench/http1_heads.py. CPU time, the best of 25 rounds of 2,000, so that other load on the machine shows
least. `exchange` is one kept-alive GET with a 615-octet response through the whole state machine.
"""

import time
from collections.abc import Callable
from functools import partial

import h11
import httptools

from broker.policy.authority import parse_authority
from broker.wire.http1.events import Judge
from broker.wire.http1.exchange import Exchange
from broker.wire.http1.heads import RequestHead, parse_request_head, parse_response_head
from broker.wire.http1.limits import DEFAULT_LIMITS
from broker.wire.http1.rewrite import format_request_head, format_response_head
from broker.wire.http1.targets import classify_target, request_authority

AUTHORITY = parse_authority(b"api.example.com", default_port=443)
REQUESTS = {
    "curl": b"GET /simple/x/ HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n",
    "pip": (
        b"GET /simple/x/ HTTP/1.1\r\nHost: api.example.com\r\n"
        b'User-Agent: pip/24.0 {"ci":null,"cpu":"x86_64","distro":{"id":"bookworm"},"python":"3.12.1"}\r\n'
        b"Accept-Encoding: gzip, deflate\r\nAccept: application/json, text/html;q=0.01\r\n"
        b"Connection: keep-alive\r\nCache-Control: max-age=0\r\n\r\n"
    ),
    "browser": (
        b"GET /a/b/c/d?x=1&y=2 HTTP/1.1\r\nHost: api.example.com\r\n"
        b"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n"
        b"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n"
        b"Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nConnection: keep-alive\r\n"
        b"Cookie: a=bcdefghijklmnop; session=0123456789abcdef0123456789abcdef\r\nUpgrade-Insecure-Requests: 1\r\n"
        b"Sec-Fetch-Dest: document\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Site: none\r\nPriority: u=0, i\r\n\r\n"
    ),
}
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 29 Nov 2025 18:00:00 GMT\r\nContent-Type: text/html\r\n"
    b"Content-Length: 615\r\nLast-Modified: Sat, 29 Nov 2025 17:00:00 GMT\r\nConnection: keep-alive\r\n"
    b'ETag: "692b2af0-267"\r\nAccept-Ranges: bytes\r\n\r\n'
)


def best(step: Callable[[], object]) -> float:
    """Microseconds of one call, in the best round."""
    return min(_round(step) for _ in range(25))


def _round(step: Callable[[], object], count: int = 2000) -> float:
    begin = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - begin) / count * 1e6


class _Collector:
    """The least that a user of httptools needs: the target and the fields."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.target = b""

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


def llhttp_request(data: bytes) -> object:
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    parser.feed_data(data)
    return parser.get_method(), parser.get_http_version(), parser.should_keep_alive(), collector


def llhttp_response(data: bytes) -> object:
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    parser.feed_data(data)
    return parser.get_status_code(), parser.should_keep_alive(), collector


def h11_request(data: bytes) -> object:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    return connection.next_event()


def name_authority(head: RequestHead) -> object:
    return request_authority(head, classify_target(head), "https")


def exchange_step() -> Callable[[], object]:
    exchange = Exchange()
    request, response = REQUESTS["pip"], RESPONSE + b"x" * 615

    def step() -> object:
        (event,) = exchange.client_data(request)
        assert isinstance(event, Judge)
        target = classify_target(event.head)
        authority = request_authority(event.head, target, "https")
        exchange.allow(scheme="https", authority=authority, path=event.head.target)
        return exchange.upstream_data(response)

    return step


def main() -> None:
    print(f"{'':9}{'octets':>7}{'fields':>7}{'read':>7}{'target':>7}{'write':>7}{'llhttp':>8}{'h11':>8}")
    for name, data in REQUESTS.items():
        head = parse_request_head(data, DEFAULT_LIMITS)
        assert head is not None
        times = (
            best(partial(parse_request_head, data, DEFAULT_LIMITS)),
            best(partial(name_authority, head)),
            best(partial(format_request_head, head, scheme="https", authority=AUTHORITY, path=head.target)),
            best(partial(llhttp_request, data)),
            best(partial(h11_request, data)),
        )
        row = "{:7.1f}{:7.1f}{:7.1f}{:8.1f}{:8.1f}".format(*times)
        print(f"{name:9}{len(data):7}{len(head.fields):7}{row}")
    answer = parse_response_head(RESPONSE, "GET", DEFAULT_LIMITS)
    assert answer is not None
    read = best(lambda: parse_response_head(RESPONSE, "GET", DEFAULT_LIMITS))
    write, other = best(lambda: format_response_head(answer)), best(lambda: llhttp_response(RESPONSE))
    print(f"{'nginx':9}{len(RESPONSE):7}{len(answer.fields):7}{read:7.1f}{'':7}{write:7.1f}{other:8.1f}")
    print(f"exchange {best(exchange_step()):.1f}")


if __name__ == "__main__":
    main()
