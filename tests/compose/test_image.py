"""The image: what is in it, what is not, and that it says what it was made from."""

import json
import re
import tomllib

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


def test_our_part_is_the_same_each_time_it_is_built(engine: Engine) -> None:
    """The byte code is checked by content, so no file holds a time; the wheel is built with a fixed one."""
    script = r"""
    /opt/wicketgate/bin/python - <<'END'
import pathlib, struct
for path in pathlib.Path("/opt/wicketgate/lib").rglob("*.pyc"):
    if struct.unpack("<I", path.read_bytes()[4:8])[0] & 1 == 0: print(path)
END
    find /opt/wicketgate -name direct_url.json
    """
    assert sh(engine, script) == ""
