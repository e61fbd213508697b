"""Takes secrets out of what is recorded: query values, userinfo, credentials by name, tokens by their look.

Pure. A redacted value becomes `*`, nothing derived from it is kept (a digest of a short secret can be guessed). What
cannot be told from a secret is treated as one; the price is that some long identifiers are hidden, too. It must not
touch hosts, session, call and grant ids: they are what a reader searches for.
"""

import re
import string
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "*"
_ESCAPES: Final = 6
_SHORT: Final = 512  # paths up to here are remembered, without their queries
_INPUT_LIMIT: Final = 2048  # characters that are looked at: twice what is kept; the rest is cut before it is judged
_PARTS: Final = 128  # segments and parameters that are: a target of nothing else costs as much as a hundred requests
_SEPARATOR: Final = re.compile(r"[/?&;,]")

# Forms that issuers publish for secret scanners, and JSON Web Tokens (RFC 7519: base64url of '{"' starts with "eyJ").
_KNOWN: Final = re.compile(
    r"""
      eyJ[\w-]{8,}(?:\.[\w-]*){0,4}
    | \b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|APKA|AROA)[A-Z0-9]{12,}
    | \b(?:gh[pousr]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-|glrt-)[\w-]{10,}
    | \bxox[a-z](?:\.xox[a-z])?-[\w-]{8,} | \bxapp-[\w-]{8,}
    | \b[srpw][kh](?:_(?:live|test|prod)_|sec_|-)[\w-]{12,}
    | \bAIza[\w-]{20,} | \bya29\.[\w-]{8,} | \bGOCSPX-[\w-]{10,}
    | \bnpm_\w{20,} | \bpypi-[\w-]{16,} | \bhf_\w{16,} | \bdop_v1_\w{16,} | \bdckr_(?:pat|oat)_[\w-]{10,}
    | \bhv[sbr]\.[\w-]{16,} | \bSG\.[\w-]{8,}(?:\.[\w-]+)? | \bshp(?:at|ca|pa|ss)_\w{16,} | \bsq0\w{3}-[\w-]{10,}
    | \bbot\d{5,}:[\w-]{16,} | \b\d{6,12}:AA[\w-]{20,} | \bATATT3[\w=-]{16,} | \blin_(?:api|oauth)_\w{16,}
    | \bnvapi-[\w-]{16,} | \bAGE-SECRET-KEY-1\w{16,} | -----BEGIN[^-]{0,40}PRIVATE\ KEY
    """,
    re.VERBOSE | re.ASCII,
)
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{20,}", re.ASCII)
_PART: Final = re.compile(r"[A-Za-z0-9]{20,}", re.ASCII)
_HEX_KEY: Final = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
# A content digest names public bytes; registries put it into every path (OCI distribution, §pulling blobs).
_DIGEST: Final = re.compile(r"sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})", re.ASCII)
_CREDENTIAL_NAME: Final = re.compile(
    r"""(?:^|[_.\s$!'()*+@~|-]|(?<=[a-z])(?=[A-Z]))
    (?:pass(?:word|wd|phrase|code)?|passwords?|pwd?|secret|secrets|token|tokens|api_?-?keys?|apikeys?|access_?-?keys?
       |private_?-?keys?|credentials?|creds?|auth|authorization|signature|sig|jwt|bearer|sessions?|session_?-?ids?
       |sessionid|jsessionid|phpsessid|sid|otp|totp|pin|cookie|hmac|webhooks?|hooks
       |magic_?-?links?|one_?-?time|reset|verify|verification|activate|activation|confirm|confirmation
       |invites?|invitations?|unsubscribe)$""",
    re.VERBOSE | re.IGNORECASE,
)
_NO_STEP: Final = ("", ".")
_SIGNS: Final = string.punctuation + string.whitespace + "\0"
_PLAIN_NAME: Final = re.compile(r"[a-z0-9_.[\]-]{0,24}", re.ASCII)
_PLAIN_WORD: Final = re.compile(r"[a-z]{1,15}|v\d{1,2}|[\w-]{1,24}\.[a-z]{2,5}", re.ASCII)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:/+", re.ASCII | re.IGNORECASE)
_USERINFO: Final = re.compile(r"(?<=//)[^/?#\s]*@")
# Without the slashes, which proxies fold and people forget; a scope (`/@org/x`), an address of mail and a version
# (`/x@v1`) have no colon before the sign.
_BARE_USERINFO: Final = re.compile(r"""(?<![^/\s"'=(,])[^/?#\s:@"'=(,]{1,128}:[^/?#\s@]{1,256}@""")
_COOKIES: Final = re.compile(r"\b((?:set-)?cookie\s*:\s*)[^\n]+", re.IGNORECASE)
_SLACK_HOOK: Final = re.compile(r"\b(T[A-Z0-9]{7,}/B[A-Z0-9]{7,}/)[A-Za-z0-9]+", re.ASCII)
_HEADER: Final = re.compile(r"\b(bearer|basic|digest|negotiate|token|apikey)([\s:]+)\S+", re.IGNORECASE)
_PAIR: Final = re.compile(
    r"""(?P<name>[\w.-]{1,64})(?P<sign>["']?\s*[=:]\s*["']?)(?P<value>[^\s&;,"']+)""",
    re.ASCII,
)
_QUERY_IN_TEXT: Final = re.compile(r"(?<=\w|/)\?[^\s\"'<>]+")
_SUSPECT_SIGN: Final = re.compile(r"[#;=@%:&]|[\w.-]{20}", re.ASCII)
_SUSPECT_NAME: Final = re.compile(
    r"pass|pwd?|secret|token|key|cred|auth|sig|jwt|bearer|otp|sid|session|cookie|hmac|hook|pin|magic|time|reset|verif"
    r"|activat|confirm|invit|unsubscribe"
)
_SUSPECT_TEXT: Final = re.compile(r"[=@?:]|[\w.-]{16}|(?i:bearer|basic|digest|token|negotiate|apikey)")


