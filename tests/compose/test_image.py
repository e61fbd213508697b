"""The image: what is in it, what is not, and that it says what it was made from."""

import hashlib
import json
import re
import tomllib
from typing import Any

from tests.compose.engine import Engine
from tests.compose.image import BASE, IMAGE
from tests.tree import ROOT

COMPILERS = "cc c++ gcc g++ clang tcc as ld ld.bfd ld.gold ld.lld make cmake rustc cargo go pip pip3 uv ensurepip"
MOST_BYTES = 260 << 20  # beside the base


def sh(engine: Engine, script: str, *options: str) -> str:
    return engine.docker("run", "--rm", "--network", "none", *options, "--entrypoint", "sh", IMAGE, "-c", script)


def test_it_runs_as_nobody_in_particular(engine: Engine) -> None:
    config = json.loads(engine.docker("image", "inspect", IMAGE))[0]["Config"]
    assert config["User"] == "64321:64321"
    assert config["Entrypoint"] == ["/usr/local/bin/wicketgate"]
    assert sh(engine, "id -u; id -G").split() == ["64321", "64321"]


def test_versions_are_recorded(engine: Engine) -> None:
    labels = json.loads(engine.docker("image", "inspect", IMAGE))[0]["Config"]["Labels"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert labels["org.opencontainers.image.version"] == version
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert engine.docker("run", "--rm", "--network", "none", IMAGE, "--version").endswith(version)

    locked = dict(
        re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", (ROOT / "requirements/runtime.lock").read_text(), re.MULTILINE)
    )
    recorded = dict(
        line.split("==") for line in sh(engine, "cat /usr/share/wicketgate/python-packages.txt").splitlines()
    )
    recorded = {name.lower().replace("_", "-"): found for name, found in recorded.items()}
    assert recorded == locked | {"wicketgate": version}

    rows = [line.split("\t") for line in sh(engine, "cat /usr/share/wicketgate/debian-packages.tsv").splitlines()]
    assert {"bubblewrap", "nftables", "python3", "tmux"} <= {name for name, _version, _architecture in rows}


def test_what_the_review_page_is_made_of_is_in_it(engine: Engine) -> None:
    """The templates compile and the files are there, byte for byte those of the tree."""
    script = """
import hashlib, importlib.resources, sys
from broker.review.page.rendering import environment
environment()
for name in sys.argv[1:]:
    print(hashlib.sha256((importlib.resources.files("broker.review.page") / name).read_bytes()).hexdigest())
"""
    page = ROOT / "broker/review/page"
    names = sorted(str(path.relative_to(page)) for kind in ("templates", "static") for path in (page / kind).iterdir())
    assert {"templates/overview.html", "static/style.css"} <= set(names)
    words = ("run", "--rm", "--network", "none", "--entrypoint", "/opt/wicketgate/bin/python", IMAGE, "-Ic", script)
    found = engine.docker(*words, *names).split()
    assert found == [hashlib.sha256((page / name).read_bytes()).hexdigest() for name in names]


def test_no_compiler_and_no_way_to_get_one(engine: Engine) -> None:
    found = sh(
        engine, f"for name in {COMPILERS}; do command -v $name; done; find / -xdev -name 'cc1*' 2>/dev/null; true"
    )
    assert found == ""
    assert sh(engine, "/opt/wicketgate/bin/python -c 'import pip' 2>&1; true").endswith("No module named 'pip'")


def test_nothing_in_it_gains_rights_or_can_be_changed(engine: Engine) -> None:
    for rule in ("-type f -perm /6000", "! -type l -perm /022 ! -perm -1000"):
        assert sh(engine, f"find / -xdev {rule} ! -path '/dev/*'", "--user", "0") == "", rule
    assert sh(engine, "find /usr /opt /etc -xdev ! -user 0", "--user", "0") == ""
    attribute = "import os, sys\nfor line in sys.stdin: print(*os.listxattr(line[:-1], follow_symlinks=False), end='')"
    capable = f'find /usr /opt -xdev -type f | /usr/bin/python3 -c "{attribute}"'
    assert "security.capability" not in sh(engine, capable, "--user", "0")


def test_it_is_small(engine: Engine) -> None:
    sizes = {name: json.loads(engine.docker("image", "inspect", name))[0]["Size"] for name in (IMAGE, BASE)}
    assert sizes[IMAGE] - sizes[BASE] < MOST_BYTES


def test_it_is_the_same_bit_by_bit_each_time_it_is_built(builds: list[dict[str, Any]]) -> None:
    """Layers and configuration, with nothing from a cache, and from a checkout with other times and modes."""
    first, second = builds
    assert first["RootFS"]["Layers"] == second["RootFS"]["Layers"]
    assert (first["Id"], first["Created"]) == (second["Id"], "2026-01-01T00:00:00Z")


def test_python_need_not_compile_what_comes_with_the_image(engine: Engine) -> None:
    """Times are part of what Python checks; ours is checked by content alone, Debian's by the time of its package."""
    script = """
    for python in /usr/bin/python3 /opt/wicketgate/bin/python; do
        $python -I -v -c 'import asyncio, json, ssl' 2>&1 | grep -c -e 'bytecode is stale' -e 'mtime mismatch'
        $python -I -v -c 'import asyncio, json, ssl' 2>&1 | grep -c 'code object from .*pyc'
    done
    /opt/wicketgate/bin/python -I -v -c 'import wicketgate.cli, aiohttp' 2>&1 | grep -c "code object from '.*[.]py'"
    true
    """
    stale, compiled, own_stale, own_compiled, from_source = sh(engine, script).split()
    assert (stale, own_stale, from_source) == ("0", "0", "0")
    assert int(compiled) > 20
    assert int(own_compiled) > 20


def test_tools_find_what_it_is_made_of(engine: Engine) -> None:
    """The package databases that scanners read are whole, and say what we wrote down ourselves."""
    status = sh(engine, "cat /var/lib/dpkg/status").split("\n\n")
    fields = [
        dict(line.split(": ", 1) for line in one.splitlines() if re.match(r"[A-Z][\w-]*: ", line)) for one in status
    ]
    installed = {(one["Package"], one["Version"]) for one in fields if one.get("Status") == "install ok installed"}
    rows = [line.split("\t") for line in sh(engine, "cat /usr/share/wicketgate/debian-packages.tsv").splitlines()]
    assert installed == {(name, version) for name, version, _architecture in rows}

    metadata = sh(engine, "cat /opt/wicketgate/lib/python3*/site-packages/*.dist-info/METADATA")
    found = set(
        zip(*(re.findall(rf"^{key}: (\S+)$", metadata, re.MULTILINE) for key in ("Name", "Version")), strict=True)
    )
    recorded = sh(engine, "cat /usr/share/wicketgate/python-packages.txt").splitlines()
    assert {f"{name}=={version}" for name, version in found} == set(recorded)
