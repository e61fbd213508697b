"""Public suffixes: names under which strangers register, so that a wildcard over one reaches everybody.

Decides from the Public Suffix List (publicsuffix.org, private section included) as the `publicsuffixlist` package ships
it. The list is read once, when the first wildcard is checked; nothing is fetched.
"""

import re
from functools import cache
from importlib.resources import files

import idna
from publicsuffixlist import PublicSuffixList

_PRIVATE_SECTION = "===BEGIN PRIVATE DOMAINS==="


def is_public_suffix(name: str) -> bool:
    """Tell whether strangers can own the names right below `name` (an A-label form, lower case).

    A top-level name that the list does not know counts as public (the list's own rule `*`).
    """
    return _suffixes().is_public(name)


def suffix_below(name: str) -> str | None:
    """Return a public suffix that lies below `name`, or `None`: a wildcard over `name` would cover its tenants too."""
    found = re.search(rf"^(?:\*\.)?([^\s/!]+\.{re.escape(_unicode(name))})$", _text(), re.MULTILINE)
    return found.group(1) if found else None


def shared_suffix(name: str) -> str | None:
    """Return the private-section suffix (a hosting or delivery network's) that `name` belongs to, or `None`."""
    suffix = _suffixes().publicsuffix(name)
    return suffix if suffix is not None and is_private_section(suffix) else None


def is_private_section(suffix: str) -> bool:
    """Tell whether a public suffix was registered by a company for its customers, not by a registry of names."""
    parent = suffix.partition(".")[2]
    wanted = [re.escape(_unicode(suffix))] + ([rf"\*\.{re.escape(_unicode(parent))}"] if parent else [])
    text = _text()
    found = re.search(rf"^(?:{'|'.join(wanted)})$", text, re.MULTILINE)
    return found is not None and found.start() > text.find(_PRIVATE_SECTION)


def _unicode(name: str) -> str:
    # The list's file writes international suffixes in Unicode; names are compared in A-label form everywhere else.
    try:
        return idna.decode(name) if "xn--" in name else name
    except idna.IDNAError:
        return name


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


@cache
def _text() -> str:
    return files("publicsuffixlist").joinpath("public_suffix_list.dat").read_text(encoding="utf-8")
