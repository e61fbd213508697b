"""The tree keeps the shape that the design gives it: directions, purity, who executes, words, no registry hosts."""

# ruff: noqa: SIM905  (a table of words reads better than a column of strings)

import ast
import graphlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.tree import PACKAGES, ROOT, module_name, project_files

# What each package may import of ours, itself aside. A dotted entry opens that module (and what is below it) only.
DIRECTION: Final[dict[str, tuple[str, ...]]] = {
    "certs": (),
    "netns": (),
    "broker": ("certs",),
    "sandbox": ("netns", "certs", "broker.control.client", "broker.control.messages", "broker.policy.reasons"),
    "wicketgate": ("broker", "netns", "sandbox", "certs"),
}

# Decision code. A prefix covers the modules below it; the exceptions read files, which is why they are apart.
PURE: Final = (
    *("broker.policy", "broker.wire", "sandbox.plan", "sandbox.argv", "sandbox.spec", "sandbox.environ"),
    *("broker.audit.records", "broker.audit.escaping", "broker.audit.redaction"),
    *(f"broker.review.{name}" for name in "suggest replay suggestion refusals gather targets draft fit".split()),
    *(f"broker.review.{name}" for name in "rule_text fate hidden asked judging tally aside closed".split()),
)
NOT_PURE: Final = ("broker.policy.load",)

# Constants that come as a file of an installed package, read once.
READS_A_CONSTANT: Final = {("broker.policy.suffixes", "asks the file system by .read_text()"): "the public suffix list"}

WAITS_OR_LOOKS: Final = frozenset(
    "aiohttp asyncio concurrent ctypes fcntl getpass glob http.client io logging mmap multiprocessing os platform pty"
    " pyroute2 random resource secrets select selectors shutil signal socket socketserver sqlite3 ssl subprocess sys"
    " tempfile termios threading time urllib.request uuid uvloop dns.resolver dns.asyncresolver dns.query"
    " dns.asyncquery".split(),
)
IMPURE_CALLS: Final = frozenset(["open", "input", "print", "exec", "eval"])
CLOCK_METHODS: Final = frozenset(["now", "utcnow", "today"])
# A path is a value as long as nobody asks the file system about it.
PATH_METHODS: Final = frozenset(
    "absolute cwd exists expanduser glob home is_dir is_file is_mount is_socket is_symlink iterdir lstat mkdir open"
    " read_bytes read_text readlink resolve rglob samefile stat symlink_to touch unlink walk write_bytes"
    " write_text".split(),
)

# The one module that may execute a program.
EXECUTION: Final = "sandbox.execution"
# Starts `wicketgate run` itself, and nothing else; its test looks at the words.
OURSELVES: Final = "wicketgate.alone"
# Modules that may fork without executing anything: the child goes on in our own code.
FORKS: Final = {
    "sandbox.cgroups.claim": "what undoes the claim outlives the server",
    "sandbox.forking": "the child becomes bubblewrap, or a command of a sandbox that runs",
    "sandbox.starter.start": "what forks for the runner; the interpreter is executed anew for it",
    "sandbox.starter.process": "a child moves itself into a control group, and ends",
    "sandbox.ownership": "a user namespace exists only while a process is in it",
    "sandbox.protect.keeper": "what cleans up after a killed server outlives it",
    "netns.joining": "the first process of a pid namespace",
    "sandbox.doctor.children": "each attempt in a child that ends with what it made",
    "sandbox.doctor.wholes": "names are answered beside the proof that asks for them",
    "wicketgate.runner.start": "the gate and the runner",
    "wicketgate.broker_process": "the broker of a run without a daemon",
    "wicketgate.doorway": "the process that lets peers in, which stays outside the broker's user namespace",
    "wicketgate.fork_server": "the broker's workers, and the process that forks them",
}
STARTS_PROCESSES: Final = re.compile(
    r"(os\.(exec\w+|forkpty|posix_spawn\w*|spawn\w+|system|popen)|pty\.(fork|spawn)|asyncio\.create_subprocess\w+"
    r"|\w+\.subprocess_(exec|shell)|multiprocessing\.\w+|concurrent\.futures\.ProcessPoolExecutor)",
)

