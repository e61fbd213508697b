"""Where package managers keep the addresses of their sources, by the documentation of each.

Returns URLs as they are written; judges and opens none. Reading goes through `Machine`, so that it can be tried out on
a made-up machine. What a tool would override is left out here too: only what is really used may be opened.
"""

import configparser
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.policy.problems import Mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What presets may look at. `read`: a file's text, `None` if there is none; `names`: the names in a directory."""

    read: Callable[[str], str | None]
    names: Callable[[str], Sequence[str]]
    environ: Mapping[str, str]
    home: str

    @property
    def config_home(self) -> str:
        """The user's configuration directory (XDG Base Directory Specification)."""
        return self.environ.get("XDG_CONFIG_HOME") or f"{self.home}/.config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`urls` reads one tool's settings; `cure` says how to set them."""

    urls: Callable[[Machine], list[str]]
    cure: str


def _pip(machine: Machine) -> list[str]:
    settings: dict[str, str] = {}
    for path in _pip_files(machine):
        settings |= _pip_settings(path, machine)
    for key in ("index-url", "extra-index-url", "find-links", "no-index"):
        value = machine.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value is not None:
            settings[key] = value
    if settings.get("no-index", "").strip().lower() in {"1", "true", "yes", "on"}:
        settings = {"find-links": settings.get("find-links", "")}
    return " ".join(settings.get(key, "") for key in ("index-url", "extra-index-url", "find-links")).split()


def _pip_files(machine: Machine) -> list[str]:
    """Lowest precedence first (pip documentation, "Configuration")."""
    override = machine.environ.get("PIP_CONFIG_FILE")
    if override == "/dev/null":
        return []
    shared = [f"{directory}/pip/pip.conf" for directory in _config_dirs(machine)]
    user = [f"{machine.home}/.pip/pip.conf", f"{machine.config_home}/pip/pip.conf"]
    site = [f"{machine.environ['VIRTUAL_ENV']}/pip.conf"] if machine.environ.get("VIRTUAL_ENV") else []
    return [*shared, "/etc/pip.conf", *user, *site, *([override] if override else [])]


def _config_dirs(machine: Machine) -> list[str]:
    listed = machine.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [directory for directory in reversed(listed.split(":")) if directory]


def _pip_settings(path: str, machine: Machine) -> dict[str, str]:
    text = machine.read(path)
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text or "")
    except configparser.Error:
        raise _broken("pip", path) from None
    found: dict[str, str] = {}
    for section in ("global", "download", "install"):
        if parser.has_section(section):
            found |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    return found


def _uv(machine: Machine) -> list[str]:
    urls: dict[str, list[str]] = {}
    for path in (
        *(f"{directory}/uv/uv.toml" for directory in ("/etc", *_config_dirs(machine))),
        machine.environ.get("UV_CONFIG_FILE") or f"{machine.config_home}/uv/uv.toml",
    ):
        urls |= _uv_settings(_toml("uv", path, machine))
    for key, names in (
        ("index-url", ("UV_INDEX_URL", "UV_DEFAULT_INDEX")),
        ("extra-index-url", ("UV_EXTRA_INDEX_URL", "UV_INDEX")),
        ("find-links", ("UV_FIND_LINKS",)),
    ):
        for name in names:
            if machine.environ.get(name):
                # UV_INDEX may carry a name: name=URL.
                urls[key] = [re.sub(r"\A[\w-]+=(?=[a-z]+:)", "", part) for part in machine.environ[name].split()]
    return [url for group in urls.values() for url in group]


