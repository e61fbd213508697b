"""The garbage collector around a start: what is loaded stays, and looking through it again and again takes long."""

import gc


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
