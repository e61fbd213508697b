"""The client of the control API: `async with Broker() as broker: grant = await broker.issue(...)`.

Typed: what is sent and answered are the value types of `broker.control.schema`. What the broker refuses is raised as a
`BrokerRefusal` of the kind that its code stands for, with the whole problem document. It retries nothing.
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from broker.api.ids import is_id
from broker.control import schema
from broker.control.places import default_socket
from broker.control.schema import Budgets, Grant, GrantRule, GrantState, Problem

TIMEOUT: Final = 30.0  # seconds for a whole answer
_ORIGIN: Final = "http://localhost"
_encode = msgspec.json.Encoder().encode


class BrokerError(Exception):
    """Base of what this client raises."""


class BrokerUnreachable(BrokerError):  # noqa: N818
    """Nobody answers at the socket, or no more. The message names the socket."""


class BrokerRefusal(BrokerError):  # noqa: N818
    """The broker said no. `problem` is its problem document (RFC 9457)."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.detail}")
        self.problem = problem


class NotCovered(BrokerRefusal):
    """The policy does not allow all of the rules; `problem.uncovered` names what it does not."""


class NotFound(BrokerRefusal):
    """No such grant or session."""


class InvalidRequest(BrokerRefusal):
    """The request itself is wrong; `problem.field` names where."""


class NotAuthorized(BrokerRefusal):
    """This user may not use the control socket."""


class PolicyRefused(BrokerRefusal):
    """The policy file is refused; `problem.problems` says why. The policy in force stays."""


class Unavailable(BrokerRefusal):
    """The broker cannot do it at the moment: no record can be kept, or too many grants are in force."""


_KINDS: Final[dict[str, type[BrokerRefusal]]] = {
    "not_covered": NotCovered,
    "unknown_grant": NotFound,
    "unknown_session": NotFound,
    "bad_request": InvalidRequest,
    "unknown_field": InvalidRequest,
    "invalid_field": InvalidRequest,
    "invalid_rules": InvalidRequest,
    "too_large": InvalidRequest,
    "peer_refused": NotAuthorized,
    "policy_refused": PolicyRefused,
    "record_unavailable": Unavailable,
    "too_many_grants": Unavailable,
}


