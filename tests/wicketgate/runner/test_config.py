"""The runner's configuration is read strictly: what is not understood is no configuration."""

import pytest

from wicketgate.runner.config import ConfigError, parse_config, usual_socket


def test_the_smallest_and_a_whole_one() -> None:
    assert parse_config("version = 1\n", source="x").runner.attach is None
    text = """
version = 1
[runner]
state = "/var/lib/x"
runtime = "/run/x"
attach = "/run/x/attach.sock"
managed = "/srv/work"
databases = ["/srv/app.db"]
[access]
users = ["agent", 1000]
groups = ["ops"]
administrators = ["root"]
[limits]
memory_bytes = 1073741824
cpus = 1.5
"""
    config = parse_config(text, source="x")
    assert config.access.users == ("agent", 1000)
    assert config.most().cpus == 1.5
    assert config.most().tasks == 1024, "what is not named stays the default"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "version"),
        ("version = 2\n", "version is 2"),
        ('version = "1"\n', "version"),
        ("version = 1\n[runer]\n", "runer"),
        ('version = 1\n[runner]\nnetwork = "open"\n', "network"),
        ('version = 1\n[runner]\nstate = "relative"\n', "state"),
        ("version = 1\n[access]\nusers = [-1]\n", "users"),
        ('version = 1\n[access]\nusers = ["a b"]\n', "users"),
        ('version = 1\n[access]\nadministrators = "root"\n', "administrators"),
        ("version = 1\n[limits]\nmemory = 5\n", "memory"),
        ("version = 1\n[limits]\ntasks = 1\n", "tasks"),
        ('version = 1\n[limits]\ntasks = "64"\n', "tasks"),
        ("version = 1\nversion = 1\n", "x:"),
        ("version 1\n", "x:"),
    ],
)
def test_what_is_wrong_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, source="x")
    assert told in str(refused.value)


def test_where_the_socket_is_usually() -> None:
    assert str(usual_socket({}, 0)) == "/run/wicketgate/runner.sock"
    assert str(usual_socket({"XDG_RUNTIME_DIR": "/run/user/7"}, 7)) == "/run/user/7/wicketgate/runner.sock"
    assert usual_socket({"XDG_RUNTIME_DIR": "relative"}, 7) is None
    assert str(usual_socket({"WICKETGATE_RUNNER": "/x.sock"}, 7)) == "/x.sock"
