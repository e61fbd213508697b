"""A run says which build of Python it had."""

import platform
import sys
import sysconfig

import pytest

from bench import interpreter


def test_version_build_and_speed_are_told() -> None:
    told = interpreter.describe_python()
    assert told.startswith(platform.python_version())
    assert float(told.rpartition(" takes ")[2].removesuffix(" ns")) > 1


@pytest.mark.parametrize(
    ("prefix", "arguments", "build"),
    [
        ("/usr", "'--with-dtrace'", "the distribution's build"),
        ("/opt/python", "'--enable-optimizations' '--with-lto'", "a profile-guided build"),
        ("/opt/python", "'--enable-shared'", "built without --enable-optimizations"),
        ("/opt/python", None, "built without --enable-optimizations"),
    ],
)
def test_a_build_is_called_optimised_only_where_it_says_so(
    monkeypatch: pytest.MonkeyPatch, prefix: str, arguments: str | None, build: str
) -> None:
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: arguments)
    assert interpreter._build() == build
