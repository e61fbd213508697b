"""The front door: the public API and the command line."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.control.client import Broker as Broker

__version__ = "0.1.0"

# Loaded when first asked for: `wicketgate run` needs none of it, and must start fast.
_PLACES = {"Broker": "broker.control.client"}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    value = globals()[name] = getattr(importlib.import_module(place), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
