"""The sandbox's environment: a closed list. Nothing of the server's own environment is passed on."""

import re

from sandbox.spec import Mode, SandboxSpec

HOME = "/home/sandbox"
USER = "sandbox"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_VALUE = 4096
# terminfo names, locale names, time zone names: none needs more.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._@:/-]{0,63}")


def environment(spec: SandboxSpec) -> tuple[tuple[str, str], ...]:
    """The variables in a fixed order. A described terminal value that is not plain is left out."""
    terminal = spec.terminal
    variables = [
        ("PATH", PATH),
        ("HOME", home_of(spec)),
        ("USER", USER),
        ("LOGNAME", USER),
        ("SHELL", "/bin/bash"),
        ("TMPDIR", "/tmp"),  # noqa: S108  the sandbox's own, private and empty
        ("LANG", terminal.language if _plain(terminal.language) else "C.UTF-8"),
        ("TERM", terminal.term if _plain(terminal.term) else "dumb"),
    ]
    variables += [
        (name, value)
        for name, value in (("COLORTERM", terminal.color), ("TZ", terminal.timezone))
        if _plain(value) and ".." not in value
    ]
    variables += [(name, value) for name, value in spec.authority.trust_environment if len(value) <= MAX_VALUE]
    return tuple(variables)


def home_of(spec: SandboxSpec) -> str:
    """The home directory: private in both modes. Full access has no place of its own for one on the host's tree."""
    return HOME if spec.authority.mode is Mode.SANDBOX else "/tmp"  # noqa: S108  private there, too


def _plain(value: str) -> bool:
    return _PLAIN.fullmatch(value) is not None
