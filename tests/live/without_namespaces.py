"""`python -m tests.live.without_namespaces COMMAND…`: run a command for which the kernel refuses every user namespace.

A filter turns unshare(2) into EPERM, as container profiles do. Files keep the owners that they have.
"""

import errno
import os
import platform
import struct
import sys

from netns.joining import filter_system_calls
from netns.kernel import PR_SET_NO_NEW_PRIVS, prctl

UNSHARE = {"x86_64": 272, "aarch64": 97}
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def main() -> None:
    instructions = (
        (LOAD_NUMBER, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, UNSHARE[platform.machine()]),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    )
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    filter_system_calls(b"".join(struct.pack("=HBBI", *one) for one in instructions))
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
