"""What a process of the broker does from time to time."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final

from broker.audit.errors import AuditError, AuditUnavailable
from certs.errors import CertsError

SYNC_SECONDS: Final = 1.0
AUTHORITY_SECONDS: Final = 60.0
# RuntimeError: where a container's bound leaves no thread to wait for the disk in.
_FAILURES: Final[tuple[type[Exception], ...]] = (CertsError, AuditError, OSError, RuntimeError)


async def again(
    seconds: float,
    chore: Callable[[], Awaitable[object]],
    trouble: str,
    troubles: MutableMapping[str, str],
    *failures: type[Exception],
) -> None:
    """Do something every few seconds. What fails stands in `troubles` until it works again; the log says so itself."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except AuditUnavailable:
            continue
        except (*_FAILURES, *failures) as error:
            troubles[trouble] = str(error)
        else:
            troubles.pop(trouble, None)
