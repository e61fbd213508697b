"""`wicketgate` without its audit log, to measure what the log costs: records are made and go nowhere.

A broker like this is not for use, and no option of the product makes one.
"""

from collections.abc import Mapping
from itertools import count

from broker.audit.log import AuditLog
from broker.audit.records import Record
from wicketgate.__main__ import main

_numbers = count(1)


def _append(self: AuditLog, _record: Record | Mapping[str, object]) -> str:
    return f"{self.name}-{next(_numbers)}"


if __name__ == "__main__":
    for name, silent in (("append", _append), ("flush", lambda _self: None)):
        setattr(AuditLog, name, silent)
    main()
