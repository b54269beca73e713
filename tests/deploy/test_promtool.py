"""Prometheus' own judgement of its configuration, the rules, their tests, and a running gateway's ``/metrics``."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx2
import pytest

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from tests.cli.command import serving
from tests.deploy.promtool import Promtool, found
from tests.deploy.test_monitoring import DEPLOY, RULES, RULES_TEST

pytestmark = pytest.mark.slow

# Seed 001 shows them so: a public contract is older than a convention.
OF_THE_CONTRACT = (
    "cwm_operation_duration_ms",
    "cwm_operation_duration_ms_p50",
    "cwm_operation_duration_ms_p99",
)


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Promtool:
    return found(tmp_path_factory.mktemp("promtool"))


def test_the_rules_and_the_configuration_are_sound(promtool: Promtool) -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    configured = promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert configured.returncode == 0, configured.stdout + configured.stderr


def test_every_alert_fires_when_it_should_and_only_then(promtool: Promtool, tmp_path: Path) -> None:
    for each in (RULES, RULES_TEST):
        shutil.copy(each, tmp_path)
    tested = promtool("test", "rules", tmp_path / RULES_TEST.name)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_gateways_metrics_follow_the_conventions_but_for_those_of_the_contract(
    promtool: Promtool, tmp_path: Path
) -> None:
    with serving(tmp_path) as (url, _):
        for path in ("/healthz", "/readyz", "/v1/models", "/nowhere"):
            httpx2.get(f"{url}{path}", trust_env=False)
        text = httpx2.get(f"{url}/metrics", trust_env=False).text
    assert text.count("\ncwm_") > 50
    declared = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert declared == {metric.name for metric in PrometheusMeter().described()}
    checked = promtool("check", "metrics", stdin=text)
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if line]
    assert {line.split(" ")[0] for line in complaints} <= set(OF_THE_CONTRACT), complaints