def redact_target(target: str) -> str:
    """Return a request target (RFC 9112 §3.2, any form) fit for the log: path kept, query values and secrets hidden."""
    if target[:1] != "/" and "@" in target:
        target = _hide_userinfo(target)
    if "#" not in target and len(target) <= _SHORT and (len(target) <= _PARTS or not _has_many_parts(target)):
        path, mark, query = target.partition("?")
        return _redact_short_path(path) + mark + _redact_query(query) if mark else _redact_short_path(path)
    head, hash_sign, _ = _bound(target).partition("#")
    path, mark, query = head.partition("?")
    query = _redact_query(query)
    return f"{_redact_path(path)}{mark}{query}{'#' + HIDDEN if hash_sign else ''}"


def redact_authority(authority: str) -> str:
    """Return an authority without its userinfo (RFC 9110 §4.2.4), however it was escaped."""
    if "%" in authority:
        authority = _unescape(authority)
    return authority if "@" not in authority else f"{HIDDEN}@{authority.rpartition('@')[2]}"


def redact_text(text: str) -> str:
    """Return a free phrase (a detail, a process name) without credentials, queries, userinfo and tokens."""
    if not _SUSPECT_TEXT.search(text):
        return text
    text = _BARE_USERINFO.sub(f"{HIDDEN}@", _USERINFO.sub(f"{HIDDEN}@", text[:_INPUT_LIMIT]))
    text = _COOKIES.sub(rf"\1{HIDDEN}", text)
    text = _QUERY_IN_TEXT.sub(lambda match: "?" + _redact_query(match[0][1:]), text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _PAIR.sub(_redact_pair, text)
    return _redact_tokens(text)


def _has_many_parts(target: str) -> bool:
    return sum(map(target.count, "/?&;,")) > _PARTS


def _bound(target: str) -> str:
    """Cut a huge target at a separator: half a token at the edge would no longer look like one."""
    cut = target[:_INPUT_LIMIT]
    if _has_many_parts(cut):
        last = next(islice(_SEPARATOR.finditer(cut), _PARTS - 1, None))
        return cut[: last.end()] + HIDDEN
    if cut == target:
        return target
    return cut[: max(cut.rfind(separator) for separator in "/?&;") + 1] + HIDDEN


def _hide_userinfo(target: str) -> str:
    """In a target that begins with an authority, or is one, however its scheme is spelled (RFC 9112 §3.2.2, §3.2.3)."""
    begin = _SCHEME.match(target)
    start = begin.end() if begin else 0
    end = min(f"{target}{sign}".find(sign, start) for sign in ("/?#" if begin else "?#"))
    userinfo, sign, host = target[start:end].rpartition("@")
    return f"{target[:start]}{HIDDEN}@{host}{target[end:]}" if sign and userinfo else target


def _redact_query(query: str) -> str:
    """Keep the names only. A part without `=` is a value: nothing says that it is a name."""
    if ";" not in query:
        return "&".join([_redact_parameter(part) for part in query.split("&")])
    parts = re.split(r"([&;])", query)
    return "".join(part if part in ("&", ";") else _redact_parameter(part) for part in parts)


def _redact_parameter(part: str) -> str:
    name, sign, value = part.partition("=")
    if not sign:
        return HIDDEN if name else ""
    if value.strip("=") == "" and _looks_padded(name, len(value) + 1):
        return HIDDEN
    return f"{_redact_name(name)}={HIDDEN if value else ''}"


def _looks_padded(text: str, padding: int) -> bool:
    """Whether this could be base64 with its padding (RFC 4648 §4), and so a value instead of a name without one."""
    return (len(text) + padding) % 4 == 0 and (padding == 2 or not _PLAIN_NAME.fullmatch(text))


def _redact_path(path: str) -> str:
    if not _SUSPECT_SIGN.search(path) and not _SUSPECT_NAME.search(path.lower()):
        return path
    path = _BARE_USERINFO.sub(f"{HIDDEN}@", _USERINFO.sub(f"{HIDDEN}@", path))
    path = _SLACK_HOOK.sub(rf"\1{HIDDEN}", path)
    segments: list[str] = []
    after_credential = False
    for segment in path.split("/"):
        if unquote(segment) in _NO_STEP:  # for a server that folds them, what follows is the next segment
            segments.append(segment)
            continue
        hide = after_credential and not _PLAIN_WORD.fullmatch(segment)
        segments.append(HIDDEN if hide else _redact_segment(segment))
        after_credential = _names_credential(segment)
    return "/".join(segments)


def _names_credential(text: str) -> bool:
    """Whether this is a name of something secret, with whatever signs around it."""
    return _CREDENTIAL_NAME.search(unquote(text).strip(_SIGNS)) is not None


_redact_short_path = lru_cache(maxsize=1024)(_redact_path)


def _redact_segment(segment: str) -> str:
    """A segment's own text, then its matrix parameters (`;name=value`), then `name=value` or `name:value` in it."""
    head, *parameters = segment.split(";")
    redacted = [_redact_assignment(head)]
    redacted += [_redact_parameter(parameter) if parameter else "" for parameter in parameters]
    return ";".join(redacted)


def _redact_assignment(text: str) -> str:
    """A text that may be `name=value` or `name:value`, or several with what other encodings join them by."""
    if "&" in text or "," in text:
        return "".join(part if part in "&," else _redact_assignment(part) for part in re.split(r"([&,])", text))
    for sign in ("=", ":"):
        name, found, value = text.partition(sign)
        if found and value and _names_credential(name):
            return f"{name}{sign}{HIDDEN}"
    return _redact_word(text)


def _redact_word(text: str) -> str:
    """Hide tokens in `text`; a token written with percent escapes hides the whole of it."""
    if "%" in text:
        decoded = _unescape(text)
        shows = decoded != text and any(
            redact(decoded) != decoded for redact in (_redact_tokens, redact_text, _redact_path)
        )
        if shows or any(sign in decoded for sign in "?@=&"):
            return HIDDEN
    return _redact_tokens(text)


def _unescape(text: str) -> str:
    """Undo percent escapes, and escapes of escapes; what goes deeper than anybody means becomes an `@`: a suspect."""
    for _ in range(_ESCAPES):
        before, text = text, unquote(text)
        if text == before:
            return text
    return "@"


_redact_name = lru_cache(maxsize=1024)(_redact_word)  # parameters' names are few; their values are never remembered


def _redact_pair(match: re.Match[str]) -> str:
    return f"{match['name']}{match['sign']}{HIDDEN}" if _CREDENTIAL_NAME.search(match["name"]) else match[0]


def _redact_tokens(text: str) -> str:
    return _WORD.sub(_redact_random, _KNOWN.sub(HIDDEN, text)) if not _DIGEST.search(text) else _around_digest(text)


def _around_digest(text: str) -> str:
    kept = _DIGEST.search(text)
    assert kept is not None
    return _redact_tokens(text[: kept.start()]) + kept[0] + _redact_tokens(text[kept.end() :])


def _redact_random(match: re.Match[str]) -> str:
    word = match[0]
    if _UUID.fullmatch(word):
        return word
    if _looks_random(word) or any(_is_long_token(part[0]) for part in _PART.finditer(word)):
        return HIDDEN
    return word


def _is_long_token(part: str) -> bool:
    """Letters and digits mixed without a separator: hex and base62 keys; `manylinux2014` or a date does not."""
    if _HEX_KEY.fullmatch(part) and not part.isdigit():
        return True
    return not part.isalpha() and not part.isdigit() and _changes(part) >= len(part) // 5


def _looks_random(word: str) -> bool:
    """Base64url keys: three classes of characters, changing at every second or third character.

    File names of packages change class far more rarely: their parts are words and numbers.
    """
    letters = word.replace("-", "").replace("_", "")
    classes = any(map(str.islower, letters)) + any(map(str.isupper, letters)) + any(map(str.isdigit, letters))
    return classes == 3 and _changes(letters) >= len(letters) * 7 // 20


def _changes(text: str) -> int:
    kinds = [0 if character.isdigit() else 1 + character.islower() for character in text]
    return sum(left != right for left, right in pairwise(kinds))
