"""The two architectures that a filter exists for, and their system call numbers.

The numbers are data (`numbers.tsv`: name, x86-64, arm64; `-` where the architecture lacks the call), as in the kernel's
`unistd.h`. A call newer than the table has no name here and is answered like a call that the kernel does not know.
"""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import resources
from types import MappingProxyType


class UnsupportedArchitectureError(ValueError):
    """There is no filter for this machine; nothing may be started on it."""


class Architecture(Enum):
    """A machine architecture; the value is the kernel's name for it (`uname -m`)."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def audit_arch(self) -> int:
        """The AUDIT_ARCH_* value in `struct seccomp_data` (linux/audit.h: EM_* | 64-bit | little-endian)."""
        return _AUDIT_ARCH[self]

    @property
    def numbers(self) -> Mapping[str, int]:
        """Every known system call of this architecture: name → number."""
        return _numbers()[self]

    @classmethod
    def of(cls, machine: str) -> "Architecture":
        """Turn `os.uname().machine` into an architecture.

        Raises `UnsupportedArchitectureError` for every other machine, 32-bit ones included.
        """
        try:
            return cls(machine)
        except ValueError:
            known = ", ".join(architecture.value for architecture in cls)
            raise UnsupportedArchitectureError(
                f"no system call filter exists for machine {machine!r}; supported: {known}"
            ) from None


_AUDIT_ARCH = {Architecture.X86_64: 0xC000003E, Architecture.AARCH64: 0xC00000B7}


@cache
def _numbers() -> Mapping[Architecture, Mapping[str, int]]:
    text = resources.files(__package__).joinpath("numbers.tsv").read_text(encoding="ascii")
    header, *rows = (line.split("\t") for line in text.splitlines())
    return MappingProxyType(
        {
            Architecture(column): MappingProxyType({row[0]: int(row[index]) for row in rows if row[index] != "-"})
            for index, column in enumerate(header)
            if index
        }
    )