# RFC 5280's word for an attribute of a certificate's subject, and what pip, npm and apt are called.
TERMS_OF_THE_FIELD: Final = re.compile(r"common_?name|package_?manager", re.IGNORECASE)
ONLY_FORKS: Final = frozenset(["os.fork"])

FORBIDDEN_WORDS: Final = frozenset(
    "whitelist whitelisted blacklist blacklisted jail jailed manager managers helper helpers util utils common".split(),
)


def sources(*tops: str) -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and path.parts[0] in tops]


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def base_of(path: Path, node: ast.ImportFrom) -> str:
    """The absolute name of the module that `from … import` names."""
    if node.level == 0:
        return node.module or ""
    package = module_name(path) if path.name == "__init__.py" else module_name(path.parent / "__init__.py")
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every name that a file imports, wherever in it, as a dotted name with its line."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = base_of(path, node)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def is_under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sources(*PACKAGES)}


@cache
def our_module(name: str) -> str | None:
    """The longest prefix of a dotted name that is a module of ours."""
    known = modules()
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def test_every_package_is_looked_at() -> None:
    assert {name.partition(".")[0] for name in modules()} == set(PACKAGES) == set(DIRECTION)


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path}:{line}: {name}"
        for path in sources(*PACKAGES)
        for name, line in imports(path)
        if name.partition(".")[0] in (*PACKAGES, "tests", "bench", "scripts")
        and not is_under(name, (path.parts[0], *DIRECTION[path.parts[0]]))
    ]
    assert not wrong, "imported against the direction of the design:\n" + "\n".join(wrong)


