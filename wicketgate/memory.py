"""What a process has in memory: what is loaded stays and is not looked through again, what is large comes and goes."""

import contextlib
import ctypes
import gc
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # mallopt(3)
_LARGE: Final = 1 << 17  # bytes


def settle_memory() -> None:
    """Take what is loaded for what stays, and look for garbage from here on (`wicketgate.__main__` stopped that)."""
    gc.freeze()
    gc.enable()


def share_memory() -> None:
    """Share what is loaded with all processes that are forked from here on: a collection would write to its pages, and
    so copy them.
    """
    gc.collect()
    gc.freeze()


def keep_large_apart() -> None:
    """Have each block above 128 KB come from the kernel and go back to it (mallopt(3)); for who moves none in a hurry.

    By itself the C library raises that bound to whatever was given back, and the next such block lies in its heap among
    others for good: the interpreter's own tables, which are exchanged now and then, and what a sandbox has written.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
