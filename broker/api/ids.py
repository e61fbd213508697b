"""An id as a part of a path. What is none must never become one: `..` or `?` would ask for something else.

An id that a client is given may have passed through a model.
"""

import re

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def is_id(text: str) -> bool:
    """Whether it can be the id of anything: one segment of a path, whatever reads it (RFC 3986 §3.3)."""
    return _ID.fullmatch(text) is not None
