"""Presets: what a made-up machine's package managers are set to, and nothing that they are not set to."""

from collections.abc import Mapping
from typing import Any

import pytest

from broker.policy.load import parse_policy
from broker.policy.preset_sources import PRESETS, Machine
from broker.policy.problems import PolicyError
from broker.policy.rules import Policy


def machine(files: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> Machine:
    texts = dict(files or {})

    def names(directory: str) -> list[str]:
        inside = [path for path in texts if path.startswith(f"{directory}/")]
        return [path.removeprefix(f"{directory}/") for path in inside]

    return Machine(read=texts.get, names=names, environ=dict(environ or {}), home="/home/u")


def load(preset: str, where: Machine | None, more: str = "") -> Policy:
    text = f'version = 1\n[[rule]]\nname = "{preset}"\naction = "allow"\npreset = "{preset}"\n{more}'
    return parse_policy(text, source="test", machine=where)


def reached(policy: Policy) -> set[str]:
    return {f"{host.text}:{port}" for rule in policy.rules for host in rule.hosts for port in rule.ports or ()}


FILES: list[tuple[str, dict[str, str], dict[str, str], set[str]]] = [
    (
        "pip",
        {"/etc/pip.conf": "[global]\nindex-url = https://pypi.corp.example/simple\n"},
        {},
        {"pypi.corp.example:443"},
    ),
    (
        "pip",
        {
            "/etc/pip.conf": (
                "[global]\nindex-url = https://old.corp.example/\n"
                "extra-index-url =\n https://a.example/x\n http://b.example:8080/y\n"
            ),
            "/home/u/.config/pip/pip.conf": "[install]\nindex_url = https://new.corp.example/\n",
        },
        {},
        {"new.corp.example:443", "a.example:443", "b.example:8080"},
    ),
    (
        "pip",
        {"/etc/pip.conf": "[global]\nindex-url = https://old.corp.example/\n"},
        {"PIP_INDEX_URL": "https://user:secret@env.corp.example:8443/simple", "PIP_EXTRA_INDEX_URL": "file:///opt/x"},
        {"env.corp.example:8443"},
    ),
    (
        "pip",
        {
            "/etc/pip.conf": "[global]\nindex-url = https://a.example/\n",
            "/v/pip.conf": "[global]\nindex-url = https://b.example/\n",
        },
        {"VIRTUAL_ENV": "/v"},
        {"b.example:443"},
    ),
    (
        "pip",
        {
            "/x/pip.conf": "[global]\nindex-url = https://b.example/\n",
            "/etc/xdg/pip/pip.conf": "[global]\nindex-url=https://a.example",
        },
        {"PIP_CONFIG_FILE": "/x/pip.conf"},
        {"b.example:443"},
    ),
    (
        "pip",
        {
            "/etc/pip.conf": "[global]\nindex-url = https://a.example/\nno-index = true\nfind-links = https://f.example/w\n"
        },
        {},
        {"f.example:443"},
    ),
    (
        "npm",
        {
            "/etc/npmrc": "registry=https://ignored.example/",
            "/usr/etc/npmrc": "registry=https://global.example/\n",
            "/home/u/.npmrc": (
                "; registry=https://comment.example/\nregistry = https://npm.corp.example/r/\n"
                "@corp:registry=http://scoped.corp.example:4873/\n//npm.corp.example/:_authToken=secret\n"
            ),
        },
        {},
        {"npm.corp.example:443", "scoped.corp.example:4873"},
    ),
    ("npm", {"/home/u/.npmrc": "registry=${REG}\n"}, {"REG": "https://var.example/"}, {"var.example:443"}),
    (
        "npm",
        {"/home/u/.npmrc": "registry=https://a.example\n"},
        {"npm_config_registry": "https://env.example/"},
        {"env.example:443"},
    ),
    (
        "apt",
        {
            "/etc/apt/sources.list": (
                "# deb https://comment.example/ stable main\n"
                "deb http://mirror.example/debian bookworm main\n"
                "deb-src [arch=amd64 signed-by=/x] https://src.example:8443/debian bookworm main\n"
                "deb cdrom:[Debian]/ stable main\n"
            ),
            "/etc/apt/sources.list.d/a.list": "deb mirror+https://list.example/x stable main\n",
            "/etc/apt/sources.list.d/b.sources": (
                "Types: deb\nURIs: http://one.example/debian\n  https://two.example/debian\nSuites: x\n\n"
                "# a comment\nEnabled: no\nTypes: deb\nURIs: http://off.example/\n"
            ),
            "/etc/apt/sources.list.d/c.list.save": "deb http://saved.example/ x y\n",
        },
        {},
        {"mirror.example:80", "src.example:8443", "list.example:443", "one.example:80", "two.example:443"},
    ),
    (
        "cargo",
        {
            "/home/u/.cargo/config.toml": (
                '[registries.corp]\nindex = "sparse+https://cargo.corp.example/index/"\n'
                '[source.crates-io]\nreplace-with = "mirror"\nregistry = "https://replaced.example/"\n'
                '[source.mirror]\nregistry = "sparse+https://mirror.example/x/"\n'
                '[source.vendor]\ndirectory = "/opt/v"\n'
            )
        },
        {},
        {"cargo.corp.example:443", "mirror.example:443"},
    ),
    ("cargo", {}, {"CARGO_REGISTRIES_CORP_INDEX": "https://c.example/git"}, {"c.example:443"}),
    ("go", {"/home/u/.config/go/env": "GOPROXY=https://go.example,direct\n"}, {}, {"go.example:443"}),
    ("go", {}, {"GOPROXY": "https://a.example|http://b.example:3000,off"}, {"a.example:443", "b.example:3000"}),
    (
        "uv",
        {
            "/home/u/.config/uv/uv.toml": (
                '[[index]]\nurl = "https://uv.example/simple"\n[pip]\nextra-index-url = ["https://x.example/"]\n'
            )
        },
        {},
        {"uv.example:443", "x.example:443"},
    ),
    (
        "uv",
        {},
        {"UV_INDEX": "corp=https://u.example/simple", "UV_DEFAULT_INDEX": "https://d.example"},
        {"u.example:443", "d.example:443"},
    ),
]


@pytest.mark.parametrize(
    ("preset", "files", "environ", "expected"), FILES, ids=[f"{n}-{row[0]}" for n, row in enumerate(FILES)]
)
def test_a_preset_is_what_the_machine_is_set_to(
    preset: str, files: dict[str, str], environ: dict[str, str], expected: set[str]
) -> None:
    policy = load(preset, machine(files, environ))
    assert reached(policy) == expected
    assert "secret" not in repr(policy)


def test_every_preset_is_tried_out_above() -> None:
    assert {row[0] for row in FILES} == set(PRESETS)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_an_unset_package_manager_is_a_mistake_with_its_cure(preset: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(preset, machine())
    (problem,) = caught.value.problems
    assert problem.line == 5
    assert PRESETS[preset].cure in problem.expected
    with pytest.raises(PolicyError, match="cannot be looked up here"):
        load(preset, None)


def test_ports_are_not_mixed_between_hosts() -> None:
    where = machine(
        {"/etc/pip.conf": "[global]\nindex-url=https://a.example/\nextra-index-url=http://b.example:8080/\n"}
    )
    policy = load("pip", where, 'methods = ["GET"]\npaths = ["/simple/**"]')
    assert [(rule.name, sorted(rule.ports or ()), rule.plain_http) for rule in policy.rules] == [
        ("pip", [443], None),
        ("pip:8080", [8080], True),
    ]
    assert all(rule.methods == {"GET", "HEAD"} and rule.paths for rule in policy.rules)


def test_hosts_beside_a_preset_keep_their_own_ports() -> None:
    where = machine({"/etc/pip.conf": "[global]\nindex-url=https://a.example:8443/\n"})
    policy = load("pip", where, 'hosts = ["files.example"]\nports = [443]')
    assert reached(policy) == {"files.example:443", "a.example:8443"}


def test_the_version_follows_the_machine() -> None:
    one, other = (machine({"/etc/pip.conf": f"[global]\nindex-url=https://{name}.example/"}) for name in "ab")
    assert load("pip", one).version == load("pip", one).version != load("pip", other).version


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"/etc/pip.conf": "no section\n"}, "/etc/pip.conf cannot be read"),
        ({"/etc/pip.conf": "[global]\nindex-url = https://user:secret@/simple\n"}, "no valid host"),
        ({"/etc/pip.conf": "[global]\nindex-url = https://a.example:99999/\n"}, "no valid host"),
        ({"/etc/pip.conf": "[global]\nindex-url = https://localhost:8080/\n"}, "loopback"),
        ({"/etc/pip.conf": "[global]\nindex-url = http://10.1.2.3/\n"}, "can never be reached"),
    ],
)
def test_a_setting_that_cannot_be_used_is_a_problem(files: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        load("pip", machine(files))
    assert "secret" not in str(caught.value)


def test_a_private_index_is_opened_by_addresses() -> None:
    policy = load(
        "pip", machine({"/etc/pip.conf": "[global]\nindex-url = http://10.1.2.3/\n"}), 'addresses = ["10.1.2.3"]'
    )
    assert reached(policy) == {"10.1.2.3:80"}
