"""The front door: the public API and the command line."""

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than all of this
if TYPE_CHECKING:
    from broker.control.client import Broker as Broker
    from wicketgate.alone import Egress as Egress
    from wicketgate.alone import Result as Result
    from wicketgate.alone import Sandbox as Sandbox
    from wicketgate.alone import SandboxError as SandboxError
    from wicketgate.runner.client import Authority as Authority
    from wicketgate.runner.client import Call as Call
    from wicketgate.runner.client import Runner as Runner
    from wicketgate.runner.client import RunnerError as RunnerError

__version__ = "0.1.0"

# Loaded when first asked for: `wicketgate run` needs none of it, and must start fast.
_PLACES = {
    "Authority": "wicketgate.runner.client",
    "Broker": "broker.control.client",
    "Call": "wicketgate.runner.client",
    "Egress": "wicketgate.alone",
    "Result": "wicketgate.alone",
    "Runner": "wicketgate.runner.client",
    "RunnerError": "wicketgate.runner.client",
    "Sandbox": "wicketgate.alone",
    "SandboxError": "wicketgate.alone",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    value = globals()[name] = getattr(importlib.import_module(place), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
