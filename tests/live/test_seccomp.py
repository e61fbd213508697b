"""The filter in a real kernel: what it refuses, an oracle that shows each refusal to be its own, and what must work.

bubblewrap is called directly here, with the whole system shown read-only: only the filter is on trial. Started as root
the tests first become an ordinary user, since a payload is never root.
"""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sandbox.seccomp import Architecture, FilterMode, filter_for

pytestmark = pytest.mark.live
HERE = Path(__file__).parent
ARCHITECTURE = Architecture.of(platform.machine())
CASES: list[dict[str, Any]] = tomllib.loads((HERE.parent / "cases" / "seccomp.toml").read_text())["case"]
PYTHON = "/usr/bin/python3"
DROP = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--")
BWRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
    *("--perms", "1777", "--tmpfs", "/tmp", "--chdir", "/tmp", "--clearenv", "--setenv", "HOME", "/tmp"),
    *("--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8", "--setenv", "SHELL", "/bin/bash"),
    "--new-session",
)
# Root inside, so that bubblewrap needs no second user namespace and the capabilities are over its own namespaces.
CAPABLE = ("--uid", "0", "--gid", "0", "--cap-add", "ALL")


def present(case: dict[str, Any]) -> bool:
    return "number" in case or case["call"] in ARCHITECTURE.numbers


CASES = [case for case in CASES if present(case)]


def filter_descriptor(program: bytes) -> int:
    descriptor = os.memfd_create("filter", 0)
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def inside(
    command: Sequence[str], *, program: bytes | None, options: Sequence[str] = (), text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in bubblewrap as an ordinary user, under the filter or (None) without one."""
    drop = DROP if os.geteuid() == 0 else ()
    descriptors: list[int] = []
    if program is not None:
        descriptors.append(filter_descriptor(program))
        options = [*options, "--seccomp", str(descriptors[0])]
    try:
        return subprocess.run(
            [*drop, *BWRAP, *options, "--", *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            pass_fds=descriptors,
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def table() -> str:
    numbers = ARCHITECTURE.numbers
    return json.dumps(
        [{"number": case.get("number", numbers.get(case.get("call", ""))), "args": case["args"]} for case in CASES]
    )


def answers(program: bytes | None, options: Sequence[str] = ()) -> list[str]:
    script = (HERE / "seccomp_probe.py").read_text()
    done = inside([PYTHON, "-c", script], program=program, options=options, text=table())
    assert done.returncode == 0, done.stderr
    result: list[str] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def filtered() -> list[str]:
    return answers(filter_for(ARCHITECTURE))


@pytest.fixture(scope="module")
def oracles() -> dict[str, list[str]]:
    found = {"user": answers(None), "caps": answers(None, CAPABLE)}
    if os.geteuid() == 0:
        script = HERE / "seccomp_probe.py"
        rows = json.loads(table())
        harmless = [{"number": 39, "args": []}] * len(rows)
        for index in ROOT_PROVEN:
            harmless[index] = rows[index]
        done = subprocess.run(
            [sys.executable, script], input=json.dumps(harmless), capture_output=True, text=True, timeout=60, check=True
        )
        found["root"] = json.loads(done.stdout)
    return found


def name(case: dict[str, Any]) -> str:
    return f"{case.get('call', case.get('number'))}: {case['why']}"


@pytest.mark.parametrize("index", range(len(CASES)), ids=[name(case) for case in CASES])
def test_the_payload_sees_this_answer(index: int, filtered: list[str]) -> None:
    assert filtered[index] == CASES[index]["errno"]


PROVEN = [i for i, case in enumerate(CASES) if case["oracle"] in ("user", "caps")]
ROOT_PROVEN = [i for i, case in enumerate(CASES) if case["oracle"] == "root"]


@pytest.mark.parametrize("index", PROVEN, ids=[name(CASES[i]) for i in PROVEN])
def test_without_the_filter_the_answer_is_another(index: int, oracles: dict[str, list[str]]) -> None:
    assert oracles[CASES[index]["oracle"]][index] != CASES[index]["errno"]


@pytest.mark.root_only
@pytest.mark.parametrize("index", ROOT_PROVEN, ids=[name(CASES[i]) for i in ROOT_PROVEN])
def test_without_the_filter_root_gets_further(index: int, oracles: dict[str, list[str]]) -> None:
    assert oracles["root"][index] != CASES[index]["errno"]


def test_capabilities_in_a_user_namespace_do_not_get_past_the_filter(filtered: list[str]) -> None:
    assert answers(filter_for(ARCHITECTURE), CAPABLE) == filtered


def test_log_mode_executes_what_enforce_mode_refuses() -> None:
    logged = answers(filter_for(ARCHITECTURE, FilterMode.LOG))
    plain = answers(None)
    for case, with_log, without in zip(CASES, logged, plain, strict=True):
        if case.get("call") not in ("clone3", "openat2"):
            assert with_log == without, name(case)
        else:
            assert with_log == "ENOSYS"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 exists on x86-64 only")
def test_a_32_bit_entry_point_kills_the_process() -> None:
    code = """
import ctypes, mmap, os
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))(), flush=True)
"""
    assert inside([PYTHON, "-c", code], program=filter_for(ARCHITECTURE)).returncode == 128 + 31
    assert inside([PYTHON, "-c", code], program=None).returncode == 0


MUST_WORK: dict[str, dict[str, str]] = tomllib.loads((HERE.parent / "cases" / "must_work.toml").read_text())


# Too large to be installed for this: tried where they are. What else a row needs, scripts/system-packages.txt brings.
WHERE_INSTALLED = {"java", "javac", "chromium"}


def wanted(title: str) -> bool:
    program = MUST_WORK[title].get("needs", "bash")
    return program not in WHERE_INSTALLED or shutil.which(program) is not None


@pytest.mark.parametrize("title", [title for title in MUST_WORK if wanted(title)])
def test_ordinary_work_passes(title: str) -> None:
    done = inside(["bash", "-euo", "pipefail", "-c", MUST_WORK[title]["script"]], program=filter_for(ARCHITECTURE))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_this_process_is_not_filtered() -> None:
    assert ctypes.CDLL(None).prctl(21, 0, 0, 0, 0) == 0  # PR_GET_SECCOMP: the oracles above ran without any filter
