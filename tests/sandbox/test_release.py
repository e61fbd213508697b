"""The script of a release: whatever the words are, the shell hands exactly them on, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.release import APART, GO, MERGED, NOWHERE, SCRIPT_FD, STDIN_FD, WAITS, WORD_FD, script

SHELLS = [words for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(words[0])]
# Told only that it is a shell, each is made to execute env(1); dash, known by its name, executes the command itself.
PROGRAMS = [pytest.param(words, "", id=words[0]) for words in SHELLS]
PROGRAMS += [pytest.param(words, "dash", id="dash itself") for words in SHELLS if words[0] == "dash"]
SHOW = """
import json, os, sys
held = [int(n) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]
print(json.dumps([[os.fsencode(w).hex() for w in sys.argv[1:]], {os.fsencode(k).hex(): os.fsencode(v).hex()
    for k, v in os.environ.items() if k != 'LC_CTYPE'}, os.getcwd(), held, sys.stdin.read()]))
sys.stderr.write('complaint')
"""
words = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from([chr(0xDC80 + n) for n in range(128)])
)


def perform(
    shell: list[str], told: bytes, *, stdin: bytes = b"", word: bytes = GO, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Have a shell wait for the script as in a parked sandbox."""
    place, reader, hears = os.memfd_create("script"), piped(stdin), piped(word)
    try:
        os.write(place, told)
        moved = f"{SCRIPT_FD}<&{place} {STDIN_FD}<&{reader} {WORD_FD}<&{hears} {place}<&- {reader}<&- {hears}<&-"
        moved = f'exec {moved}; exec "$@"'
        return subprocess.run(
            ["bash", "-c", moved, "-", *shell, *WAITS[1:]],
            pass_fds=(place, reader, hears),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ or {},
            check=False,
        )
    finally:
        for fd in (place, reader, hears):
            os.close(fd)


def piped(content: bytes) -> int:
    """A pipe that holds this and has no writer any more."""
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    return reader


@pytest.mark.parametrize(("shell", "program"), PROGRAMS)
@settings(max_examples=40, deadline=None)
@given(arguments=st.lists(words, max_size=4), values=st.lists(words, max_size=3))
def test_every_word_arrives_as_it_was(shell: list[str], program: str, arguments: list[str], values: list[str]) -> None:
    environment = [(f"V{number}", value) for number, value in enumerate(values)]
    told = script(
        (sys.executable, "-I", "-c", SHOW, *arguments),
        environment,
        directory="/",
        stdin=False,
        outlets=APART,
        shell=program,
        left=["LEFT", "V0", "SHLVL", "_"],  # the last two are bash's, which starts the shell here
    )
    assert (b"exec '/usr/bin/env' '-i'" in told) == (program == "")
    done = perform(shell, told, environ={"LEFT": "over", "V0": "other"})
    found, variables, directory, _, _ = json.loads(done.stdout)
    assert [bytes.fromhex(word) for word in found] == [os.fsencode(word) for word in arguments]
    expected = {name.encode(): os.fsencode(value) for name, value in (*environment, ("PWD", "/"))}
    assert {bytes.fromhex(name): bytes.fromhex(value) for name, value in variables.items()} == expected
    assert directory == "/"


@pytest.mark.parametrize(("shell", "program"), PROGRAMS)
def test_every_byte_arrives_as_it_was(shell: list[str], program: str) -> None:
    every = os.fsdecode(bytes(range(1, 256)) * 3)
    argv = (sys.executable, "-I", "-c", SHOW, every)
    told = script(argv, (), directory="/", stdin=False, outlets=APART, shell=program)
    assert bytes.fromhex(json.loads(perform(shell, told).stdout)[0][0]) == os.fsencode(every)


@pytest.mark.parametrize(("shell", "program"), PROGRAMS)
@pytest.mark.parametrize("stdin", [False, True])
def test_only_the_three_streams_go_on(shell: list[str], program: str, tmp_path: Path, *, stdin: bool) -> None:
    place = tmp_path / "it's $(a) `directory`"
    place.mkdir()
    argv = (sys.executable, "-I", "-c", SHOW)
    told = script(argv, (), directory=str(place), stdin=stdin, outlets=APART, shell=program)
    done = perform(shell, told, stdin=b"told")
    _, _, directory, held, read = json.loads(done.stdout)
    assert (directory, held, read) == (str(place), [0, 1, 2], "told" if stdin else "")
    assert done.stderr == b"complaint"


@pytest.mark.parametrize(("shell", "program"), PROGRAMS)
def test_where_the_output_goes(shell: list[str], program: str) -> None:
    words = ("/bin/sh", "-c", "echo out; echo err >&2")
    merged = perform(shell, script(words, (), directory="/", stdin=False, outlets=MERGED, shell=program))
    assert (merged.stdout, merged.stderr) == (b"out\nerr\n", b"")
    nowhere = perform(shell, script(words, (), directory="/", stdin=False, outlets=NOWHERE, shell=program))
    assert (nowhere.returncode, nowhere.stdout, nowhere.stderr) == (0, b"", b"")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_without_its_script_or_without_the_word_nothing_is_executed(shell: list[str]) -> None:
    done = perform(shell, b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    told = script(("/bin/echo", "ran"), (), directory="/", stdin=False, outlets=APART)
    done = perform(shell, told, word=b"")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert perform(shell, told).stdout == b"ran\n"


@pytest.mark.parametrize("program", ["", "dash"])
def test_a_zero_byte_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        script(("/bin/echo", "a\0b"), (), directory="/", stdin=False, outlets=APART, shell=program)


def test_a_name_that_no_shell_has_is_left_to_env() -> None:
    told = script(("/bin/echo",), [("a-b", "c")], directory="/", stdin=False, outlets=APART, shell="dash")
    assert b"/usr/bin/env" in told
