"""A method and an absolute URL, as a person writes them, into the facts that are judged. Pure."""

import re
from typing import Final

from broker.policy.authority import parse_authority
from broker.policy.facts import Facts, Scheme, Stage
from broker.policy.problems import Mistake
from broker.policy.reasons import Refusal

_SCHEMES: Final[dict[str, tuple[Scheme, int, bool]]] = {
    "https": ("https", 443, False),
    "http": ("http", 80, False),
    "wss": ("https", 443, True),
    "ws": ("http", 80, True),
}
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.DOTALL)


def parse_request(method: str, url: str) -> Facts:
    """The facts of a request. Method CONNECT asks about the connection alone, a wss: or ws: URL about a WebSocket.

    Raises `Mistake`.
    """
    parts = _URL.fullmatch(url.partition("#")[0])
    scheme = _SCHEMES.get(parts[1].lower()) if parts else None
    if parts is None or scheme is None:
        cure = f"https://{url}" if "://" not in url else f"one of {', '.join(_SCHEMES)}"
        raise Mistake(f"{url!r} is not an absolute URL", "SCHEME://HOST[:PORT][/PATH]", cure)
    kind, port, websocket = scheme
    try:
        authority = parse_authority(parts[2].encode("utf-8", "surrogateescape"), default_port=port)
    except Refusal as refusal:
        raise Mistake(f"{refusal.detail} ({refusal.reason})", "a host and a port") from None
    if method.upper() == "CONNECT":
        return Facts(stage=Stage.CONNECTION, scheme=kind, authority=authority)
    return Facts(
        stage=Stage.REQUEST,
        scheme=kind,
        authority=authority,
        method=method,
        path=parts[3] or "/",
        query=parts[4],
        websocket=websocket,
    )
