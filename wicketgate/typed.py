"""`wicketgate run` as it is usually typed, read without the library that reads command lines: loading that takes longer
than a sandbox to start. Whatever is not in this form (a mistake, `--help`) is the command line's to read and to refuse.
"""

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than a sandbox to start
if TYPE_CHECKING:
    from typing import Any

# Options that are given at most once, and options that may be repeated.
SINGLE = frozenset({"workspace", "policy", "grant", "socket", "timeout", "runner"})
REPEATED = frozenset({"allow", "resolve", "cacert", "private"})


def read(words: list[str]) -> "dict[str, Any] | None":
    """The options of `run` and its `command`, by name; None where the words are not in the usual form."""
    if words[:1] != ["run"]:
        return None
    found: dict[str, Any] = {}
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option, given, value = rest.pop(0).partition("=")
        name = option.removeprefix("--")
        if option == "--json" and not given:
            found["json"] = True
            continue
        if not option.startswith("--") or not (name in REPEATED or (name in SINGLE and name not in found)):
            return None
        value = value if given else rest.pop(0) if rest else ""
        if not value:
            return None
        found[name] = (*found.get(name, ()), value) if name in REPEATED else value
    found["command"] = tuple(rest[1:] if rest[:1] == ["--"] else rest)
    return found if found["command"] and _with_timeout(found) else None


def _with_timeout(found: "dict[str, Any]") -> bool:
    """Make the time limit a number; False where it is none."""
    if "timeout" in found:
        try:
            found["timeout"] = float(found["timeout"])
        except ValueError:
            return False
    return True
