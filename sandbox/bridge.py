"""A bridge for a sandbox, or the layer that refused it and what it needs."""

from netns.bridge import Bridge, build_bridge
from netns.kernel import explain_namespaces
from netns.netlink import NetlinkError
from sandbox.errors import Code, LaunchError

# What names the netlink step that failed, when the kernel has networks but not what captures their traffic.
_CAPTURE_STEPS = ("rule", "table", "chain")


def open_bridge() -> Bridge:
    """Build a bridge. Raises LaunchError with the layer that refused."""
    try:
        return build_bridge()
    except NetlinkError as error:
        code = Code.NO_CAPTURE if any(step in error.what for step in _CAPTURE_STEPS) else Code.NO_NETWORK_NAMESPACES
        raise LaunchError(
            code,
            f"The bridge cannot be built: the kernel refused to {error}.",
            "The kernel needs network namespaces, veth, nf_tables and its tproxy expression.",
        ) from error
    except OSError as error:
        raise LaunchError(
            Code.NO_NETWORK_NAMESPACES,
            f"The bridge cannot be built: the kernel refuses a namespace or a socket ({explain_namespaces(error)}).",
            "It needs network namespaces, nf_tables and transparent sockets; `wicketgate doctor` looks closer.",
        ) from error
