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


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
