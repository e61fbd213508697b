"""compose.yaml as Compose reads it: nothing in any service that gives a container more than the design allows."""

import json
from typing import Any

import pytest

from tests.compose.engine import Engine

FORBIDDEN_KEYS = {"privileged", "cap_add", "pid", "userns_mode", "devices", "device_cgroup_rules", "uts", "cgroup"}


def services(engine: Engine, *files: str) -> dict[str, dict[str, Any]]:
    words = [word for file in files for word in ("-f", file)]
    done = engine.compose(*words, "--profile", "*", "config", "--format", "json")
    return dict(json.loads(done.stdout)["services"])


@pytest.mark.parametrize(
    "files", [("compose.yaml",), ("compose.yaml", "compose.apparmor.yaml")], ids=["plain", "apparmor"]
)
def test_every_service_is_hardened(engine: Engine, files: tuple[str, ...]) -> None:
    found = services(engine, *files)
    assert set(found) == {"broker", "runner", "agent", "review"}
    users = {}
    for name, service in found.items():
        assert not {key for key in FORBIDDEN_KEYS if service.get(key)}, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service.get("network_mode") in {None, "none"}, name
        assert service.get("ipc", "private") == "private", name
        assert service["pids_limit"] > 0, name
        options = service["security_opt"]
        assert "no-new-privileges:true" in options, name
        allowed = {"systempaths=unconfined"} if name == "runner" else set()
        assert {option for option in options if "unconfined" in option} == allowed, name
        users[name] = service["user"]
        assert not service["user"].startswith("0"), name
        assert not [one for one in service["volumes"] if "docker.sock" in str(one) or one["target"] == "/"], name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name
    assert users.pop("review") == users["broker"]  # whose log it reads
    assert len(set(users.values())) == 3
    assert found["runner"]["network_mode"] == "none"
    assert [option for option in found["runner"]["security_opt"] if option.startswith("seccomp")]


def test_the_review_page_has_the_log_to_read_and_a_network_of_its_own(engine: Engine) -> None:
    found = services(engine, "compose.yaml")
    review = found["review"]
    assert review["profiles"] == ["review"]
    (port,) = review["ports"]
    assert (port["published"], port["target"]) == ("8321", 8321)  # alike: the page answers to its own port's names only
    assert set(review["networks"]) == {"review"}
    assert not [name for name, one in found.items() if name != "review" and "review" in (one.get("networks") or ())]
    places = {one["target"]: one for one in review["volumes"]}
    assert set(places) == {"/var/lib/wicketgate/audit", "/var/lib/wicketgate-review"}
    log = places["/var/lib/wicketgate/audit"]
    assert (log["source"], log["read_only"], log["volume"]["subpath"]) == ("broker-state", True, "audit")
    assert not [one for name in set(found) - {"review"} for one in found[name]["volumes"] if "review" in one["source"]]


def test_apparmor_is_asked_for_where_the_switch_is_set(engine: Engine) -> None:
    found = services(engine, "compose.yaml", "compose.apparmor.yaml")
    assert "apparmor:wicketgate" in found["runner"]["security_opt"]
    # Two lists are joined, so that the switch takes nothing away.
    assert "systempaths=unconfined" in found["runner"]["security_opt"]
