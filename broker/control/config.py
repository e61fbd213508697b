"""The broker's own configuration file: where its policy, state and sockets are, and who may use which socket.

TOML, version 1, read as strictly as the policy file and with the same words for what is wrong. Pure: `parse_config`
gets the text; opening the file is `broker.policy.load.read_trusted`. Users and groups stay names here; the starter
looks them up.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from broker.audit.log import SyncPolicy
from broker.policy.addresses import Address, parse_address
from broker.policy.authority import Authority, parse_authority
from broker.policy.document import parse_toml
from broker.policy.problems import Mistake, PolicyError, Problem, closest, quote
from broker.policy.reading import Findings, Section
from broker.policy.reasons import Refusal
from broker.policy.toml_lines import locate

FORMAT_VERSION: Final = 1
DAY: Final = 86_400
_TABLES: Final = ("version", "broker", "control", "attach", "grants", "resolve")
_BROKER_KEYS: Final = ("policy", "state", "runtime", "sync", "cacert", "workers")
MAX_WORKERS: Final = 64
USUAL_WORKERS: Final = 8  # at most, unless configured: each takes memory, and containers have few processes
_SOCKET_KEYS: Final = ("users", "groups")
# Lowest and highest value of each number of [grants], with its default.
_GRANT_KEYS: Final[dict[str, tuple[int, int, int]]] = {
    "max_seconds": (1, 366 * DAY, DAY),
    "max_open": (1, 1_000_000, 10_000),
    "retention_seconds": (60, 3660 * DAY, 30 * DAY),
}
# useradd(8), and wider: what no account name can be is refused, so that a typo is no open door.
_ACCOUNT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?")
_MAX_ID: Final = 2**32 - 2  # (uid_t)-1 means "nobody in particular" in several system calls

type Account = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Who may connect to a socket, beside root and the broker's own user: accounts by name or number."""

    users: tuple[Account, ...] = ()
    groups: tuple[Account, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLimits:
    """Bounds on grants. Times are seconds.

    max_seconds: the longest life that a grant may be given. max_open: how many may be in force at once.
    retention_seconds: how long an ended grant can still be shown.
    """

    max_seconds: int = _GRANT_KEYS["max_seconds"][2]
    max_open: int = _GRANT_KEYS["max_open"][2]
    retention_seconds: int = _GRANT_KEYS["retention_seconds"][2]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The whole file. `state` and `runtime` are `None` for the places that are usual for the user who starts it, and
    `workers` for one a core, at most `USUAL_WORKERS`.
    """

    policy: str
    state: str | None = None
    runtime: str | None = None
    sync: SyncPolicy = SyncPolicy.INTERVAL
    cacert: tuple[str, ...] = ()
    workers: int | None = None
    control: Allowed = field(default_factory=Allowed)
    attach: Allowed = field(default_factory=Allowed)
    grants: GrantLimits = field(default_factory=GrantLimits)
    fixed: Mapping[Authority, tuple[Address, ...]] = field(default_factory=dict)


def parse_config(text: str, *, source: str) -> BrokerConfig:
    """Parse a configuration file. Raises `PolicyError` with all problems."""
    findings = Findings(lambda: locate(text))
    top = Section(parse_toml(text, source), "", (), findings)
    _check_top(top)
    broker = _table(top, "broker", _BROKER_KEYS)
    policy = _path(broker, "policy")
    if "policy" not in broker.values:
        broker.wrong(
            Mistake("policy is missing", "the path of the policy file", 'policy = "/etc/wicketgate/policy.toml"')
        )
    config = BrokerConfig(
        policy=policy or "",
        state=_path(broker, "state"),
        runtime=_path(broker, "runtime"),
        sync=broker.choice("sync", SyncPolicy, SyncPolicy.INTERVAL) or SyncPolicy.INTERVAL,
        cacert=_certificates(broker),
        workers=_number(broker, "workers", 1, MAX_WORKERS, 2) if "workers" in broker.values else None,
        control=_allowed(top, "control"),
        attach=_allowed(top, "attach"),
        grants=_grants(top),
        fixed=_fixed(top),
    )
    if findings.errors:
        raise PolicyError(source, findings.errors)
    return config


def _check_top(top: Section) -> None:
    for key in top.values:
        if key not in _TABLES:
            meant = "[broker]" if key in _BROKER_KEYS else closest(key, _TABLES)
            top.wrong(Mistake(f"unknown key {quote(key)}", f"one of {', '.join(_TABLES)}", meant), key)
    version = top.values.get("version")
    if "version" not in top.values:
        top.wrong(Mistake("version is missing", "the version of this format, first", f"version = {FORMAT_VERSION}"))
    elif version != FORMAT_VERSION or isinstance(version, bool) or not isinstance(version, int):
        top.wrong(
            Mistake(f"version is {quote(version)}", str(FORMAT_VERSION), f"version = {FORMAT_VERSION}"), "version"
        )


def _table(top: Section, key: str, known: tuple[str, ...] | None) -> Section:
    values = top.values.get(key, {})
    if not isinstance(values, dict):
        top.wrong(Mistake(f"{key} is {quote(values)}", "a table", f"[{key}]"), key)
        values = {}
    section = Section(values, f"[{key}]", (key,), top.findings)
    if known is not None:
        section.refuse_unknown(known)
    return section


def _certificates(section: Section) -> tuple[str, ...]:
    if section.values.get("cacert") == []:
        return ()
    return section.parsed("cacert", "paths", 'cacert = ["/etc/ssl/company.pem"]', _absolute) or ()


def _path(section: Section, key: str) -> str | None:
    text = section.text(key)
    if text is None:
        return None
    try:
        return _absolute(text)
    except Mistake as mistake:
        section.wrong(mistake, key)
        return None


def _absolute(text: str) -> str:
    # A relative path would mean another file in each directory that the broker is started from.
    if not PurePosixPath(text).is_absolute() or not text.isprintable():
        raise Mistake(f"path {quote(text)}", "an absolute path", quote(f"/etc/wicketgate/{PurePosixPath(text).name}"))
    return text


def _allowed(top: Section, key: str) -> Allowed:
    section = _table(top, key, _SOCKET_KEYS)
    return Allowed(users=_accounts(section, "users"), groups=_accounts(section, "groups"))


def _accounts(section: Section, key: str) -> tuple[Account, ...]:
    if section.values.get(key) == []:
        return ()
    found: list[Account] = []
    for index, item in enumerate(section.items(key, "names or numbers", f'{key} = ["agent"]') or ()):
        number = isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MAX_ID
        if number or (isinstance(item, str) and _ACCOUNT.fullmatch(item)):
            found.append(item)  # type: ignore[arg-type]
        else:
            section.wrong(Mistake(f"{key} holds {quote(item)}", "names of accounts, or their numbers"), key, index)
    return tuple(found)


def _grants(top: Section) -> GrantLimits:
    section = _table(top, "grants", tuple(_GRANT_KEYS))
    values: dict[str, int] = {}
    for key, (low, high, default) in _GRANT_KEYS.items():
        values[key] = _number(section, key, low, high, default)
    return GrantLimits(**values)


def _number(section: Section, key: str, low: int, high: int, default: int) -> int:
    value = section.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        expected = f"a whole number from {low} to {high}"
        section.wrong(Mistake(f"{key} is {quote(value)}", expected, f"{key} = {default}"), key)
        return default
    return value


def _fixed(top: Section) -> dict[Authority, tuple[Address, ...]]:
    section = _table(top, "resolve", None)
    fixed: dict[Authority, tuple[Address, ...]] = {}
    for key in section.values:
        try:
            authority = parse_authority(key.encode(), default_port=None)
        except Refusal as refusal:
            expected = '"HOST:PORT" = ["ADDRESS"]'
            section.wrong(
                Mistake(f"{quote(key)}: {refusal.detail}", expected, '"api.example.com:443" = ["192.0.2.7"]'), key
            )
            continue
        fixed[authority] = section.parsed(key, "addresses", f'{quote(key)} = ["192.0.2.7"]', _address) or ()
    return fixed


def _address(text: str) -> Address:
    address = parse_address(text)
    if address is None:
        raise Mistake(f"address {quote(text)}", "an IP address")
    return address


def problem_of(source: str, found: str, expected: str, suggestion: str | None = None) -> PolicyError:
    """One problem of the whole file, found after it was parsed."""
    return PolicyError(source, [Problem(found=found, expected=expected, suggestion=suggestion)])