def test_no_cycles() -> None:
    graph = {
        name: {target for imported, _ in imports(path) if (target := our_module(imported)) and target != name}
        for name, path in modules().items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


@cache
def pure_modules() -> dict[str, Path]:
    return {name: path for name, path in modules().items() if is_under(name, PURE) and not is_under(name, NOT_PURE)}


def impurities(path: Path) -> Iterator[tuple[str, int]]:
    """What a file would need the outside for: modules, builtins, the clock, paths that can be opened."""
    for name, line in imports(path):
        if is_under(name, tuple(WAITS_OR_LOOKS)):
            yield f"imports {name}", line
        target = our_module(name)
        if target and not is_under(target, PURE):
            yield f"imports {target}, which is not decision code", line
        if target and is_under(target, NOT_PURE):
            yield f"imports {target}, which reads files", line
    for node in ast.walk(syntax(path)):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in IMPURE_CALLS:
                yield f"calls {called}()", node.lineno
            case ast.Call(func=ast.Attribute(attr=called)) if called in PATH_METHODS:
                yield f"asks the file system by .{called}()", node.lineno
            case ast.Call(func=ast.Attribute(attr=called, value=ast.Name() | ast.Attribute())) if (
                called in CLOCK_METHODS and "date" in ast.unparse(node.func)
            ):
                yield f"reads the clock by {ast.unparse(node.func)}()", node.lineno


def test_decision_code_does_nothing_but_decide() -> None:
    wrong = [
        f"{path}:{line}: {what}"
        for name, path in pure_modules().items()
        for what, line in impurities(path)
        if (name, what) not in READS_A_CONSTANT
    ]
    assert pure_modules()
    assert not wrong, "decision code reaches outside:\n" + "\n".join(wrong)


def process_starts(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imports(path):
        if is_under(name, ("subprocess", "multiprocessing", "pty")) or _starts(name):
            yield name, line
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Attribute) and _starts(ast.unparse(node)):
            yield ast.unparse(node), node.lineno


def _starts(name: str) -> bool:
    return name in ONLY_FORKS or STARTS_PROCESSES.fullmatch(name) is not None


def test_only_one_module_starts_programs() -> None:
    wrong = [
        f"{path}:{line}: {what}"
        for name, path in modules().items()
        if name != EXECUTION
        for what, line in process_starts(path)
        if (what not in ONLY_FORKS or name not in FORKS) and name != OURSELVES
    ]
    assert not wrong, f"processes are started outside {EXECUTION}:\n" + "\n".join(wrong)


def test_the_python_api_starts_nothing_but_our_own_command() -> None:
    source = ast.unparse(syntax(modules()[OURSELVES]))
    assert [what for what, _ in process_starts(modules()[OURSELVES])] == ["asyncio.create_subprocess_exec"]
    assert "words = [sys.executable, '-m', 'wicketgate', 'run', '--json', *self._options()]" in source
    assert "asyncio.create_subprocess_exec(*words, '--', *command," in source


def test_every_exception_is_used() -> None:
    """An entry that outlives its reason would let something else through."""
    starting = {name for name, path in modules().items() for _ in process_starts(path)}
    assert starting == {EXECUTION, OURSELVES, *FORKS}


def defined_names(path: Path) -> Iterator[tuple[str, int]]:
    """The names that a file itself makes; names it only uses are somebody else's choice."""
    for node in ast.walk(syntax(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


def words_of(name: str) -> set[str]:
    """`HTTPManager`, `http_manager` and `httpManager` all have the word `manager`."""
    name = TERMS_OF_THE_FIELD.sub("", name)
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_./\-]", " ", name)
    return set(spaced.lower().split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("HTTPManager", {"http", "manager"}),
        ("url_utils", {"url", "utils"}),
        ("contextmanager", {"contextmanager"}),
        ("_jailRoot", {"jail", "root"}),
        ("LONGEST_COMMON_NAME", {"longest"}),
        ("common_roots", {"common", "roots"}),
    ],
)
def test_words_of(name: str, words: set[str]) -> None:
    assert words_of(name) == words


def test_words_of_the_design() -> None:
    looked_at = sources(*PACKAGES, "tests", "bench", "scripts")
    named = [
        (name, f"{path}:{line}") for path in looked_at for name, line in [*defined_names(path), (module_name(path), 1)]
    ]
    wrong = [f"{where}: {name}" for name, where in named if words_of(name) & FORBIDDEN_WORDS]
    assert not wrong, "words that the design does not use:\n" + "\n".join(wrong)


# ---- no registry host in any file ------------------------------------------------------------------------------------


def pip_hosts() -> set[str]:
    """pip's own default index and file host, and what this machine's configuration adds."""
    ask = "from pip._internal.models.index import PyPI as p; print(p.url, '//' + p.file_storage_domain)"
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return hosts_in(told) | hosts_in(configured.stdout)


def npm_hosts() -> set[str]:
    if shutil.which("npm") is None:
        return set()
    command = ["npm", "config", "get", "registry"]
    return hosts_in(subprocess.run(command, capture_output=True, text=True, check=False, cwd="/").stdout)


def apt_hosts() -> set[str]:
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt").glob("sources.list.d/*")]
    return {host for file in files if file.is_file() for host in hosts_in(file.read_text(errors="replace"))}


def hosts_in(text: str) -> set[str]:
    urls = re.findall(r"(?:[a-z+]+:)?//[^\s'\"<>]+", text)
    hosts = {urlsplit(url).hostname for url in urls}
    return {host for host in hosts if host and "." in host and not re.fullmatch(r"[\d.]+", host)}


def test_no_file_names_a_package_registry() -> None:
    hosts = {host.encode() for host in pip_hosts() | npm_hosts() | apt_hosts()}
    assert hosts
    wrong = [
        f"{path}: {host.decode()}"
        for path in project_files()
        for host in hosts
        if host in (ROOT / path).read_bytes().lower()
    ]
    assert not wrong, "hosts of package registries, which each machine's own configuration names:\n" + "\n".join(wrong)
