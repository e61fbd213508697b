"""Say in a few words why a TLS handshake failed, on either side. Pure: exceptions in, values out.

The texts go into audit records and answers, so they hold nothing that the peer chose, except names that were cleaned.
"""

import ssl
from enum import Enum

import msgspec


class Fault(Enum):
    """Whose fault, for choosing the reason code."""

    CERTIFICATE = "certificate"  # upstream's certificate is not acceptable
    CLIENT_CERTIFICATE = "client_certificate"  # upstream wants a certificate from us
    REJECTED_CA = "rejected_ca"  # the sandbox's client does not accept our certificate
    HANDSHAKE = "handshake"  # no common version, cipher or protocol; malformed messages
    CLOSED = "closed"  # the peer went away without a word


class TlsFailure(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is one clause for people; `hint` what to do about it, or empty."""

    fault: Fault
    text: str
    hint: str = ""


class UpstreamCertificateError(ssl.SSLCertVerificationError):
    """A certificate that OpenSSL accepts and we do not. `text` says why."""

    def __init__(self, text: str) -> None:
        super().__init__(1, text)
        self.text = text
        self.verify_code = 50  # X509_V_ERR_APPLICATION_VERIFICATION
        self.verify_message = text


# X509_V_ERR_*, openssl/x509_vfy.h
_VERIFY = {
    2: "an issuer's certificate is missing from its chain",
    7: "a signature in its chain is wrong",
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is self-signed",
    19: "its chain ends in a root that is not trusted",
    20: "its issuer is not trusted",
    21: "its issuer is not trusted, or an intermediate certificate is missing",
    22: "its chain is too long",
    23: "it was revoked",
    24: "an issuer in its chain is not a certificate authority",
    25: "its chain is longer than an issuer allows",
    26: "it is not for servers",
    27: "its root is not trusted for servers",
    28: "its root is rejected for servers",
    34: "it has a critical extension that is not understood",
    47: "an issuer in its chain may not certify that name",
    48: "an issuer in its chain may not certify that name",
    62: "it is not for this name",
    64: "it is not for this address",
    66: "its key is too weak",
    67: "an issuer's key is too weak",
    68: "it, or an issuer's, is signed with a broken digest such as SHA-1",
    76: "it is signed with an algorithm that does not fit the key",
    79: "an issuer in its chain is not a certificate authority",
}
_ADD_ROOT = "if the server is yours, add its authority with --cacert or in the rule"
_HINTS = dict.fromkeys((2, 18, 19, 20, 21), _ADD_ROOT)
_WANTS_CERTIFICATE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_NO_CERTIFICATE",
    "TLSV1_ALERT_CERTIFICATE_REQUIRED",
}
_NEEDS_CERTIFICATE = 'inspection has none to show: give the host a rule with tls = "splice", and the client its own'
# What clients say about a certificate that they do not accept (RFC 8446 §6.2).
_REJECTIONS = {
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the broker's authority",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client did not accept the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client did not accept the certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the client does not support this kind of certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client holds the certificate for expired: compare the clocks",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the client holds the certificate for revoked",
    "TLSV1_ALERT_ACCESS_DENIED": "the client refused after reading the certificate",
    "TLSV1_BAD_CERTIFICATE_STATUS_RESPONSE": "the client insists on a revocation proof",
    "TLSV1_BAD_CERTIFICATE_HASH_VALUE": "the client insists on another certificate",
}
_REJECTION_HINT = (
    "it uses roots of its own or pins a certificate: point it at the file in SSL_CERT_FILE, or give its host a "
    'rule with tls = "splice"'
)
_HANDSHAKE = {
    "UNSUPPORTED_PROTOCOL": "no common TLS version, at least 1.2 is needed",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no common TLS version, at least 1.2 is needed",
    "NO_SHARED_CIPHER": "no common cipher suite",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "no common cipher suite or parameters",
    "DH_KEY_TOO_SMALL": "the server's Diffie-Hellman parameters are too weak",
    "WRONG_SIGNATURE_TYPE": "the server signs with an algorithm that is too weak",
    "LEGACY_SIGALG_DISALLOWED_OR_UNSUPPORTED": "the server signs with an algorithm that is too weak",
    "UNSAFE_LEGACY_RENEGOTIATION_DISABLED": "the server lacks secure renegotiation (RFC 5746)",
    "NO_APPLICATION_PROTOCOL": "no common application protocol",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": "no common application protocol",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS on this port",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS on this port",
    "HTTP_REQUEST": "the peer does not speak TLS on this port",
    "TLSV1_UNRECOGNIZED_NAME": "the server does not know this name",
    "EXCESSIVE_MESSAGE_SIZE": "a message of the handshake is too large",
}


def classify_upstream(error: OSError, host: str) -> TlsFailure:
    """Why the handshake with `host` failed, or a later read that carries its alert (TLS 1.3)."""
    if isinstance(error, UpstreamCertificateError):
        return TlsFailure(fault=Fault.CERTIFICATE, text=f"the certificate of {host} was refused: {error.text}")
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _VERIFY.get(error.verify_code, "it cannot be verified")
        text = f"the certificate of {host} was refused: {why} ({error.verify_code})"
        return TlsFailure(fault=Fault.CERTIFICATE, text=text, hint=_HINTS.get(error.verify_code, ""))
    reason = _reason(error)
    if reason in _WANTS_CERTIFICATE:
        text = f"{host} asks for a client certificate"
        return TlsFailure(fault=Fault.CLIENT_CERTIFICATE, text=text, hint=_NEEDS_CERTIFICATE)
    return _handshake(error, reason, host)


def classify_downstream(error: OSError) -> TlsFailure:
    """Why the sandbox's client did not complete the handshake under our certificate."""
    reason = _reason(error)
    if reason in _REJECTIONS:
        return TlsFailure(fault=Fault.REJECTED_CA, text=_REJECTIONS[reason], hint=_REJECTION_HINT)
    failure = _handshake(error, reason, "the client")
    if failure.fault is Fault.CLOSED:
        # Node verifies when the handshake is done on its side, and then closes without an alert.
        text = "the client closed the connection without a word once it had seen the certificate"
        return TlsFailure(fault=Fault.CLOSED, text=text, hint=f"if it does that each time, {_REJECTION_HINT}")
    return failure


def _handshake(error: OSError, reason: str, peer: str) -> TlsFailure:
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError) or "UNEXPECTED_EOF" in reason:
        return TlsFailure(fault=Fault.CLOSED, text=f"{peer} closed the connection during the TLS handshake")
    known = _HANDSHAKE.get(reason) or reason.lower().replace("_", " ") or "unknown failure"
    return TlsFailure(fault=Fault.HANDSHAKE, text=f"the TLS handshake with {peer} failed: {known}")


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) else ""
