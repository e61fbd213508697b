"""Bounds text and makes control characters visible, so that a record cannot forge a line or drive a terminal.

Pure. It must not judge what the text means; taking secrets out is redaction.py's work.
"""

from typing import Final

ELLIPSIS: Final = "…"


def is_clean(text: str, limit: int) -> bool:
    """Tell whether `escape` would return `text` as it is: the cheap test for the common case."""
    return len(text) <= limit and text.isprintable() and "\\" not in text


def escape(text: str, limit: int) -> str:
    """Return at most `limit` characters of printable text.

    Whatever Unicode calls unprintable (C0, C1, DEL, bidirectional controls, line separators, lone surrogates) becomes a
    backslash escape, and a backslash is doubled, so that two different inputs never look the same unless cut.
    """
    if is_clean(text, limit):
        return text
    return clip("".join(map(_escape_character, text[: limit + 1])), limit)


def clip(text: str, limit: int) -> str:
    """Cut `text` to `limit` characters; a cut is marked by an ellipsis in the last place."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def escape_json(text: str) -> str:
    """Return a JSON text of the same value, in which only line ends are unprintable (RFC 8259 §7).

    What the log writes is printable; what somebody put into it is not, and JSON is read on terminals, too.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _as_json(one) for one in text)


def _as_json(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
