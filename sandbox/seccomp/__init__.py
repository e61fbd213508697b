"""The system call filter: one readable description, assembled into the bytes that the kernel loads.

`description` says what is refused and why, `numbers.tsv` gives the system call numbers of each architecture,
`assemble` turns both into classic BPF. Everything here is a pure function of those two files: the same sources give the
same bytes on every machine, and `python -m sandbox.seccomp --check` compares them with the committed programs.
Loading a program into the kernel is the launcher's task (`bwrap --seccomp FD`), never this package's.
"""

from sandbox.seccomp.architecture import Architecture, UnsupportedArchitectureError
from sandbox.seccomp.program import FilterMode, committed, file_name, filter_for

__all__ = ["Architecture", "FilterMode", "UnsupportedArchitectureError", "committed", "file_name", "filter_for"]
