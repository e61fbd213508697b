"""Upstreams that cannot be trusted: the client reads which and why, under a leaf of ours, and no request is sent."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.upstream import public_key_digest
from tests.broker.gateway.h2_peers import connect, request
from tests.broker.gateway.test_inspection import HOST, RULES, get, ok, problem_of, shake, talk
from tests.broker.gateway.world import PUBLIC, World, in_world, look_up
from tests.certs.chains import NOW, Issuer, Profile, make, make_with_sha1, root, server

pytestmark = pytest.mark.live
DAY = timedelta(days=1)
ROOT = root()
INNER = make(Profile(authority=True, common_name="inner", permitted="inner.example"), ROOT)


def leaf(**changes: Any) -> Issuer:
    return make(Profile(**{"names": (HOST,), **changes}), ROOT)


def weak_rsa() -> Issuer:
    return leaf(key=rsa.generate_private_key(65537, 1024))


def demanding(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = server(leaf())
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=ROOT.pem.decode())
    context.maximum_version = version
    return context


def old() -> ssl.SSLContext:
    context = server(leaf())
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


BAD: dict[str, tuple[Callable[[], ssl.SSLContext], str, str]] = {
    "expired": (lambda: server(leaf(end=NOW - DAY, start=NOW - 9 * DAY)), "upstream_certificate", "expired"),
    "not valid yet": (lambda: server(leaf(start=NOW + DAY)), "upstream_certificate", "not valid yet"),
    "self-signed": (lambda: server(make(Profile(names=(HOST,)))), "upstream_certificate", "self-signed"),
    "of an unknown authority": (
        lambda: server(make(Profile(names=(HOST,)), root())),
        "upstream_certificate",
        "not trusted",
    ),
    "for another name": (lambda: server(leaf(names=("other.example",))), "upstream_certificate", "not for this name"),
    "for the name in its CN only": (
        lambda: server(leaf(names=(), common_name=HOST)),
        "upstream_certificate",
        "not for this name",
    ),
    "for all of a top-level domain": (
        lambda: server(leaf(names=("*.example",))),
        "upstream_certificate",
        "not for this name",
    ),
    "for a wildcard of everything": (lambda: server(leaf(names=("*",))), "upstream_certificate", "not for this name"),
    "for clients": (
        lambda: server(leaf(usage=ExtendedKeyUsageOID.CLIENT_AUTH)),
        "upstream_certificate",
        "",
    ),
    "signed with SHA-1": (
        lambda: server(make_with_sha1(Profile(names=(HOST,)), ROOT)),
        "upstream_certificate",
        "SHA-1",
    ),
    "of 1024 bits": (lambda: server(weak_rsa()), "upstream_certificate", "too weak"),
    "outside its authority's constraints": (
        lambda: server(make(Profile(names=(HOST,)), INNER), INNER),
        "upstream_certificate",
        "may not certify",
    ),
    "TLS 1.1 only": (old, "upstream_tls", "1.2"),
    "a client's certificate wanted, TLS 1.2": (
        lambda: demanding(ssl.TLSVersion.TLSv1_2),
        "upstream_certificate|upstream_tls",
        "",
    ),
    "a client's certificate wanted, TLS 1.3": (
        lambda: demanding(ssl.TLSVersion.TLSv1_3),
        "upstream_certificate",
        "client certificate",
    ),
}


class BlockingOrigin:
    """Serves one connection after another in a thread, with OpenSSL's own alerts: asyncio sends none."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.octets = b""
        self._context = context
        self._listener = socket.create_server((PUBLIC, 443))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "BlockingOrigin":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), self._context.wrap_socket(sock, server_side=True) as tls:
                self.octets += tls.recv(65536)
                tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@in_world
