"""Path patterns of rules, matched against the raw path that will be forwarded.

Nothing is decoded, collapsed or rewritten here: a path that two servers could read in two ways (dot segments, encoded
separators, parameters, double encoding …) is called ambiguous, and no rule that restricts paths accepts it. The one
equivalence used is RFC 3986 §6.2.2.1: the hex digits of an escape compare without case. Case counts, except for a
denial: there every path counts that some server takes for a denied one.

Patterns: a segment is literal, `*` (one non-empty segment), or holds one `*` for at least one character of it. `/**` at
the end stands for anything below the slash (not for the path without it); in the middle for any number of segments. One
`**` a pattern, so that matching is linear.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import msgspec

from broker.policy.problems import Mistake, quote

MAX_PATTERN: Final = 2048

# pchar of RFC 3986 §3.3 without ";" (matrix parameters: "/admin;x" is "/admin" to some servers) and "%", plus the
# characters that URL Standard parsers leave alone in a path. "\\" is a separator to some servers and never plain.
_PLAIN = r"A-Za-z0-9\-._~!$&'()*+,=:@\[\]|^{}"
# Whole path in one pass: no empty segment but the last (so no "//"), no "." or ".." segment, no escape.
_SIMPLE = re.compile(rf"(?:/(?!\.{{1,2}}(?:/|\Z))[{_PLAIN}]+)*/?\Z").match
_ESCAPED = re.compile(rf"(?:/(?!\.{{1,2}}(?:/|\Z))(?:[{_PLAIN}]|%[0-9A-Fa-f]{{2}})+)*/?\Z").match
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_LOWER_ESCAPE = re.compile(r"%(?:[a-f]|[0-9A-F][a-f])")
_CONTROL = re.compile(r"[\x00-\x20\x7f]").search
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Encoded separators, and "%25", whose second decoding yields any of them.
_MEANINGFUL = frozenset(b"/\\;%")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a pattern: literal, or `prefix*suffix` when `wild`."""

    prefix: str
    suffix: str = ""
    wild: bool = False

    def matches(self, segment: str) -> bool:
        """Match one segment of a canonical path; a star stands for at least one character."""
        if not self.wild:
            return segment == self.prefix
        return (
            len(segment) > len(self.prefix) + len(self.suffix)
            and segment.startswith(self.prefix)
            and segment.endswith(self.suffix)
        )

    def covers(self, other: "Segment") -> bool:
        """Tell whether everything that `other` matches is matched here."""
        if not other.wild:
            return self.matches(other.prefix)
        return self.wild and other.prefix.startswith(self.prefix) and other.suffix.endswith(self.suffix)


class PathPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed pattern: `head`, then, when `deep`, any segments, then `tail`. `text` is what the operator wrote."""

    text: str
    head: tuple[Segment, ...]
    deep: bool = False
    tail: tuple[Segment, ...] = ()
    # Fast ways for the two commonest shapes; empty where the general way is needed.
    literal: str = ""
    under: str = ""

    def matches(self, path: str) -> bool:
        """Match a canonical path (see `canonical_path`)."""
        if self.literal:
            return path == self.literal
        if self.under:
            return path.startswith(self.under)
        head, tail = self.head, self.tail
        segments = path.count("/")  # counted first, and no more of them are cut off than are looked at
        if not self.deep:
            return segments == len(head) and _each(head, path.split("/")[1:])
        # At the end "**" needs a slash before what it stands for: at least one segment, which may be empty.
        return (
            segments >= len(head) + (len(tail) or 1)
            and _each(head, path.split("/", len(head) + 1)[1:])
            and (not tail or _each(tail, path.rsplit("/", len(tail))[1:]))
        )

    def covers(self, other: "PathPattern") -> bool:
        """Tell whether every path of `other` is provably one of these. Sound, not complete: a doubt is a no."""
        if not self.deep:
            return not other.deep and len(other.head) == len(self.head) and _each_covers(self.head, other.head)
        if len(other.head) < len(self.head) or not _each_covers(self.head, other.head):
            return False
        if not self.tail:
            least = len(other.head) + ((len(other.tail) or 1) if other.deep else 0)
            return least > len(self.head)
        ends = other.tail if other.deep else other.head[len(self.head) :]
        return len(ends) >= len(self.tail) and _each_covers(self.tail, ends[len(ends) - len(self.tail) :])


def _each(patterns: tuple[Segment, ...], segments: list[str]) -> bool:
    return all(pattern.matches(segment) for pattern, segment in zip(patterns, segments, strict=False))


def _each_covers(wide: tuple[Segment, ...], narrow: tuple[Segment, ...]) -> bool:
    return all(one.covers(other) for one, other in zip(wide, narrow, strict=False))


def canonical_path(path: str) -> str | None:
    """Return the form of a raw request path that patterns are compared with, `None` for an ambiguous one.

    The form differs from the raw path in the case of hex digits only, so that what was judged is what is forwarded.
    """
    if path and _SIMPLE(path):
        return path
    return _examined(path)


# One request is compared with many rules, and a long path takes milliseconds to examine.
@lru_cache(maxsize=16)
def _examined(path: str) -> str | None:
    return None if path_fault(path) else _upper_escapes(path)


def _upper_escapes(text: str) -> str:
    return _ESCAPE.sub(lambda escape: escape.group().upper(), text) if _LOWER_ESCAPE.search(text) else text


# A stream of a file by its full name, which file systems of Windows take for the file (`x::$DATA`).
_STREAM = re.compile(r":[^:/]*:\$[a-z_]+\Z")


@lru_cache(maxsize=16)
def deny_forms(path: str) -> tuple[str, ...]:
    """Return the forms of a raw request path that deny rules are compared with; none for an ambiguous one."""
    canonical = canonical_path(path)
    if canonical is None:
        return ()
    folded = fold(canonical)
    # What file systems and servers of Windows drop at the end of a name; a segment of nothing else is gone whole. Split
    # first: a pattern that looks for the ends would go through a long run of dots once for each of them.
    kept = [name for part in folded.split("/") if (name := _STREAM.sub("", part).rstrip(". "))]
    # A slash at the end is none to most servers.
    short = "/" + "/".join(kept)
    forms = (folded, short, f"{short}/") if folded.endswith("/") and kept else (folded, short)
    return tuple(dict.fromkeys(forms))


def path_fault(path: str) -> str | None:
    """Say why a raw path is ambiguous, in a short phrase; `None` for a clear one."""
    if not path.startswith("/"):
        return "it does not start with a slash"
    for fault, present in (
        ("it holds a control character or a space", _CONTROL(path)),
        ("it holds a character outside ASCII", not path.isascii()),
        ("it holds a backslash", "\\" in path),
        ("it holds a parameter (;)", ";" in path),
        ("it holds an empty segment (//)", "//" in path),
        ("it holds a dot segment", any(map(_is_dots, path.split("/")))),
    ):
        if present:
            return fault
    if not _ESCAPED(path):
        return (
            "it holds a malformed escape"
            if "%" in _ESCAPE.sub("", path)
            else "it holds a character that needs an escape"
        )
    return escape_fault(path)


def _is_dots(segment: str) -> bool:
    """Whether a segment is `.` or `..`, to servers that drop blanks at its ends too."""
    return segment.replace("%20", "") in {".", ".."}


def escape_fault(text: str) -> str | None:
    """Say which escape of a path or query makes it ambiguous: two spellings of one text, or a hidden separator."""
    octets = dict.fromkeys(_ESCAPE.findall(text))  # each once: a text may hold thousands, of a few kinds
    for octet in octets:
        value = int(octet, 16)
        if value in _UNRESERVED:
            return f"it escapes an ordinary character (%{octet})"
        if value in _MEANINGFUL or value < 0x20 or value == 0x7F:
            return f"it escapes a separator, a percent sign or a control character (%{octet})"
    return _unicode_fault(text) if any(octet[0] >= "8" for octet in octets) else None


def _unicode_fault(text: str) -> str | None:
    try:
        decoded = unquote(text, errors="strict")  # an overlong form (%c0%af) is a slash to lenient decoders
    except UnicodeDecodeError:
        return "its escapes are not UTF-8"
    for char in dict.fromkeys(decoded):
        # A best-fit mapping turns U+FF0F into a slash and U+FF0E into a dot on some servers.
        if ord(char) > 0x7F and (unicodedata.category(char)[0] == "C" or not _stays_foreign(char)):
            return f"it escapes a look-alike or an invisible character (U+{ord(char):04X})"
    return None


# Best-fit tables of single-byte and East Asian code pages (CP1252, CP932, CP949, …) turn these into a slash or a
# backslash, which normalisation does not tell.
_SLASHES_TO_SOME: Final = frozenset("\u2044\u2215\u2216\u29f5\u29f8\u29f9\u2571\u2572\u00a5\u20a9")


def _stays_foreign(char: str) -> bool:
    if char in _SLASHES_TO_SOME:
        return False
    folded = unicodedata.normalize("NFKC", char)
    return not any(ord(part) < 0x80 for part in folded)


def parse_path_pattern(text: str) -> PathPattern:
    """Parse one entry of a rule's `paths`; raises `Mistake` with the corrected spelling."""
    _check_pattern(text)
    canonical = _upper_escapes(text)
    parts = canonical.split("/")[1:]
    if parts.count("**") > 1:
        raise Mistake(f"path {quote(text)} holds more than one **", "one ** a path", None)
    if "**" not in parts:
        segments = tuple(_parse_segment(part, text) for part in parts)
        plain = not any(segment.wild for segment in segments)
        return PathPattern(text=text, head=segments, literal=canonical if plain else "")
    at = parts.index("**")
    head = tuple(_parse_segment(part, text) for part in parts[:at])
    tail = tuple(_parse_segment(part, text) for part in parts[at + 1 :])
    plain = not tail and not any(segment.wild for segment in head)
    return PathPattern(text=text, head=head, deep=True, tail=tail, under=canonical[:-2] if plain else "")


