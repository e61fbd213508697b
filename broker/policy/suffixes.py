"""Public suffixes: names under which strangers register, so that a wildcard over one reaches everybody.

Decides from the Public Suffix List (publicsuffix.org, private section included) as the `publicsuffixlist` package ships
it, and a few zones of the same kind that it does not have. It is read once, when the first wildcard is checked; nothing
is fetched.
"""

import re
from functools import cache
from pathlib import Path

import idna
import publicsuffixlist

_PRIVATE_SECTION = "===BEGIN PRIVATE DOMAINS==="
_END = "// ===END PRIVATE DOMAINS==="
# The same kind in the list's own notation, where its owner has not asked for an entry: buckets and machines of cloud
# customers, delivery networks, tunnels and request collectors, and names that stand for any address.
_UNLISTED = """
storage.googleapis.com
*.cloudapp.azure.com
*.aliyuncs.com
*.myqcloud.com
*.backblazeb2.com
*.wasabisys.com
*.bcebos.com
public.blob.vercel-storage.com
b-cdn.net
kxcdn.com
firebaseio.com
sharepoint.com
azurecontainerapps.io
*.azurecontainerapps.io
app.github.dev
*.devtunnels.ms
gitpod.io
*.gitpod.io
loca.lt
lhr.life
serveo.net
webhook.site
m.pipedream.net
beeceptor.com
oastify.com
burpcollaborator.net
requestbin.net
nip.io
sslip.io
xip.io
traefik.me
localtest.me
lvh.me
1u.ms
rbndr.us
"""


def is_public_suffix(name: str) -> bool:
    """Tell whether strangers can own the names right below `name` (an A-label form, lower case).

    A top-level name that the list does not know counts as public (the list's own rule `*`).
    """
    return _suffixes().is_public(name)


def suffix_below(name: str) -> str | None:
    """Return a public suffix that lies below `name`, or `None`: a wildcard over `name` would cover its tenants too."""
    return _below().get(_unicode(name))


def shared_suffix(name: str) -> str | None:
    """Return the private-section suffix (a hosting or delivery network's) that `name` belongs to, or `None`."""
    suffix = _suffixes().publicsuffix(name)
    return suffix if suffix is not None and is_private_section(suffix) else None


def is_private_section(suffix: str) -> bool:
    """Tell whether a public suffix was registered by a company for its customers, not by a registry of names."""
    name = _unicode(suffix)
    return not _private().isdisjoint((name, f"*.{name}", f"*.{name.partition('.')[2]}"))


@cache
def _private() -> frozenset[str]:
    return frozenset(re.findall(r"^[^\s/!]+$", _text().partition(_PRIVATE_SECTION)[2], re.MULTILINE))


@cache
def _below() -> dict[str, str]:
    """For each name with suffixes below it, one of them."""
    found: dict[str, str] = {}
    for suffix in re.findall(r"^(?:\*\.)?([^\s/!*]+)$", _text(), re.MULTILINE):
        parent = suffix.partition(".")[2]
        while parent and parent not in found:
            found[parent] = suffix
            parent = parent.partition(".")[2]
    return found


def _unicode(name: str) -> str:
    # The list's file writes international suffixes in Unicode; names are compared in A-label form everywhere else.
    try:
        return idna.decode(name) if "xn--" in name else name
    except idna.IDNAError:
        return name


@cache
def _suffixes() -> publicsuffixlist.PublicSuffixList:
    return publicsuffixlist.PublicSuffixList(_text())


@cache
def _text() -> str:
    listed = Path(publicsuffixlist.__file__).with_name("public_suffix_list.dat").read_text(encoding="utf-8")
    return listed.replace(_END, _UNLISTED + _END)
