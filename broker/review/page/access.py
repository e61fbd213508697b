"""Who may read the page. A loopback port is open to every local user, and any web page can drive a browser to it.

Three things must hold: `Host` is a name of ours (else a name that somebody else owns could lead here: DNS rebinding),
the request does not come from another origin's page, and it bears the token's cookie. The token itself is taken in a
GET of the page's first address, and nowhere else. Pure.
"""

import hmac
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final

READING: Final = frozenset({"GET", "HEAD"})
METHODS: Final = READING | {"POST"}
_OURSELVES: Final = frozenset({"same-origin", "none"})


class Barred(Enum):
    """Why a request gets no page: the status and one sentence for whoever sent it."""

    METHOD = 405, "The page answers GET and HEAD, and POST of its own form."
    HOST = 421, "The page does not answer to this name. Start it with --host NAME for a name of a reverse proxy."
    ORIGIN = 403, "The request comes from a page of another origin, and was refused."
    NO_TOKEN = 403, "Open the address that `wicketgate review` printed: its token lets this browser in."
    BAD_TOKEN = 403, "This is not the token of the running page. Open the address that `wicketgate review` printed."
    FORM = 403, "The form was not made by the running page. Load the page anew and send it again."

    @property
    def status(self) -> int:
        """The HTTP status code."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """What to tell."""
        return self.value[1]


class Let(Enum):
    """What a request gets that is not barred. `SIGN_IN_BY_LINK`: from elsewhere, where a redirect bears no cookie."""

    READ = "read"
    SIGN_IN = "sign in"
    SIGN_IN_BY_LINK = "sign in by a link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What is compared: the token, and what is derived from it for the cookie and for forms."""

    token: str
    cookie: str
    form: str

    @classmethod
    def derive(cls, token: str) -> "Keys":
        """A cookie or a form that was seen does not give the token away."""
        return cls(token=token, cookie=_derived(token, "cookie"), form=_derived(token, "form"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whom one page lets in: its keys, the values of `Host` that are its own, the name of its cookie."""

    keys: Keys
    names: frozenset[str]
    cookie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of a request is judged. Plural fields are all values of that name; `token` is the query's, if any."""

    method: str
    path: str
    hosts: tuple[str, ...]
    origins: tuple[str, ...] = ()
    fetch_site: str = ""
    fetch_mode: str = ""
    cookies: tuple[str, ...] = ()
    token: str | None = None


def cookie_name(port: int) -> str:
    """Cookies know no ports (RFC 6265 §8.5): the name keeps two pages of one machine from putting each other out."""
    return f"wicketgate_review_{port}"


def names_of(address: str, port: int, extra: tuple[str, ...] = ()) -> frozenset[str]:
    """The values of `Host` that are ours: the listener's address, `localhost`, and what the operator named."""
    every = address in {"0.0.0.0", "::"}  # noqa: S104  compared, not bound
    hosts = (
        {"localhost", "127.0.0.1", "[::1]"} if every else {"localhost", f"[{address}]" if ":" in address else address}
    )
    names = {f"{host}:{port}" for host in hosts} | (hosts if port == 80 else set())
    return frozenset(names | {name.lower() for name in extra})


def judge(asked: Asked, access: Access) -> Let | Barred:
    """Decide on a request before anything of it is acted upon."""
    if asked.method not in METHODS:
        return Barred.METHOD
    if len(asked.hosts) != 1 or asked.hosts[0].lower() not in access.names:
        return Barred.HOST
    if asked.token is not None:
        return _judge_token(asked, access.keys)
    if not _is_ours(asked):
        return Barred.ORIGIN
    if not asked.cookies:
        return Barred.NO_TOKEN
    return Let.READ if any(same(cookie, access.keys.cookie) for cookie in asked.cookies) else Barred.BAD_TOKEN


def same(given: str, wanted: str) -> bool:
    """Compare in a time that does not tell how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _judge_token(asked: Asked, keys: Keys) -> Let | Barred:
    """A navigation may come from anywhere (a link in a terminal or a mail); nothing else from another origin may."""
    if asked.method not in READING or asked.path != "/":
        return Barred.METHOD
    if asked.origins or (not _is_ours(asked) and asked.fetch_mode != "navigate"):
        return Barred.ORIGIN
    if not same(asked.token or "", keys.token):
        return Barred.BAD_TOKEN
    return Let.SIGN_IN if _is_ours(asked) else Let.SIGN_IN_BY_LINK


def _is_ours(asked: Asked) -> bool:
    """Whether no field says that another origin's page made the request. Clients that are no browsers send neither."""
    if asked.fetch_site and asked.fetch_site not in _OURSELVES:
        return False
    if not asked.origins:
        return True
    host = asked.hosts[0].lower()
    # Under `Referrer-Policy: no-referrer` a browser sends "null" with its own page's form (Fetch, "append a request
    # `Origin` header"): then the other field, which no page can set, has to say that it is its own.
    known = {f"http://{host}", f"https://{host}"} | ({"null"} if asked.fetch_site == "same-origin" else set())
    return len(asked.origins) == 1 and asked.origins[0].lower() in known


def _derived(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"wicketgate review {purpose} v1".encode(), sha256).hexdigest()
