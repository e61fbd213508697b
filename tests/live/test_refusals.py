"""What cannot be done is refused in one sentence with cause and cure, exit code 125, and nothing is half-made."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import LaunchError
from sandbox.host import look_at_host
from tests.live.runs import FRONT, adopted, inside, wicketgate

pytestmark = pytest.mark.live
HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = tomllib.loads((HERE.parent / "cases" / "run_refusals.toml").read_text())["case"]
POORER = (sys.executable, str(HERE / "denied_calls.py"))
CABLE = ("--allow", "origin.example")
MARK = "the-command-was-started"


def check_refusal(done: subprocess.CompletedProcess[bytes], *said: str, code: int = 125) -> None:
    told = done.stderr.decode()
    assert done.returncode == code, told
    assert MARK not in done.stdout.decode(), "the command ran without a sandbox"
    assert "Traceback" not in told
    assert told.startswith("wicketgate: ")
    assert told.count("\n") == 1, "more than one line"
    for words in said:
        assert re.search(words, told), told


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("no certificate")
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "policy.toml").write_text("version = 99\n")
    (tmp_path / "policy.toml").chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=[" ".join(case["words"])[:60] for case in CASES])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_bad_input_is_refused(case: dict[str, Any], as_json: bool, scene: Path) -> None:
    words = [word.replace("{scene}", str(scene)) for word in case["words"]]
    environ = os.environ | {"XDG_STATE_HOME": str(scene / "state")}
    with adopted() as left:
        done = wicketgate(*(["--json"] if as_json else []), *words, env=environ, cwd=scene)
        check_refusal(done, case["said"], code=case.get("code", 125))
        assert left() == []
    assert not (scene / "state").exists(), "a refusal left state behind"
    if as_json:
        document = json.loads(done.stdout)
        assert document["error"]["message"]
        assert document["exit_code"] == done.returncode
    else:
        assert done.stdout == b""


@pytest.mark.parametrize(
    ("rule", "words", "said"),
    [
        ("no-user-namespaces", (), "user namespace"),
        ("no-user-namespaces", CABLE, "user namespace"),
        ("policy", (), "refuses a user namespace"),
        ("policy", CABLE, "user namespace"),
        ("no-network", CABLE, "refuses a namespace"),
        ("no-nf-tables", CABLE, "nf_tables"),
        ("no-netlink", CABLE, "netlink|broker cannot start"),
        ("no-bwrap", (), "bubblewrap.*[Ii]nstall"),
    ],
)
def test_a_poorer_host_is_refused(rule: str, words: tuple[str, ...], said: str) -> None:
    with adopted() as left:
        done = subprocess.run(
            [*POORER, rule, *FRONT, *words, "--", "echo", MARK], capture_output=True, check=False, timeout=60
        )
        check_refusal(done, said)
        assert left() == []


def test_the_rules_of_a_poorer_host_are_what_refuses() -> None:
    """The oracle: the same calls under a rule that does not concern them succeed."""
    done = subprocess.run([*POORER, "no-nf-tables", *FRONT, "--", "echo", MARK], capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode()) == (0, f"{MARK}\n"), done.stderr


@pytest.mark.root_only
def test_root_of_a_namespace_with_one_user_is_refused() -> None:
    done = subprocess.run([*POORER, "one-id", *FRONT, "--", "echo", MARK], capture_output=True, check=False)
    check_refusal(done, "does not exist in this user namespace")


@pytest.mark.ordinary_only
@pytest.mark.parametrize("environ", [{}, {"HOME": "relative"}, {"HOME": "", "XDG_STATE_HOME": ""}])
def test_without_a_state_directory_there_is_no_network(environ: dict[str, str]) -> None:
    done = wicketgate(*CABLE, "--", "echo", MARK, env={"PATH": os.environ["PATH"], **environ})
    check_refusal(done, "XDG_STATE_HOME")
    assert inside("echo alone", env={"PATH": os.environ["PATH"], **environ}) == "alone\n"


@pytest.mark.ordinary_only
@pytest.mark.parametrize("place", ["/proc/state", "/dev/null", "{tmp}/closed/below"])
def test_an_unusable_state_directory_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    place = place.replace("{tmp}", str(tmp_path))
    done = wicketgate(*CABLE, "--", "echo", MARK, env=os.environ | {"XDG_STATE_HOME": place})
    check_refusal(done, re.escape(place))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "not usable.*Install"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.symlink_to("/usr/bin/bwrap"), "not usable|not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b""), "not executable for everyone|owned by user"),
    ],
    ids=["missing", "directory", "link", "fifo", "file"],
)
def test_a_launcher_that_cannot_be_trusted(make: Any, said: str, tmp_path: Path) -> None:
    make(tmp_path / "bwrap")
    with pytest.raises(LaunchError, match=said):
        look_at_host(tmp_path / "bwrap")


@pytest.mark.root_only
@pytest.mark.parametrize(
    ("owner", "mode", "said"),
    [
        (0, 0o4755, "set-id"),
        (0, 0o2755, "set-id"),
        (0, 0o777, "written by others"),
        (0, 0o775, "written by others"),
        (1234, 0o755, "owned by user 1234"),
        (0, 0o700, "not executable"),
    ],
)
def test_a_launcher_in_the_wrong_hands(owner: int, mode: int, said: str, tmp_path: Path) -> None:
    launcher = tmp_path / "bwrap"
    launcher.write_bytes(Path("/usr/bin/bwrap").read_bytes())
    os.chown(launcher, owner, 0)
    launcher.chmod(mode)
    with pytest.raises(LaunchError, match=said):
        look_at_host(launcher)


def test_no_variable_chooses_the_launcher(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\necho {MARK}\n")
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin", "BWRAP": str(fake), "WICKETGATE_BWRAP": str(fake)}
    assert wicketgate("--", "true", env=environ).stdout == b""


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_of_ours_is_one_sentence_unless_the_trace_is_asked_for(debug: bool) -> None:
    """A broken installation, whose modules cannot be loaded: an error that nothing foresees."""
    environ = os.environ | ({"WICKETGATE_DEBUG": "1"} if debug else {})
    program = (
        "import sys; from wicketgate import cli; cli.COMMANDS['run'] = 'wicketgate.nosuch:command';"
        "sys.exit(cli.main(['run', '--json', '--', 'true']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=environ)
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"]
    assert (b"Traceback" in done.stderr) == debug
    assert debug or done.stderr.count(b"\n") == 1


def test_another_system_than_linux_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LaunchError, match="Linux only"):
        look_at_host()


@pytest.mark.parametrize(("limit", "number"), [("-n", 63), ("-n", 8), ("-f", 0)])
@pytest.mark.parametrize("words", [("run", "--", "true"), ("doctor",)])
def test_a_limit_that_no_sandbox_fits_in_is_named_with_its_cure(
    words: tuple[str, ...], limit: str, number: int
) -> None:
    line = f'ulimit {limit} {number}; exec "$0" -m wicketgate "$@"'
    done = subprocess.run(["sh", "-c", line, sys.executable, *words], capture_output=True, check=False)
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == (125 if words[0] == "run" else 78)
    assert f"no more than {number} " in told
    assert f"ulimit {limit}" in told
    assert "Traceback" not in told
    assert "error of Wicketgate itself" not in told


@pytest.mark.parametrize("words", [(), ("--allow", "example.com")])
def test_the_least_number_of_descriptors_is_enough(words: tuple[str, ...]) -> None:
    line = 'ulimit -n 64; exec "$0" -m wicketgate run "$@" --json -- true'
    done = subprocess.run(["sh", "-c", line, sys.executable, *words], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
