"""How `wicketgate run` begins: where something is allowed it forks its own broker first, and loads the rest only then.

Loading modules is most of a start, and so both processes do it at once.
"""

TYPE_CHECKING = False  # as in `wicketgate.typed`
if TYPE_CHECKING:
    from typing import Any


def begin(**options: "Any") -> int:
    """Run with these options (`wicketgate.options.run_typed`); the exit code. Raises as that does."""
    if not options.get("allow") and options.get("policy") is None:
        return _run(**options)
    from wicketgate.brokered import start_broker  # noqa: PLC0415
    from wicketgate.rules import words_of  # noqa: PLC0415

    broker = start_broker(words_of(options))
    try:
        return _run(**options, broker=broker)
    finally:
        broker.stop()


def _run(**options: "Any") -> int:
    from wicketgate.options import run_typed  # noqa: PLC0415

    return run_typed(**options)
