"""The reason codes: one closed set, the same word in the answer, the log and the review page.

A denial is the policy's or the guard's "no". A failure is the network's or the upstream's. The two never share a code,
so that a reader can tell "not allowed" from "did not work". `END` codes say why a connection was closed.
"""

from enum import Enum, StrEnum


class Family(Enum):
    """What kind of outcome a reason stands for."""

    ALLOW = "allow"
    DENY = "deny"
    FAILURE = "failure"
    END = "end"


class Reason(StrEnum):
    """A stable code. Its value is what answers and records carry."""

    # allow
    RULE_ALLOW = "rule_allow"
    OBSERVED = "observed"  # mode = "observe" or a shadowed rule: would have been denied

    # deny: the policy and the grant
    EGRESS_OFF = "egress_off"
    HOST_NOT_ALLOWED = "host_not_allowed"
    PORT_NOT_ALLOWED = "port_not_allowed"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PATH_NOT_ALLOWED = "path_not_allowed"
    QUERY_NOT_ALLOWED = "query_not_allowed"
    WEBSOCKET_NOT_ALLOWED = "websocket_not_allowed"
    PLAIN_HTTP_NOT_ALLOWED = "plain_http_not_allowed"
    RULE_DENY = "rule_deny"
    GRANT_MISSING = "grant_missing"
    GRANT_EXPIRED = "grant_expired"
    GRANT_REVOKED = "grant_revoked"
    GRANT_EXHAUSTED = "grant_exhausted"
    ADDRESS_LITERAL = "address_literal"  # a literal address needs a rule for that address
    SPECIAL_NAME = "special_name"
    SELF = "self"  # the broker's own listeners and addresses

    # deny: the address guard (the class of the address goes into the detail)
    ADDRESS_REFUSED = "address_refused"

    # deny: authority and names
    BAD_AUTHORITY = "bad_authority"
    BAD_NAME = "bad_name"
    BAD_ADDRESS = "bad_address"
    BAD_PORT = "bad_port"

    # deny: TLS
    NOT_TLS = "not_tls"
    BAD_CLIENT_HELLO = "bad_client_hello"
    CLIENT_HELLO_TOO_LARGE = "client_hello_too_large"
    TLS_VERSION = "tls_version"
    NO_SNI = "no_sni"
    BAD_SNI = "bad_sni"
    NAME_MISMATCH = "name_mismatch"  # name asked, SNI and Host/:authority do not agree

    # deny: HTTP
    BAD_REQUEST = "bad_request"
    BAD_FRAMING = "bad_framing"
    BAD_VERSION = "bad_version"
    HEAD_TOO_LARGE = "head_too_large"
    TARGET_TOO_LONG = "target_too_long"
    MISSING_HOST = "missing_host"
    METHOD_REFUSED = "method_refused"  # TRACE, TRACK, DEBUG, CONNECT inside a stream
    SCHEME_REFUSED = "scheme_refused"
    EXPECTATION_FAILED = "expectation_failed"
    UPGRADE_REFUSED = "upgrade_refused"
    DNS_OVER_HTTPS = "dns_over_https"
    UNKNOWN_PROTOCOL = "unknown_protocol"  # neither TLS nor HTTP/1

    # deny: limits
    CLIENT_SILENT = "client_silent"
    HEAD_TIMEOUT = "head_timeout"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    RATE_LIMITED = "rate_limited"  # the grant's requests per second
    AUDIT_UNAVAILABLE = "audit_unavailable"

    # failure
    NAME_NOT_FOUND = "name_not_found"
    RESOLVE_TIMEOUT = "resolve_timeout"
    RESOLVE_FAILED = "resolve_failed"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    UNREACHABLE = "unreachable"
    UPSTREAM_TLS = "upstream_tls"
    UPSTREAM_CERTIFICATE = "upstream_certificate"
    UPSTREAM_PROTOCOL = "upstream_protocol"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_CLOSED = "upstream_closed"
    CLIENT_REJECTED_CA = "client_rejected_ca"
    INTERNAL = "internal"  # our own fault: treated as a denial, never as an allow

    # end of a connection
    FINISHED = "finished"
    CLIENT_CLOSED = "client_closed"
    IDLE_TIMEOUT = "idle_timeout"
    POLICY_CHANGED = "policy_changed"
    SESSION_ENDED = "session_ended"
    BROKER_STOPPED = "broker_stopped"

    @property
    def family(self) -> Family:
        """Tell an allow, a denial, a failure and an end apart."""
        return _FAMILY[self]

    @property
    def status(self) -> int:
        """The HTTP status code that carries this reason (RFC 9110 §15), 0 where none does."""
        return _STATUS.get(self, _FAMILY_STATUS[self.family])


def _span(first: Reason, last: Reason) -> list[Reason]:
    codes = list(Reason)
    return codes[codes.index(first) : codes.index(last) + 1]


_FAMILY: dict[Reason, Family] = {
    **dict.fromkeys(_span(Reason.RULE_ALLOW, Reason.OBSERVED), Family.ALLOW),
    **dict.fromkeys(_span(Reason.EGRESS_OFF, Reason.AUDIT_UNAVAILABLE), Family.DENY),
    **dict.fromkeys(_span(Reason.NAME_NOT_FOUND, Reason.INTERNAL), Family.FAILURE),
    **dict.fromkeys(_span(Reason.FINISHED, Reason.BROKER_STOPPED), Family.END),
}
_FAMILY_STATUS = {Family.ALLOW: 0, Family.DENY: 403, Family.FAILURE: 502, Family.END: 0}
_STATUS = {
    Reason.BAD_AUTHORITY: 400,
    Reason.BAD_NAME: 400,
    Reason.BAD_ADDRESS: 400,
    Reason.BAD_PORT: 400,
    Reason.NAME_MISMATCH: 421,
    Reason.BAD_REQUEST: 400,
    Reason.BAD_FRAMING: 400,
    Reason.BAD_VERSION: 505,
    Reason.HEAD_TOO_LARGE: 431,
    Reason.TARGET_TOO_LONG: 414,
    Reason.MISSING_HOST: 400,
    Reason.METHOD_REFUSED: 405,
    Reason.SCHEME_REFUSED: 400,
    Reason.EXPECTATION_FAILED: 417,
    Reason.UNKNOWN_PROTOCOL: 400,
    Reason.CLIENT_SILENT: 408,
    Reason.HEAD_TIMEOUT: 408,
    Reason.TOO_MANY_CONNECTIONS: 503,
    Reason.RATE_LIMITED: 429,
    Reason.AUDIT_UNAVAILABLE: 503,
    Reason.RESOLVE_TIMEOUT: 504,
    Reason.CONNECT_TIMEOUT: 504,
    Reason.UPSTREAM_TIMEOUT: 504,
    Reason.INTERNAL: 500,
}


class Refusal(Exception):
    """Input of the sandbox (or of its upstream) that cannot be accepted: their fault, never ours.

    `reason` is the stable code; `detail` one short phrase for people, without control characters and without secrets.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
