"""What a failed handshake is called: real alerts where a client can be made to send them, the table for the rest."""

import ssl
from pathlib import Path

import pytest

from certs.alerts import Fault, classify_downstream, classify_upstream
from certs.authority import CertificateAuthority
from certs.contexts import LeafCache
from tests.certs.chains import NOW, root, server_error


@pytest.fixture
def served(tmp_path: Path) -> ssl.SSLContext:
    return LeafCache(CertificateAuthority.load_or_create(tmp_path / "certs", NOW)).context_for("api.example.com")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_with_its_own_roots_is_recognised(served: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    pinned = ssl.create_default_context(cadata=root().pem.decode())
    pinned.maximum_version = version
    failure = classify_downstream(server_error(pinned, served, "api.example.com"))
    assert failure.fault is Fault.REJECTED_CA
    assert "does not trust" in failure.text
    assert "SSL_CERT_FILE" in failure.hint
    assert "splice" in failure.hint


def raised(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] words of the library")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "fault", "words"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", Fault.REJECTED_CA, "does not trust"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", Fault.REJECTED_CA, "did not accept"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", Fault.REJECTED_CA, "did not accept"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", Fault.REJECTED_CA, "clocks"),
        ("UNSUPPORTED_PROTOCOL", Fault.HANDSHAKE, "at least 1.2"),
        ("NO_SHARED_CIPHER", Fault.HANDSHAKE, "cipher"),
        ("HTTP_REQUEST", Fault.HANDSHAKE, "does not speak TLS"),
        ("SOMETHING_NEW", Fault.HANDSHAKE, "something new"),
        ("UNEXPECTED_EOF_WHILE_READING", Fault.CLOSED, "closed"),
    ],
)
def test_the_clients_faults(reason: str, fault: Fault, words: str) -> None:
    failure = classify_downstream(raised(reason))
    assert failure.fault is fault
    assert words in failure.text


@pytest.mark.parametrize("error", [ssl.SSLEOFError(8, "eof"), ConnectionResetError(), ssl.SSLZeroReturnError(6, "")])
def test_going_away_is_no_rejection(error: OSError) -> None:
    assert classify_downstream(error).fault is Fault.CLOSED
    assert classify_upstream(error, "api.example.com").fault is Fault.CLOSED


def test_an_unknown_verification_code_still_gets_an_answer() -> None:
    error = ssl.SSLCertVerificationError(1, "words of the library")
    error.verify_code, error.verify_message = 9999, "words of the library"
    failure = classify_upstream(error, "api.example.com")
    assert failure.fault is Fault.CERTIFICATE
    assert failure.text == "the certificate of api.example.com was refused: it cannot be verified (9999)"


def test_an_error_without_a_reason_still_gets_an_answer() -> None:
    assert classify_upstream(OSError(5, "I/O"), "api.example.com").fault is Fault.HANDSHAKE
