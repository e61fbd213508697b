"""What is known about a connection or a request when it is judged: parsed values, never text to parse again."""

from enum import Enum
from typing import Literal

import msgspec

from broker.policy.authority import Authority

type Scheme = Literal["http", "https", "tcp"]


class Stage(Enum):
    """CONNECTION asks whether a host and port may be reached at all, and on which plane; REQUEST asks everything."""

    CONNECTION = "connection"
    REQUEST = "request"


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The question put to `decide`. A struct, because one is made for every request.

    scheme: "https" for TLS, "http" for plain HTTP, "tcp" for neither.
    path, query: raw, as they will be forwarded, without the "?"; `None` at CONNECTION (query also where there is none).
    websocket: the request asks for the upgrade.
    """

    stage: Stage
    scheme: Scheme
    authority: Authority
    method: str | None = None
    path: str | None = None
    query: str | None = None
    websocket: bool = False