async def test_a_bad_upstream_is_a_readable_failure(world: World) -> None:
    assert world.certificates
    world.__dict__["certificates"] = ROOT.pem  # what the broker trusts beside the system's roots
    async with world.broker(RULES, inspect=True):
        for what, (context, reasons, words) in BAD.items():
            with BlockingOrigin(context()) as origin:
                sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
                answer = await world.inside(talk, sock, get())
                assert answer.startswith(b"HTTP/1.1 502 "), (what, answer)
                problem = problem_of(answer)
                assert problem["reason"] in reasons.split("|"), (what, problem)
                assert words in problem["detail"], (what, problem)
                assert origin.octets == b"", what
                closes = [one for one in world.records("close") if one["ref"] == problem["record"]]
                assert [(one["verdict"], one["reason"]) for one in closes] == [("failure", problem["reason"])], what
        with BlockingOrigin(server(leaf())):
            sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
            assert (await world.inside(talk, sock, get())).startswith(b"HTTP/1.1 200 ")


@in_world
async def test_the_same_over_http2(world: World) -> None:
    world.__dict__["certificates"] = ROOT.pem

    def ask() -> Any:
        return connect(world.client_context("h2"), look_up(HOST)).ask(request())

    async with world.broker(RULES, inspect=True):
        for context, words in (
            (server(leaf(end=NOW - DAY, start=NOW - 9 * DAY)), "expired"),
            (demanding(ssl.TLSVersion.TLSv1_3), "client certificate"),
        ):
            context.set_alpn_protocols(["h2"])
            with BlockingOrigin(context):
                answered = await world.inside(ask)
                assert (answered.status, answered.problem["reason"]) == ("502", "upstream_certificate")
                assert words in answered.problem["detail"]


@in_world
async def test_a_blocked_key_is_refused_whoever_certified_it(world: World) -> None:
    world.__dict__["certificates"] = ROOT.pem
    bad = leaf()
    digest = public_key_digest(bad.certificate.public_bytes(Encoding.DER))
    async with world.broker(RULES, inspect=True) as broker, world.origin(ok, port=443, tls=server(bad)):
        assert broker.inspector is not None
        broker.inspector.load()
        trust = broker.inspector._trust
        assert trust is not None
        trust._blocked |= {digest}
        sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
        answer = await world.inside(talk, sock, get())
        problem = problem_of(answer)
        assert problem["reason"] == "upstream_certificate"
        assert "publicly known" in problem["detail"]


@in_world
async def test_a_rule_brings_its_own_authority_and_certificate(world: World) -> None:
    """Without the rule's files the upstream is not trusted; with them it is, and gets the certificate that it wants."""
    ours = leaf(usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    files = {name: world.directory / f"{name}.pem" for name in ("cacert", "certificate", "key")}
    files["cacert"].write_bytes(ROOT.pem)
    files["certificate"].write_bytes(ours.pem)
    files["key"].write_bytes(ours.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    keys = "".join(f'upstream_{name} = "{path}"\n' for name, path in files.items())
    rules = (
        f'[[rule]]\nname = "own"\naction = "allow"\nhosts = ["{HOST}"]\npaths = ["/own"]\n{keys}'
        f'[[rule]]\nname = "plain"\naction = "allow"\nhosts = ["{HOST}"]\npaths = ["/plain"]\n'
    )
    world.__dict__["certificates"] = root().pem  # another authority than the upstream's
    async with world.broker(rules, inspect=True):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with BlockingOrigin(demanding(version)) as origin:
                sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
                assert (await world.inside(talk, sock, get(target="/own"))).startswith(b"HTTP/1.1 200 ")
                sent = origin.octets
                # The kept upstream was reached with the first rule's certificate: the other rule must not use it.
                other = await world.inside(lambda: shake(world, look_up(HOST), HOST))
                answer = await world.inside(talk, other, get(target="/plain"))
                assert problem_of(answer)["reason"] == "upstream_certificate"
                assert origin.octets == sent
        files["key"].write_bytes(b"no key")
        with BlockingOrigin(demanding(ssl.TLSVersion.TLSv1_3)):
            sock = await world.inside(lambda: shake(world, look_up(HOST), HOST))
            assert (await world.inside(talk, sock, get(target="/own")))[9:12] in {b"500", b"502", b"200"}
