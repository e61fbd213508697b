"""What `import wicketgate` gives, and what it must not cost."""

import subprocess
import sys

import pytest

import wicketgate

LAZY = """
import sys
import wicketgate
assert "aiohttp" not in sys.modules
assert wicketgate.Broker
assert "aiohttp" in sys.modules
"""


def test_the_client_is_exported_and_loaded_only_when_asked_for() -> None:
    subprocess.run([sys.executable, "-c", LAZY], check=True, timeout=60)


def test_what_is_exported_is_listed_and_nothing_else_is_there() -> None:
    assert "Broker" in dir(wicketgate)
    with pytest.raises(AttributeError, match="no attribute 'Brokers'"):
        assert wicketgate.Brokers
