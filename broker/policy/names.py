"""Host names: from untrusted text to one canonical form.

Decides whether a text is a host name and what its one spelling is: ASCII, lower case, valid A-labels, no trailing dot.
Everything that two parsers could read differently is refused, never repaired. The module resolves nothing and matches
nothing; names are compared in this form only, never in Unicode (homographs are different names).
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final, NewType

import idna

from broker.policy.public_resolvers import is_public_resolver
from broker.policy.reasons import Reason, Refusal
from broker.policy.special_names import SpecialName, classify_special

__all__ = [
    "HostName",
    "SpecialName",
    "classify_name",
    "display_name",
    "is_public_resolver",
    "parse_config_name",
    "parse_host_name",
]

HostName = NewType("HostName", str)
"""A canonical host name. Only the parsers of this module make one."""

MAX_NAME: Final = 253  # RFC 1035 §2.3.4: 255 octets on the wire, without the first length and the root
MAX_LABEL: Final = 63
_CACHED: Final = 4096  # entries of at most a few hundred bytes, so that hostile names cannot hold much memory

# RFC 1123 §2.1. Here the last label starts with a letter, so nothing that matches can be an address in any notation;
# rarer names are examined. Underscores are allowed (RFC 2181 §11; service labels such as _dmarc are ordinary).
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_ORDINARY: Final = re.compile(rf"(?:{_LABEL}\.)*[a-z](?:[a-z0-9_-]{{0,61}}[a-z0-9_])?")
_ANY_LABEL: Final = re.compile(_LABEL)
_FOREIGN: Final = re.compile(r"[^a-z0-9_.-]")
# What some parser reads as a number: decimal and octal digits, digit separators, 0x, 0o and 0b prefixes. No top-level
# domain looks like this (RFC 3696 §2), and `inet_aton` reads `127.1`, `0x7f.1` and `017700000001` as loopback.
_NUMERIC: Final = re.compile(r"[0-9][0-9_]*|0[xob][0-9a-f_]*")


def parse_host_name(text: str) -> HostName:
    """Normalise a name that a client sent: lower case, exactly one trailing dot removed.

    Raises `Refusal`: `BAD_ADDRESS` where the last label is a number (an address, or an attempt to write one), else
    `BAD_NAME`. Sources: RFC 1123 §2.1, RFC 5891 §4 and §5.
    """
    if len(text) > MAX_NAME + 1:  # first, so that neither the cache nor a pattern sees long input
        raise _bad(f"longer than {MAX_NAME} characters")
    return _parse(text)


@lru_cache(maxsize=_CACHED)
def _parse(text: str) -> HostName:
    if not text.isascii():  # before lower(): U+212A KELVIN SIGN and U+0130 lower to ASCII letters
        raise _bad("not ASCII; internationalised names are sent as A-labels")
    name = text.lower().removesuffix(".")
    if len(name) > MAX_NAME:
        raise _bad(f"longer than {MAX_NAME} characters")
    if _ORDINARY.fullmatch(name) is None:
        _examine(name)
    if "xn--" in name:
        _check_a_labels(name)
    return HostName(name)


def _examine(name: str) -> None:
    """Raise for the first thing that is wrong with a name that is not of the ordinary kind; return if nothing is."""
    if not name:
        raise _bad("empty")
    foreign = _FOREIGN.search(name)
    if foreign is not None:
        raise _bad(f"character U+{ord(foreign[0]):04X} is not allowed")
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        raise Refusal(Reason.BAD_ADDRESS, "the last label is a number: only strict address literals are understood")
    for label in labels:
        _check_label(label)


def _check_label(label: str) -> None:
    if not label:
        raise _bad("empty label")
    if len(label) > MAX_LABEL:
        raise _bad(f"label longer than {MAX_LABEL} characters")
    if _ANY_LABEL.fullmatch(label) is None:
        raise _bad("label starts or ends with a hyphen")


def _check_a_labels(name: str) -> None:
    """Every A-label decodes to a valid U-label and encodes to itself again (RFC 5891 §5.4).

    A name with a right-to-left label obeys the Bidi rule in all its labels (RFC 5893 §2), so that none is displayed as
    another.
    """
    decoded = [_decode_label(label) for label in name.split(".")]
    if any(unicodedata.bidirectional(char) in {"R", "AL", "AN"} for label in decoded for char in label):
        for label in decoded:
            try:
                idna.check_bidi(label, check_ltr=True)
            except idna.IDNAError:
                raise _bad("mixes writing directions (RFC 5893)") from None


def _decode_label(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        decoded = idna.ulabel(label)
        encoded = idna.alabel(decoded).decode("ascii")
    except (UnicodeError, ValueError, OverflowError, IndexError):  # the punycode codec of the language raises more
        raise _bad(f"invalid A-label {label}") from None
    if decoded.isascii() or encoded != label:
        raise _bad(f"A-label {label} does not stand for itself")
    return decoded


def parse_config_name(text: str) -> HostName:
    """Normalise a name that an operator wrote: as `parse_host_name`, but Unicode is mapped to A-labels.

    Mapping is UTS #46 without its silent removals: a code point that would disappear (a soft hyphen, a zero-width
    space) is refused, because the reader of the file cannot see it. Deviation characters (sharp s, final sigma, the
    joiners) keep their IDNA 2008 meaning. Raises `Refusal` as `parse_host_name` does.
    """
    if len(text) > MAX_NAME + 1:
        raise _bad(f"longer than {MAX_NAME} characters")
    if text.isascii():
        return parse_host_name(text)
    try:
        for char in text:
            if not idna.uts46_remap(char, std3_rules=False):
                raise _bad(f"invisible character U+{ord(char):04X}")
        labels = idna.uts46_remap(text, std3_rules=False).split(".")
        encoded = [label if label.isascii() else idna.alabel(label).decode("ascii") for label in labels]
    except (UnicodeError, ValueError, OverflowError, IndexError):
        raise _bad("not a valid internationalised name (IDNA 2008)") from None
    return parse_host_name(".".join(encoded))


def display_name(host: HostName) -> str:
    """Show a name to people: the A-label form first and, where it differs, the Unicode form in brackets beside it.

    Total: a name of an old record that this version no longer decodes is shown as it is.
    """
    try:
        shown = ".".join(_decode_label(label) for label in host.split("."))
    except Refusal:
        return host
    return host if shown == host else f"{host} ({shown})"


@lru_cache(maxsize=_CACHED)
def classify_name(host: HostName) -> SpecialName | None:
    """Return the class of a special name, `None` for an ordinary one. Total; see `SpecialName`."""
    return classify_special(host)


def _bad(why: str) -> Refusal:
    return Refusal(Reason.BAD_NAME, f"host name: {why}")
