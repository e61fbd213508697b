"""The WebSocket handshake (RFC 6455 §4): which request is a whole one, and which response answers it."""

import base64
import hashlib
from typing import Final

from broker.wire.http1.fields import Fields

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_KEY, _VERSION, _ACCEPT = b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-accept"


def is_whole(request: Fields) -> bool:
    """Whether an upgrade has the one key and the one version that it needs (§4.1)."""
    return len(_values(request, _KEY)) == 1 and len(_values(request, _VERSION)) == 1


def is_answered(request: Fields, response: Fields) -> bool:
    """Whether a 101 proves that its sender has read the key (§4.2.2), and so means to speak WebSocket."""
    digest = hashlib.sha1(_values(request, _KEY)[0] + _GUID, usedforsecurity=False).digest()
    return _values(response, _ACCEPT) == [base64.b64encode(digest)]


def _values(fields: Fields, wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]
