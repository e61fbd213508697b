"""What full access puts before the filter: no unix sockets, so that no socket of the host can be reached. Pure.

A network namespace does not hold for a unix socket that has a path, and a mount can hide only the paths that somebody
thought of. So none can be made: `socket` is refused for AF_UNIX, and `socketpair` makes stream and packet pairs only,
which are connected for good; a datagram pair could be connected anew, to any path (unix(7)).
"""

import struct

LOAD_WORD, MASK, JUMP_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06  # linux/bpf_common.h
NUMBER, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 16, 24  # struct seccomp_data
REFUSED = 0x0005_0000 | 1  # SECCOMP_RET_ERRNO, EPERM
AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET, KIND = 1, 1, 5, 0xF
# machine → numbers of socket(2) and socketpair(2)
NUMBERS = {"x86_64": (41, 53), "aarch64": (198, 199)}


def before(program: bytes, machine: str) -> bytes:
    """The whole filter: these tests, then `program`, which they fall through to. Raises KeyError for other machines.

    The architecture is not looked at: under another one a call may be refused here that `program` ends the process for.
    """
    socket, socketpair = NUMBERS[machine]
    steps = (
        (LOAD_WORD, 0, 0, NUMBER),
        (JUMP_EQUAL, 0, 2, socket),
        (LOAD_WORD, 0, 0, FIRST_ARGUMENT),
        (JUMP_EQUAL, 5, 6, AF_UNIX),
        (JUMP_EQUAL, 0, 5, socketpair),
        (LOAD_WORD, 0, 0, SECOND_ARGUMENT),
        (MASK, 0, 0, KIND),
        (JUMP_EQUAL, 2, 0, SOCK_STREAM),
        (JUMP_EQUAL, 1, 0, SOCK_SEQPACKET),
        (RETURN, 0, 0, REFUSED),
    )
    return b"".join(struct.pack("<HBBI", *step) for step in steps) + program