def _uv_settings(table: Mapping[str, object]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for scope in (table, table.get("pip")):
        if not isinstance(scope, dict):
            continue
        for key in ("index-url", "extra-index-url", "find-links"):
            if key in scope:
                found[key] = _texts(scope[key])
        if isinstance(scope.get("index"), list):
            found["index"] = [
                url for entry in scope["index"] if isinstance(entry, dict) for url in _texts(entry.get("url"))
            ]
    return found


def _npm(machine: Machine) -> list[str]:
    settings: dict[str, str] = {}
    prefixes = ("/usr", "/usr/local", machine.environ.get("PREFIX", ""))
    shared = [machine.environ.get("NPM_CONFIG_GLOBALCONFIG", ""), *(f"{prefix}/etc/npmrc" for prefix in prefixes)]
    user = machine.environ.get("NPM_CONFIG_USERCONFIG") or f"{machine.home}/.npmrc"
    for path in (*shared, user):
        for line in (machine.read(path) or "").splitlines() if path else ():
            key, separator, value = line.partition("=")
            if separator and not line.lstrip().startswith((";", "#")):
                settings[key.strip()] = _npm_value(value, machine)
    for name, value in machine.environ.items():
        if name.lower().startswith("npm_config_"):
            settings[name.lower().removeprefix("npm_config_")] = value
    return [value for key, value in settings.items() if key == "registry" or re.fullmatch(r"@[^:]+:registry", key)]


def _npm_value(value: str, machine: Machine) -> str:
    bare = value.strip().strip("\"'")
    return re.sub(r"\$\{([^}]+)\}", lambda found: machine.environ.get(found[1], ""), bare)


def _apt(machine: Machine) -> list[str]:
    urls = _apt_lines(machine.read("/etc/apt/sources.list") or "")
    for name in sorted(machine.names("/etc/apt/sources.list.d")):
        text = machine.read(f"/etc/apt/sources.list.d/{name}") or ""
        if name.endswith(".list"):
            urls += _apt_lines(text)
        elif name.endswith(".sources"):
            urls += _apt_stanzas(text)
    return urls


def _apt_lines(text: str) -> list[str]:
    found = re.finditer(r"^\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)", text, re.MULTILINE)
    return [line[1] for line in found]


def _apt_stanzas(text: str) -> list[str]:
    """deb822 (sources.list(5)): a field goes on in lines that start with a blank; comments may stand in between."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    urls: list[str] = []
    for stanza in re.split(r"\n\s*\n", plain):
        fields = {
            found[1].lower(): found[2]
            for found in re.finditer(r"^([A-Za-z-]+):((?:[^\n]*)(?:\n[ \t][^\n]*)*)", stanza, re.MULTILINE)
        }
        if fields.get("enabled", "yes").strip().lower() not in {"no", "false", "0"}:
            urls += fields.get("uris", "").split()
    return urls


def _cargo(machine: Machine) -> list[str]:
    home = machine.environ.get("CARGO_HOME") or f"{machine.home}/.cargo"
    table = {**_toml("cargo", f"{home}/config", machine), **_toml("cargo", f"{home}/config.toml", machine)}
    registries, sources = _tables(table.get("registries")), _tables(table.get("source"))
    urls = [url for entry in registries.values() for url in _texts(entry.get("index"))]
    # A replaced source is not contacted.
    used = [entry for entry in sources.values() if "replace-with" not in entry]
    urls += [url for entry in used for key in ("registry", "git") for url in _texts(entry.get(key))]
    pattern = re.compile(r"CARGO_REGISTRIES_\w+_INDEX")
    return urls + [value for name, value in machine.environ.items() if pattern.fullmatch(name)]


def _go(machine: Machine) -> list[str]:
    settings: dict[str, str] = {}
    path = machine.environ.get("GOENV") or f"{machine.config_home}/go/env"
    for line in (machine.read(path) or "").splitlines():
        key, _, value = line.partition("=")
        settings[key.strip()] = value.strip()
    settings |= {key: machine.environ[key] for key in ("GOPROXY", "GOSUMDB") if machine.environ.get(key)}
    return re.split(r"[,|\s]+", f"{settings.get('GOPROXY', '')} {settings.get('GOSUMDB', '')}".strip())


def _toml(tool: str, path: str, machine: Machine) -> dict[str, object]:
    try:
        return tomllib.loads(machine.read(path) or "")
    except tomllib.TOMLDecodeError:
        raise _broken(tool, path) from None


def _texts(value: object) -> list[str]:
    items: Iterable[object] = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _tables(value: object) -> dict[str, dict[str, object]]:
    return {key: entry for key, entry in value.items() if isinstance(entry, dict)} if isinstance(value, dict) else {}


def _broken(tool: str, path: str) -> Mistake:
    return Mistake(f"the {tool} configuration {path} cannot be read", "a file that the tool itself accepts")


PRESETS: Final[dict[str, Source]] = {
    "apt": Source(urls=_apt, cure="add a deb line to /etc/apt/sources.list or a file in sources.list.d"),
    "cargo": Source(urls=_cargo, cure="set [registries] or [source] in ~/.cargo/config.toml"),
    "go": Source(urls=_go, cure="set GOPROXY (go env -w GOPROXY=https://…)"),
    "npm": Source(urls=_npm, cure="set it with: npm config set registry https://…"),
    "pip": Source(urls=_pip, cure="set it with: pip config set global.index-url https://…"),
    "uv": Source(urls=_uv, cure="set index-url or [[index]] in uv.toml"),
}