class Broker:
    """A connection to a broker's control socket. `path`: the usual one of this user where none is given."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_socket("control", os.environ, os.geteuid())
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(self.path)), timeout=aiohttp.ClientTimeout(total=TIMEOUT)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def issue(  # noqa: PLR0913
        self,
        *,
        allow: Sequence[str] | None = None,
        rules: Sequence[GrantRule | Mapping[str, Any]] | None = None,
        call: str | None = None,
        ttl: float | timedelta | None = None,
        expires_at: datetime | None = None,
        budgets: Budgets | None = None,
    ) -> Grant:
        """Issue a grant for one tool call or session.

        allow: `HOST:PORT`s; what the policy allows of each is granted. rules: instead, rules in the policy file's
        words. ttl: seconds, or give expires_at, which knows its zone. Raises `NotCovered`, `InvalidRequest`,
        `Unavailable`.
        """
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        request = schema.IssueGrant(
            allow=None if allow is None else list(allow),
            rules=None if rules is None else [msgspec.to_builtins(rule) for rule in rules],
            call=call,
            ttl_seconds=seconds,
            expires_at=expires_at,
            budgets=budgets or Budgets(),
        )
        return await self._ask("POST", "/v1/grants", Grant, body=request)

    async def grant(self, grant: str) -> Grant:
        """A grant with its use. Raises `NotFound`."""
        return await self._ask("GET", _place("/v1/grants/", grant), Grant)

    async def revoke(self, grant: str) -> Grant:
        """Revoke a grant; its tunnels are cut when this returns. Raises `NotFound`."""
        return await self._ask("DELETE", _place("/v1/grants/", grant), Grant)

    async def grants(self, *, call: str | None = None, state: GrantState | None = None) -> AsyncIterator[Grant]:
        """All grants, oldest first, fetched page by page."""
        asked = {"call": call, "state": None if state is None else str(state), "limit": str(schema.MAX_PAGE)}
        query = {name: value for name, value in asked.items() if value is not None}
        while True:
            page = await self._ask("GET", "/v1/grants", schema.GrantPage, query=query)
            for grant in page.grants:
                yield grant
            if page.next is None:
                return
            query["after"] = page.next

    async def health(self) -> schema.Health:
        """Whether the broker serves, and what is wrong with it."""
        return await self._ask("GET", "/v1/health", schema.Health)

    async def policy(self) -> schema.PolicyDocument:
        """The policy in force."""
        return await self._ask("GET", "/v1/policy", schema.PolicyDocument)

    async def reload_policy(self) -> schema.PolicyDocument:
        """Have the policy file read again. Raises `PolicyRefused`; then the policy in force stays."""
        return await self._ask("POST", "/v1/policy/reload", schema.PolicyDocument)

    async def egress(self) -> schema.Egress:
        """The flag, the switch, and what comes of both."""
        return await self._ask("GET", "/v1/egress", schema.Egress)

    async def switch_egress(self, *, enabled: bool) -> schema.Egress:
        """Turn the operator's switch. Turned off, everything is closed when this returns."""
        return await self._ask("PUT", "/v1/egress", schema.Egress, body=schema.SwitchEgress(enabled=enabled))

    async def sessions(self) -> list[schema.Session]:
        """The attached sessions."""
        return (await self._ask("GET", "/v1/sessions", schema.SessionList)).sessions

    async def session(self, session: str) -> schema.Session:
        """One attached session. Raises `NotFound`."""
        return await self._ask("GET", _place("/v1/sessions/", session), schema.Session)

    async def cut_session(self, session: str) -> schema.Session:
        """Cut a session from the network for good. Raises `NotFound`."""
        return await self._ask("DELETE", _place("/v1/sessions/", session), schema.Session)

    async def explain(self, url: str, *, method: str = "GET", grant: str | None = None) -> schema.Explanation:
        """What would be decided on a request now, and what would turn it. Raises `InvalidRequest`, `NotFound`."""
        request = schema.Explain(url=url, method=method, grant=grant)
        return await self._ask("POST", "/v1/explain", schema.Explanation, body=request)

    async def counters(self) -> schema.Counters:
        """Totals since the broker's start, and what is open."""
        return await self._ask("GET", "/v1/counters", schema.Counters)

    async def openapi(self) -> dict[str, Any]:
        """The API's own description."""
        return await self._ask("GET", "/v1/openapi.json", dict[str, Any])

    async def _ask[T](
        self, method: str, path: str, answer: type[T], *, body: object = None, query: Mapping[str, str] | None = None
    ) -> T:
        if self._session is None:
            raise BrokerError("use the client as `async with Broker() as broker`")
        data = None if body is None else _encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, _ORIGIN + path, data=data, headers=headers, params=query, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BrokerUnreachable(f"no broker answers at {self.path}: {error or type(error).__name__}") from error
        try:
            if response.status >= 400:
                problem = msgspec.json.decode(content, type=Problem)
                raise _KINDS.get(problem.code, BrokerRefusal)(problem)
            return msgspec.json.decode(content, type=answer)
        except msgspec.DecodeError as error:
            raise BrokerError(f"{self.path} answers what no broker does: {error}") from error


def _place(above: str, identity: str) -> str:
    """A path with an id in it. Raises NotFound for what is none."""
    if is_id(identity):
        return f"{above}{identity}"
    title, detail = "There is nothing of this id.", f"{identity!r} is no id."
    code = "unknown_grant" if above.endswith("/grants/") else "unknown_session"
    raise NotFound(Problem(type="about:blank", title=title, status=404, detail=detail, code=code))
