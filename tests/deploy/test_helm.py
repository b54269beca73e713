"""The Helm chart: what it renders is what Kubernetes takes, and what its values may not be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import Tools, installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "cwm"
KUBERNETES = "1.37"
EVERYTHING = """
image: {repository: registry.example/cwm, tag: "1.2.3"}
imagePullSecrets: [{name: pull}]
existingSecret: cwm-secrets
engine: {vllmUrl: "http://vllm.models:8000", lmcacheUrl: none, coordinatorUrl: none, weightsDigest: abc}
config:
  upstreams: {docs: {url: "http://docs.tools/mcp", stateless: true}}
env: {CWM_LOG_LEVEL: DEBUG, CWM_PREVIOUS_SECRET_FILE: /run/secrets/cwm/previous}
ingress:
  enabled: true
  className: nginx
  annotations: {nginx.ingress.kubernetes.io/proxy-buffering: "off"}
  hosts: [cwm.example]
  tls: [{secretName: cwm-tls, hosts: [cwm.example]}]
autoscaling: {enabled: true}
networkPolicy:
  from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}}]
  egress: [{to: [{podSelector: {matchLabels: {app: postgres}}}], ports: [{port: 5432}]}]
serviceAccount: {annotations: {owner: platform}}
podAnnotations: {prometheus.io/scrape: "true"}
podLabels: {team: platform}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: spot, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
"""
RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.fixture(scope="module")
def tools() -> Tools:
    return installed()


class Chart:
    def __init__(self, tools: Tools, folder: Path) -> None:
        self.tools, self.folder = tools, folder

    def _values(self, values: str) -> Path:
        file = self.folder / "values.yaml"
        file.write_text(values)
        return file

    def rendered(self, values: str) -> list[dict[str, Any]]:
        """Every object, after Kubernetes' own schemas had nothing against it."""
        ended = self.tools.run(
            "helm", "template", "team", CHART, "--values", self._values(values), home=self.folder
        )
        assert ended.status == 0, ended.told
        file = self.folder / "rendered.yaml"
        file.write_text(ended.out)
        valid = self.tools.run("kubernetes-validate", "-k", KUBERNETES, "--strict", file)
        assert valid.status == 0, valid.told
        return [document for document in yaml.safe_load_all(ended.out) if document]

    def refusal(self, values: str) -> str:
        ended = self.tools.run(
            "helm", "template", "team", CHART, "--values", self._values(values), home=self.folder
        )
        assert ended.status != 0, ended.out
        return ended.told


@pytest.fixture
def chart(tools: Tools, tmp_path: Path) -> Chart:
    return Chart(tools, tmp_path)


def kinds(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in objects}


def test_helm_finds_nothing_to_say_against_it(tools: Tools, tmp_path: Path) -> None:
    ended = tools.run("helm", "lint", "--strict", CHART, "--set", "existingSecret=s", home=tmp_path)
    assert ended.status == 0, ended.told


def test_a_secret_is_all_that_must_be_named(chart: Chart) -> None:
    objects = chart.rendered("existingSecret: cwm-secrets")

    assert sorted(kinds(objects)) == [
        "ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount",
    ]  # fmt: skip
    assert kinds(objects)["Deployment"]["spec"]["replicas"] == 2
    assert "existingSecret" in chart.refusal("replicaCount: 2")


def test_with_everything_on_it_is_valid_too(chart: Chart) -> None:
    objects = kinds(chart.rendered(EVERYTHING))

    assert "replicas" not in objects["Deployment"]["spec"], "the autoscaler's business"
    assert objects["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    paths = [path["path"] for path in objects["Ingress"]["spec"]["rules"][0]["http"]["paths"]]
    assert "/mcp" in paths
    assert "/metrics" not in paths
    settings = yaml.safe_load(objects["ConfigMap"]["data"]["cwm.yaml"])
    assert settings["upstreams"]["docs"]["stateless"] is True


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_pods_are_fit_for_a_restricted_namespace(chart: Chart, kind: str) -> None:
    pod = kinds(chart.rendered(EVERYTHING))[kind]["spec"]["template"]["spec"]

    assert RESTRICTED_POD.items() <= pod["securityContext"].items()
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == RESTRICTED_CONTAINER
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {
        "configMap",
        "secret",
        "emptyDir",
    }


def test_the_migration_comes_before_a_release_and_needs_nothing_of_it(chart: Chart) -> None:
    job = kinds(chart.rendered("existingSecret: cwm-secrets"))["Job"]

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]
    assert not [v for v in job["spec"]["template"]["spec"]["volumes"] if "configMap" in v]


def test_a_gateway_has_time_to_leave_and_to_finish(chart: Chart) -> None:
    pod = kinds(chart.rendered("{existingSecret: s, drainSeconds: 120, leaveSeconds: 10}"))["Deployment"][
        "spec"
    ]["template"]["spec"]
    container = pod["containers"][0]

    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 10}}
    assert {"name": "CWM_DRAIN_SECONDS", "value": "120"} in container["env"]
    assert pod["terminationGracePeriodSeconds"] > 130


def hosts(chart: Chart, values: str) -> list[str]:
    container = kinds(chart.rendered(values))["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    found = [v["value"] for v in container["env"] if v["name"] == "CWM_ALLOWED_HOSTS"]
    assert len(found) == 1
    return list(found[0].split(","))


def test_a_gateway_answers_to_the_names_that_lead_to_it(chart: Chart) -> None:
    service = ["team", "team.default", "team.default.svc", "team.default.svc.cluster.local"]

    assert hosts(chart, "existingSecret: s") == service
    assert hosts(chart, EVERYTHING) == [*service, "cwm.example"]
    named = "{existingSecret: s, config: {security: {allowed_hosts: %s}}}"
    assert hosts(chart, named % "agents.example") == [*service, "agents.example"]
    assert hosts(chart, named % "[a.example, b.example]") == [*service, "a.example", "b.example"]
    assert hosts(chart, "{existingSecret: s, env: {CWM_ALLOWED_HOSTS: only.example}}") == ["only.example"]


def test_numbers_become_variables_as_they_are_written(chart: Chart) -> None:
    values = "{existingSecret: s, env: {CWM_MAX_BODY_BYTES: 8388608, CWM_CANARY_TOLERANCE: 0.25, CWM_API_KEYS: true}}"
    container = kinds(chart.rendered(values))["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}

    assert variables["CWM_MAX_BODY_BYTES"] == "8388608"
    assert variables["CWM_CANARY_TOLERANCE"] == "0.25"
    assert variables["CWM_API_KEYS"] == "true"


def test_secrets_come_as_files_and_no_variable_holds_one(chart: Chart) -> None:
    container = kinds(chart.rendered("existingSecret: s"))["Deployment"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}

    for name in ("CWM_DATABASE_URL_FILE", "CWM_SHARED_STORE_URL_FILE", "CWM_SECRET_FILE"):
        assert variables[name].startswith(f"{mounts['secrets']}/")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ("{existingSecret: s, replicaCount: two}", "replicaCount"),
        ("{existingSecret: s, replicas: 3}", "replicas"),
        ("{existingSecret: s, engine: {vllmUrl: 'vllm:8000'}}", "vllmUrl"),
        ("{existingSecret: s, ingress: {enabled: true}}", "hosts"),
        ("{existingSecret: s, readinessPath: /}", "readinessPath"),
        ("{existingSecret: s, env: {'no-name': x}}", "no-name"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(chart: Chart, values: str, field: str) -> None:
    assert field in chart.refusal(values)
