"""Host patterns of rules: an exact name, `*.x`, `?.x`, or a literal address.

`*.x` stands for names below x at any depth and `?.x` for names exactly one label below; neither is ever x itself, and
neither ever reaches a special name. Decides how a pattern is spelled and what it stands for; resolves nothing.
"""

import re
from enum import Enum
from typing import Final

import msgspec

from broker.policy.addresses import Address, canonical_address, parse_address
from broker.policy.names import HostName, classify_name, is_public_resolver, parse_config_name
from broker.policy.problems import Mistake, quote
from broker.policy.reasons import Refusal
from broker.policy.suffixes import is_private_section, is_public_suffix, suffix_below


class HostKind(Enum):
    """The four kinds of pattern; the value is what stands before the name."""

    EXACT = ""
    ONE_LABEL = "?."
    ANY_DEPTH = "*."
    ADDRESS = "address"


class HostPattern(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is the name or address itself, or the name that a wildcard stands above."""

    kind: HostKind
    host: HostName | Address

    @property
    def text(self) -> str:
        """The canonical spelling: A-labels, lower case, addresses without brackets."""
        return str(self.host) if self.kind is HostKind.ADDRESS else f"{self.kind.value}{self.host}"

    def matches(self, host: HostName | Address) -> bool:
        """Tell whether a normalised host is one of those this pattern stands for."""
        match self.kind:
            case HostKind.EXACT | HostKind.ADDRESS:
                return host == self.host
            case HostKind.ONE_LABEL:
                return isinstance(host, str) and host.partition(".")[2] == self.host
            case HostKind.ANY_DEPTH:
                return isinstance(host, str) and host.endswith(f".{self.host}")

    def covers(self, other: "HostPattern") -> bool:
        """Tell whether every host that `other` stands for is one of these."""
        match other.kind:
            case HostKind.ADDRESS:
                return self == other
            case HostKind.EXACT:
                # Such a name is only reached by a rule that names it, so a wildcard does not hand it on.
                name = HostName(str(other.host))
                return self == other or (self.matches(name) and not _only_named(name))
            case HostKind.ONE_LABEL:
                return self == other or (self.kind is HostKind.ANY_DEPTH and self._above(other))
            case HostKind.ANY_DEPTH:
                return self.kind is HostKind.ANY_DEPTH and self._above(other)

    def _above(self, other: "HostPattern") -> bool:
        return other.host == self.host or self.matches(other.host)


def _only_named(name: HostName) -> bool:
    return classify_name(name) is not None or is_public_resolver(name)


# A name may begin with a number of any notation; one that ends with it is refused as a name is.
_ADDRESS_LIKE: Final = re.compile(r"\[.*\]|.*:.*:.*|[0-9.]+|(?:[0-9a-fA-FxX]+\.)*0[xX][0-9a-fA-F]*")
_WILDCARD: Final = re.compile(r"(\*|\?)\.(.+)", re.DOTALL)


def parse_host_pattern(text: str, *, private_suffix_ok: bool = False) -> HostPattern:
    """Parse one entry of a rule's `hosts`. International names become A-labels.

    `private_suffix_ok` lets a wildcard stand over a suffix of the list's private section (a hosting network's), never
    over a registry's. Raises `Mistake` with the corrected spelling.
    """
    _refuse_foreign_forms(text)
    if _ADDRESS_LIKE.fullmatch(text):
        return _parse_literal(text)
    wildcard = _WILDCARD.fullmatch(text)
    if wildcard is None:
        if "*" in text or "?" in text:
            raise Mistake(f"host {quote(text)} has a wildcard inside a label", _WILDCARDS, _wildcard_cure(text))
        return HostPattern(kind=HostKind.EXACT, host=_parse_exact(text))
    kind = HostKind.ANY_DEPTH if wildcard[1] == "*" else HostKind.ONE_LABEL
    name = _parse_name(wildcard[2], text)
    _refuse_wide(name, kind, text, private_suffix_ok=private_suffix_ok)
    return HostPattern(kind=kind, host=name)


_WILDCARDS: Final = 'a wildcard is "*.name" (any depth) or "?.name" (one label)'


def _refuse_foreign_forms(text: str) -> None:
    shown = f"host {quote(text)}"
    if not text.strip():
        raise Mistake(f"{shown} is empty", "a host name, *.name, ?.name or an address")
    if text != text.strip():
        raise Mistake(f"{shown} has blanks around it", "the host alone", quote(text.strip()))
    several = re.split(r"[\s,;|]+", text)
    if len(several) > 1:
        cure = ", ".join(map(quote, several)) if all("." in one for one in several) else None
        raise Mistake(f"{shown} holds several hosts", "one host an entry, without blanks", cure)
    if "://" in text:
        raise Mistake(f"{shown} is a URL", "the host alone; ports and paths have keys of their own", quote(_bare(text)))
    if "@" in text or "/" in text:
        cure = None if "@" in text or text.startswith("/") else quote(_bare(text))
        network = re.fullmatch(r"[0-9a-fA-F:.]+/\d+", text)
        expected = "a network goes into addresses, beside the host names it serves" if network else "the host alone"
        raise Mistake(f"{shown} is not a host", expected, f"addresses = [{quote(text)}]" if network else cure)
    if text.startswith("."):
        raise Mistake(f"{shown} starts with a dot", _WILDCARDS, quote(f"*{text}"))
    if text in {"*", "?", "*.", "**", "*.*", "0.0.0.0/0"}:
        raise Mistake(f"{shown} stands for every host", 'name the hosts; to see what is used, set mode = "observe"')
    port = re.fullmatch(r"(\[[^\]]*\]|[^:]+):(\d+)", text)
    if port:
        raise Mistake(
            f"{shown} has a port",
            "the host alone; the port goes into ports",
            f"hosts = [{quote(port[1])}], ports = [{port[2]}]",
        )


def _bare(text: str) -> str:
    rest = text.partition("://")[2] or text
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return re.sub(r":\d*\Z", "", authority)


def _parse_literal(text: str) -> HostPattern:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    address = parse_address(inner)
    if address is None:
        raise Mistake(f"host {quote(text)} is not an address", "four decimal numbers without leading zeros, or IPv6")
    return HostPattern(kind=HostKind.ADDRESS, host=canonical_address(address))


def _parse_exact(text: str) -> HostName:
    name = _parse_name(text, text)
    special = classify_name(name)
    if special is not None and not special.grantable:
        raise Mistake(f"host {quote(text)} is a {special.value}", "no such entry: no rule can open it")
    return name


def _parse_name(name: str, text: str) -> HostName:
    try:
        return parse_config_name(name)
    except Refusal as refusal:
        raise Mistake(f"host {quote(text)} is not a host name", refusal.detail) from None


def _refuse_wide(name: HostName, kind: HostKind, text: str, *, private_suffix_ok: bool) -> None:
    special = classify_name(HostName(f"any.{name}"))
    if special is not None:
        zone = f"host {quote(text)} stands over special names ({special.value})"
        raise Mistake(zone, "name each host: a wildcard never reaches one")
    below = None if is_public_suffix(name) or kind is HostKind.ONE_LABEL else suffix_below(name)
    suffix = name if is_public_suffix(name) else below
    if suffix is None:
        return
    private = is_private_section(suffix)
    if private and private_suffix_ok:
        return
    cover = f"{quote(text)} covers the public suffix {suffix}, where anybody can have a name"
    cure = "or set allow_public_suffix = true in the rule" if private else "a wildcard needs a name that somebody owns"
    raise Mistake(f"host {cover}", f"name the hosts you mean, {cure}", quote(f"{kind.value}yours.{suffix}"))


def _wildcard_cure(text: str) -> str | None:
    tail = text.rpartition("*")[2].rpartition("?")[2].lstrip("-_.")
    return quote(f"*.{tail}") if "." in tail else None