def parse_deny_pattern(text: str) -> PathPattern:
    """Parse one entry of a deny rule's `paths`, to be compared with `deny_forms`; raises `Mistake` too."""
    pattern = parse_path_pattern(text)
    return msgspec.structs.replace(
        pattern,
        head=_fold_each(pattern.head),
        tail=_fold_each(pattern.tail),
        literal=fold(pattern.literal),
        under=fold(pattern.under),
    )


def _fold_each(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return tuple(msgspec.structs.replace(one, prefix=fold(one.prefix), suffix=fold(one.suffix)) for one in segments)


def fold(clear: str) -> str:
    """Decode, and take for one what file systems and databases may: case, composition, accents, what is unseen."""
    if clear.isascii() and "%" not in clear:
        return clear.lower()
    text = unicodedata.normalize("NFD", unquote(clear, errors="strict")).casefold()
    return unicodedata.normalize("NFC", _UNSEEN.sub("", unicodedata.normalize("NFD", text)).translate(_STROKES))


# Marks on letters of any script that has capitals, and what is ignored by default (Unicode, DerivedCoreProperties)
# without being of a category that makes a path ambiguous.
_UNSEEN: Final = re.compile(
    "[\u0300-\u036f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
# No marks to Unicode. The dotless i has the capital I.
_STROKES: Final = str.maketrans("\u0131\xf8\u0111\u0142\u0127\u0167", "iodlht")


def _check_pattern(text: str) -> None:
    if not text or len(text) > MAX_PATTERN:
        raise Mistake(
            f"path of {len(text)} characters", f"1 to {MAX_PATTERN} characters", '"/**"' if not text else None
        )
    if "://" in text:
        path = "/" + text.partition("://")[2].partition("/")[2].partition("?")[0]
        raise Mistake(f"path {quote(text)} is a URL", "the path alone; the host goes into hosts", quote(path))
    if text.startswith("^") or text.endswith("$"):
        meant = text.strip("^$").replace("/.*", "/**")
        raise Mistake(f"path {quote(text)} is a regular expression", "* for a segment, ** for several", _cure(meant))
    if not text.startswith("/"):
        raise Mistake(f"path {quote(text)} does not start with a slash", "an absolute path", quote("/" + text))
    for mark, key in (("?", "query"), ("#", None)):
        if mark in text:
            cure = f"the path alone; parameters go into {key}" if key else "no fragment: it is never sent"
            raise Mistake(f"path {quote(text)} holds {mark}", cure, quote(text.partition(mark)[0]))
    fault = path_fault(text)
    if fault is not None:
        raise Mistake(
            f"path {quote(text)} can never match: {fault}",
            "a path as a client sends it, without ambiguity",
            _cure(text),
        )


def _cure(text: str) -> str | None:
    plain = re.sub(r"/{2,}", "/", text.partition(";")[0])
    plain = _ESCAPE.sub(lambda e: chr(int(e.group(1), 16)) if int(e.group(1), 16) in _UNRESERVED else e.group(), plain)
    plain = "".join(
        char if char.isascii() and char != " " else "".join(f"%{b:02X}" for b in char.encode()) for char in plain
    )
    return quote(plain) if path_fault(plain) is None else None


def _parse_segment(part: str, text: str) -> Segment:
    if "*" not in part:
        return Segment(prefix=part)
    if part.count("*") > 1:
        raise Mistake(
            f"path {quote(text)} holds the segment {quote(part)}",
            "one * a segment, or ** as a segment of its own",
            None,
        )
    prefix, _, suffix = part.partition("*")
    return Segment(prefix=prefix, suffix=suffix, wild=True)
