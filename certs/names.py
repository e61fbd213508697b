"""Decide which names a leaf may carry, and whether a certificate's name covers a host. No I/O.

Names arrive normalised (lower case, A-labels, no trailing dot); what is not, is refused, never repaired: a leaf for a
name that the policy did not judge would be a way around it.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from certs.errors import UnusableNameError

type Address = IPv4Address | IPv6Address
type LeafName = str | Address

# RFC 5890 LDH labels, and the underscore that real hosts use; hyphens stay inside (RFC 1123 §2.1)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
# Registries that register directly below their top-level name only; most certificates never need the whole list.
_FLAT = frozenset({"com", "net", "org"})
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)


def parse_leaf_name(text: str) -> LeafName:
    """Parse the one name of a leaf: a DNS name, or a literal address (IPv6 without brackets and zone).

    Raises `UnusableNameError` for everything else: wildcards, upper case, trailing dots, `127.1` and its like.
    """
    if ":" in text or _NUMERIC.fullmatch(text.rpartition(".")[2]):
        return _parse_address(text)
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in text.split(".")):
        raise UnusableNameError(f"not a host name that a certificate can carry: {text[:80]!a}")
    return text


def _parse_address(text: str) -> Address:
    try:
        address = ip_address(text)
    except ValueError:
        raise UnusableNameError(f"not an address in its canonical form: {text[:80]!a}") from None
    # a zone id has no place in an iPAddress name (RFC 5280 §4.2.1.6)
    if getattr(address, "scope_id", None) is not None or str(address) != text:
        raise UnusableNameError(f"not an address in its canonical form: {text[:80]!a}")
    return address


def is_address(host: str) -> bool:
    """Tell a literal address from a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@cache
def read_suffixes() -> str:
    """The text of the Public Suffix List. Called ahead where it may not be readable later."""
    import publicsuffixlist  # noqa: PLC0415

    return Path(publicsuffixlist.__file__).with_name("public_suffix_list.dat").read_text("utf-8")


@cache
def _icann_suffixes() -> Callable[[str], bool]:
    from publicsuffixlist import PublicSuffixList  # noqa: PLC0415  (50 ms that only a wildcard certificate costs)

    # The registries' section only: `*.github.io` is a certificate that its owner may hold, `*.co.uk` is nobody's.
    return PublicSuffixList(read_suffixes(), only_icann=True).is_public


def is_registry_suffix(name: str) -> bool:
    """Whether `name` is a registry's own suffix, such as `com` or `co.uk`, under which strangers register."""
    parent, _, top = name.rpartition(".")
    return (not parent or top not in _FLAT) and _icann_suffixes()(name)


def covers(pattern: str, host: str) -> bool:
    """Whether a dNSName covers a host (RFC 9525 §6.3): exact, or one whole leftmost label as `*`.

    A wildcard directly under a registry's suffix covers nothing. Underscores are ordinary characters here.
    """
    pattern, host = pattern.lower(), host.lower()
    if "*" not in pattern:
        return pattern == host
    head, _, parent = pattern.partition(".")
    label, _, host_parent = host.partition(".")
    if head != "*" or "*" in parent or "." not in parent or not label or parent != host_parent:
        return False
    return not is_registry_suffix(parent)


def any_covers(alternatives: Iterable[tuple[str, str]], host: str) -> bool:
    """Whether one of the subjectAltName entries, as `ssl` gives them, covers the host."""
    if is_address(host):
        wanted = ip_address(host)
        return any(kind == "IP Address" and _same_address(value, wanted) for kind, value in alternatives)
    return any(kind == "DNS" and covers(value, host) for kind, value in alternatives)


def _same_address(text: str, wanted: Address) -> bool:
    try:
        return ip_address(text.strip()) == wanted
    except ValueError:
        return False
