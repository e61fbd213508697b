"""Names to addresses, through the host's own resolver, and only for names that were allowed.

getaddrinfo(3) is asked in threads, so /etc/hosts, systemd-resolved and whatever nsswitch.conf names keep working. Names
are absolute: `make_absolute` takes the search list away from this process. Answers are not cached: each connection
judges its own.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from broker.policy.addresses import Address
from broker.policy.authority import Authority
from broker.policy.limits import Limits
from broker.policy.names import HostName
from broker.policy.reasons import Reason, Refusal

THREADS = 32
LOOKUPS_A_SESSION = 4  # a session whose names answer slowly must not hold all threads
_MISSING = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def make_absolute(environ: MutableMapping[str, str] = os.environ) -> None:
    """Empty the resolver's search list and bound its retries (resolv.conf(5)). Call before the first look-up."""
    environ["LOCALDOMAIN"] = "."
    environ["RES_OPTIONS"] = "ndots:0 timeout:2 attempts:2"


class Resolver:
    """Resolves authorities. `fixed` maps authorities to addresses that are used instead of a look-up."""

    def __init__(self, limits: Limits, fixed: Mapping[Authority, tuple[Address, ...]] | None = None) -> None:
        self.limits = limits
        self._fixed = fixed or {}
        self._threads: ThreadPoolExecutor | None = None

    def known(self, authority: Authority) -> tuple[Address, ...] | None:
        """The answer that needs no look-up: a literal address or a fixed one."""
        if not isinstance(authority.host, str):
            return (authority.host,)
        return self._fixed.get(authority)

    async def look_up(self, name: HostName, over: Callable[[], None] = lambda: None) -> tuple[Address, ...]:
        """Ask the host's resolver. Raises Refusal: NAME_NOT_FOUND, RESOLVE_FAILED or RESOLVE_TIMEOUT.

        `over` is called when the thread is free again, which may be long after a timeout.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="resolve")
        loop = asyncio.get_running_loop()
        try:
            asking = self._threads.submit(_ask, str(name))
            asking.add_done_callback(lambda _: _tell(loop, over))
            async with asyncio.timeout(self.limits.resolve_seconds):
                found = await asyncio.wrap_future(asking)
        except TimeoutError as error:
            detail = f"no answer within {self.limits.resolve_seconds:g} s"
            raise Refusal(Reason.RESOLVE_TIMEOUT, detail) from error
        except socket.gaierror as error:
            reason = Reason.NAME_NOT_FOUND if error.errno in _MISSING else Reason.RESOLVE_FAILED
            raise Refusal(reason, error.strerror or "the resolver failed") from error
        except (OSError, UnicodeError) as error:
            raise Refusal(Reason.RESOLVE_FAILED, str(error)) from error
        if len(found) > self.limits.resolve_answers:
            raise Refusal(Reason.RESOLVE_FAILED, f"more than {self.limits.resolve_answers} addresses")
        return found

    def close(self) -> None:
        """Let the threads go; look-ups under way are abandoned."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _tell(loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(over)


def _ask(name: str) -> tuple[Address, ...]:
    answers = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)
    # A zone would make an address another one; the guard refuses link-local ones anyway.
    return tuple(dict.fromkeys(ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers))
