"""What no rule opens: for each reason code one sentence why, and one what to do instead. A table."""

from typing import Final

from broker.policy.reasons import Reason

_MALFORMED: Final = "No rule is asked about what cannot be read in one way only."
_LIMIT: Final = "A limit was reached, not a rule."
_GRANT: Final = "The grant had ended, and a grant is no part of the policy."

OPENED: Final = frozenset(
    {
        Reason.HOST_NOT_ALLOWED,
        Reason.PORT_NOT_ALLOWED,
        Reason.METHOD_NOT_ALLOWED,
        Reason.PATH_NOT_ALLOWED,
        Reason.QUERY_NOT_ALLOWED,
        Reason.WEBSOCKET_NOT_ALLOWED,
        Reason.PLAIN_HTTP_NOT_ALLOWED,
        Reason.NOT_TLS,
        Reason.ADDRESS_LITERAL,
        Reason.SPECIAL_NAME,
        Reason.ADDRESS_REFUSED,
        Reason.CLIENT_REJECTED_CA,
    }
)
"""Reasons that a rule may turn; what such a record lacks for it is said case by case."""

CLOSED: Final[dict[Reason, tuple[str, str]]] = {
    Reason.EGRESS_OFF: ("Egress was switched off.", "Set enabled = true in [egress] and suggest from a new run."),
    Reason.RULE_DENY: ("A deny rule applied, and deny wins over allow.", "Remove or narrow the deny rule."),
    Reason.GRANT_MISSING: (
        "The policy asks for a grant and the session had none.",
        "Issue a grant for the call, or set require_grant = false in [egress].",
    ),
    Reason.GRANT_EXPIRED: (_GRANT, "Issue a grant that lasts longer."),
    Reason.GRANT_REVOKED: (_GRANT, "Issue a new grant if it was revoked by mistake."),
    Reason.GRANT_EXHAUSTED: ("The grant's budget was used up.", "Issue a grant with larger budgets."),
    Reason.RATE_LIMITED: ("More was asked in a second than the rate allows.", "Ask slower, or raise the grant's rate."),
    Reason.SELF: ("The address is the broker's own.", "Serve what is needed on another address."),
    Reason.BAD_AUTHORITY: (_MALFORMED, "Send a Host field of the form host:port."),
    Reason.BAD_NAME: (_MALFORMED, "Use a valid host name."),
    Reason.BAD_ADDRESS: (_MALFORMED, "Write the address in its one strict form."),
    Reason.BAD_PORT: (_MALFORMED, "Use a port from 1 to 65535."),
    Reason.BAD_CLIENT_HELLO: (_MALFORMED, "Use a TLS client of the standard; if it refuses the authority, trust that."),
    Reason.CLIENT_HELLO_TOO_LARGE: (_LIMIT, "Raise client_hello_bytes in [limits] if the client is known."),
    Reason.TLS_VERSION: ("The client's TLS is too old to be served.", "Use TLS 1.2 or newer."),
    Reason.NO_SNI: ("Without SNI nobody knows which name the upstream would answer for.", "Let the client send SNI."),
    Reason.BAD_SNI: (_MALFORMED, "Use a client that sends one valid name as SNI."),
    Reason.NAME_MISMATCH: (
        "The name asked, the SNI and the Host field did not agree.",
        "Ask for the host that is meant; fronting is never allowed.",
    ),
    Reason.BAD_REQUEST: (_MALFORMED, "Send a request that every server reads alike."),
    Reason.BAD_FRAMING: (_MALFORMED, "Send a body that every server frames alike."),
    Reason.BAD_VERSION: (_MALFORMED, "Use HTTP/1.1 or HTTP/2."),
    Reason.HEAD_TOO_LARGE: (_LIMIT, "Send a smaller head, or raise head_bytes or head_fields in [limits]."),
    Reason.TARGET_TOO_LONG: (_LIMIT, "Send a shorter target, or raise target_bytes in [limits]."),
    Reason.MISSING_HOST: (_MALFORMED, "Send a Host field."),
    Reason.METHOD_REFUSED: ("The broker forwards this method for nobody.", "Do without it."),
    Reason.SCHEME_REFUSED: ("Only http and https are carried.", "Use one of them."),
    Reason.EXPECTATION_FAILED: ("The broker serves no expectation but 100-continue.", "Do without it."),
    Reason.UPGRADE_REFUSED: ("Only WebSocket is carried after an upgrade.", "Use HTTP/2 over TLS, or HTTP/1.1."),
    Reason.DNS_OVER_HTTPS: ("Names are answered by the broker only.", "Use the sandbox's name server."),
    Reason.UNKNOWN_PROTOCOL: ("Only TLS and HTTP/1 are carried.", "Use an HTTPS form of the service."),
    Reason.CLIENT_SILENT: (
        "The client said nothing from which a protocol could be told.",
        "Use a protocol in which the client speaks first.",
    ),
    Reason.HEAD_TIMEOUT: (_LIMIT, "Send the head faster, or raise its seconds in [limits]."),
    Reason.TOO_MANY_CONNECTIONS: (_LIMIT, "Open fewer, or raise session_connections in [limits]."),
    Reason.AUDIT_UNAVAILABLE: ("The log could not be written, and nothing is allowed then.", "Free its disk."),
}

UNKNOWN: Final = ("This version does not know the reason.", "Ask with the version that wrote the record.")
"""For a record of another version, or one that was forged."""
EMPTY_PROTOCOL: Final = (
    "Neither TLS nor HTTP was spoken on the connection, and nothing else is carried.",
    "Use HTTPS; no rule opens raw TCP.",
)
NOWHERE: Final = ("The record names no destination that a rule could name.", "Look at the record itself.")
COUNTED: Final = (
    "These were only counted in a flood of refusals, so their methods and paths are not on record.",
    "Take the rules that the recorded ones give, and suggest again from a new run.",
)
AMBIGUOUS: Final = (
    "Two servers could read this path in two ways, and no rule with paths takes it.",
    "Send an unambiguous path; only a rule without paths would allow this one.",
)
CUT: Final = ("The path was too long to be on record as a whole.", "Write a rule for it by hand.")
NARROW_GRANT: Final = ("The policy allows it; the session's grant is narrower.", "Issue a wider grant.")
HAS_IT: Final = ("The policy given allows it now.", "Nothing is needed.")
TOO_MANY: Final = ("A suggestion holds a bounded number of destinations.", "Ask for one host with --host.")
NO_SUCH_ADDRESS: Final = ("No rule opens an address of this class.", "Reach the service by another address.")
PLATFORM: Final = (
    "Metadata and platform addresses hand out the machine's own credentials.",
    "Give the sandbox what it needs in another way.",
)
UNTOLD_ADDRESS: Final = ("The record does not say which single address was refused.", "Look at the record's detail.")
INSPECTED_TOO: Final = (
    "A client refused the broker's authority, but others to this host accept it, and one host has one plane.",
    'Let that client trust the bundle, or write a rule with tls = "splice" instead of those for this host.',
)
