"""The plan and its arguments, whole: a golden file for each kind of sandbox, and what must hold for every one."""

import os
from pathlib import Path, PurePosixPath

import pytest

from sandbox.argv import arguments
from sandbox.environ import MAX_VALUE, environment
from sandbox.plan import HostLayout, Plan, plan
from sandbox.spec import Authority, Call, HomeFile, Mount, Network, SandboxSpec, Terminal

GOLDEN = Path(__file__).parents[1] / "cases" / "argv"
LAYOUT = HostLayout(
    links=(("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64"), ("/sbin", "usr/sbin")),
    directories=("/lib32",),
    hidden=("/proc/keys",),
    shared=("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
)
CALL = Call(argv=("sh", "-c", "echo --bind / / --"), timeout=5)
TRUST = (Mount(source=Path("/var/lib/wicketgate/trust/0/etc/ssl"), destination=Path("/etc/ssl")),)
SPECS = {
    "alone": SandboxSpec(call=CALL, authority=Authority()),
    "workspace": SandboxSpec(call=CALL, authority=Authority(workspace=Path("/srv/my project"))),
    "brokered": SandboxSpec(
        call=CALL,
        authority=Authority(
            network=Network.BROKERED,
            trust=TRUST,
            trust_environment=(("SSL_CERT_FILE", "/etc/ssl/cert.pem"),),
            home=(HomeFile(place=PurePosixPath(".pki/nssdb/cert9.db"), content=b"a database"),),
        ),
        terminal=Terminal(term="xterm-256color", color="truecolor", language="de_DE.UTF-8", timezone="Europe/Berlin"),
    ),
}


def lay_out(spec: SandboxSpec) -> tuple[Plan, list[str], list[bytes]]:
    files: list[bytes] = []

    def supply(content: bytes) -> int:
        files.append(content)
        return 100 + len(files) - 1

    planned = plan(spec, LAYOUT)
    return planned, arguments(planned, supply, seccomp=99), files


def render(words: list[str], files: list[bytes]) -> str:
    """One option a line, then the generated files."""
    lines: list[str] = []
    for word in words:
        lines.append(word) if word.startswith("--") else lines.append(f"{lines.pop()} {word}")
    texts = [f"\n== {100 + number}\n{content.decode()}" for number, content in enumerate(files)]
    return "\n".join(lines) + "\n" + "".join(texts)


@pytest.mark.parametrize("name", SPECS)
def test_arguments_are_the_golden_ones(name: str) -> None:
    """After a change on purpose: WICKETGATE_WRITE_GOLDEN=1 pytest, then read the difference."""
    _, words, files = lay_out(SPECS[name])
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("WICKETGATE_WRITE_GOLDEN") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(render(words, files))
    assert render(words, files) == file.read_text()


@pytest.mark.parametrize("name", SPECS)
def test_nothing_of_the_call_is_among_the_arguments(name: str) -> None:
    """A model writes the command; it must not become an option of bubblewrap's."""
    _, words, _ = lay_out(SPECS[name])
    assert not set(CALL.argv) & set(words)


@pytest.mark.parametrize("name", SPECS)
def test_every_sandbox_is_closed(name: str) -> None:
    spec = SPECS[name]
    _, words, _ = lay_out(spec)
    unshared = {word for word in words if word.startswith("--unshare")}
    closed = {"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"}
    assert unshared == closed | ({"--unshare-net"} if spec.authority.network is Network.NONE else set())
    assert {"--die-with-parent", "--clearenv", "--seccomp"} <= set(words)
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert words.index("--clearenv") < words.index("--setenv")
    assert "--share-net" not in words
    writable = [words[index + 1] for index, word in enumerate(words) if word == "--bind"]
    assert writable == ([str(spec.authority.workspace)] if spec.authority.workspace else [])
    assert words[-6:-4] == ["--remount-ro", "/"]


@pytest.mark.parametrize(
    ("field", "variable", "value", "expected"),
    [
        ("term", "TERM", "xterm-256color", "xterm-256color"),
        ("term", "TERM", "", "dumb"),
        ("term", "TERM", "x" * 65, "dumb"),
        ("term", "TERM", "../../etc/passwd", "dumb"),
        ("term", "TERM", "a b", "dumb"),
        ("term", "TERM", "xterm\n", "dumb"),
        ("term", "TERM", "$(id)", "dumb"),
        ("language", "LANG", "C.UTF-8", "C.UTF-8"),
        ("language", "LANG", "sr_RS.UTF-8@latin", "sr_RS.UTF-8@latin"),
        ("language", "LANG", "", "C.UTF-8"),
        ("language", "LANG", "/tmp/evil", "C.UTF-8"),
        ("timezone", "TZ", "Europe/Berlin", "Europe/Berlin"),
        ("timezone", "TZ", "Etc/../../passwd", None),
        ("timezone", "TZ", ":/etc/localtime", None),
        ("color", "COLORTERM", "truecolor", "truecolor"),
        ("color", "COLORTERM", "", None),
    ],
)
def test_what_the_caller_says_about_its_terminal(field: str, variable: str, value: str, expected: str | None) -> None:
    spec = SandboxSpec(call=CALL, authority=Authority(), terminal=Terminal(**{field: value}))
    assert dict(environment(spec)).get(variable) == expected


def test_a_trust_variable_that_is_too_long_is_left_out() -> None:
    trusted = (("A", "x" * MAX_VALUE), ("B", "x" * (MAX_VALUE + 1)))
    found = dict(environment(SandboxSpec(call=CALL, authority=Authority(trust_environment=trusted))))
    assert ("A" in found, "B" in found) == (True, False)


@pytest.mark.parametrize(
    ("call", "authority", "expected"),
    [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7), (0.5, 7, 0.5)],
)
def test_a_call_can_only_shorten_its_time(call: float | None, authority: float | None, expected: float | None) -> None:
    spec = SandboxSpec(call=Call(argv=("true",), timeout=call), authority=Authority(timeout=authority))
    assert spec.timeout == expected
