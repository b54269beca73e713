"""The Helm chart: what it renders is what Kubernetes takes, and what its values may not be is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cwm.settings.load import load
from tests.deploy.test_engine_profiles import commands_in, compared, flags, told
from tests.deploy.tools import Tools, installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "cwm"
KUBERNETES = "1.37"
OPERATOR = "monitoring.coreos.com/v1"
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
  trustedProxies: [10.0.0.0/8, 192.168.7.7]
autoscaling: {enabled: true}
networkPolicy:
  from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}}]
  egress: [{to: [{podSelector: {matchLabels: {app: postgres}}}], ports: [{port: 5432}]}]
serviceAccount: {annotations: {owner: platform}}
podAnnotations: {prometheus.io/scrape: "true"}
podLabels: {team: platform}
podMonitor: {enabled: true, labels: {release: prometheus}, endpoint: {authorization: {credentials: {name: cwm, key: metrics}}}}
prometheusRule: {enabled: true, labels: {release: prometheus}, docsUrl: "https://docs.example/cwm/"}
extraEnv: [{name: CWM_OTLP_ENDPOINT, valueFrom: {configMapKeyRef: {name: otel, key: endpoint}}}]
extraVolumes: [{name: certificates, configMap: {name: certificates}}]
extraVolumeMounts: [{name: certificates, mountPath: /etc/ssl/certs, readOnly: true}]
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: spot, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
"""
ENGINES = """
existingSecret: s
config: {upstreams: {docs: {url: "http://docs.tools/mcp", stateless: true}}}
engines: {enabled: true, existingSecret: kv, valkey: "valkey-kv:6379", replicas: 3, storage: {size: 9Gi, className: fast}}
"""
DRAINED = ENGINES.replace("replicas: 3", "replicas: 3, drain: {existingSecret: admin, seconds: 120}")
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
        documents = [document for document in yaml.safe_load_all(ended.out) if document]
        file = self.folder / "rendered.yaml"
        # Kubernetes itself knows no object of the Prometheus operator.
        file.write_text(yaml.safe_dump_all(each for each in documents if each["apiVersion"] != OPERATOR))
        valid = self.tools.run("kubernetes-validate", "-k", KUBERNETES, "--strict", file)
        assert valid.status == 0, valid.told
        return documents

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


def pod(chart: Chart, values: str, kind: str = "Deployment") -> dict[str, Any]:
    found: dict[str, Any] = kinds(chart.rendered(values))[kind]["spec"]["template"]["spec"]
    return found


def test_a_network_policy_denies_what_nobody_listed(chart: Chart) -> None:
    policy = kinds(chart.rendered("existingSecret: s"))["NetworkPolicy"]["spec"]
    dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}

    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["egress"] == [dns]

    listed = kinds(chart.rendered(EVERYTHING))["NetworkPolicy"]["spec"]
    assert listed["ingress"][0]["ports"] == [{"port": "http"}]
    assert [len(listed["ingress"][0]["from"]), len(listed["egress"])] == [1, 2]


def test_prometheus_finds_each_pod_under_the_job_that_the_rules_ask_for(chart: Chart) -> None:
    objects = kinds(chart.rendered(EVERYTHING))
    monitor, labels = objects["PodMonitor"], objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]

    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "cwm"
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "cwm", "key": "metrics"}


def test_the_operator_gets_the_rules_that_are_tested_with_the_address_of_their_runbook(chart: Chart) -> None:
    rendered = kinds(chart.rendered(EVERYTHING))["PrometheusRule"]["spec"]
    rules = yaml.safe_load((CHART.parents[1] / "prometheus" / "rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["annotations"]["runbook_url"] = (
                    "https://docs.example/cwm/" + rule["annotations"]["runbook_url"]
                )

    assert rendered == rules


def test_an_image_may_be_named_by_its_digest(chart: Chart) -> None:
    digest = f"sha256:{'a' * 64}"
    values = (
        f"{{existingSecret: s, image: {{repository: registry.example/cwm, tag: '1', digest: '{digest}'}}}}"
    )

    for kind in ("Deployment", "Job"):
        assert pod(chart, values, kind)["containers"][0]["image"] == f"registry.example/cwm@{digest}"
    assert "digest" in chart.refusal("{existingSecret: s, image: {repository: r, digest: latest}}")


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_variables_come_from_elsewhere_and_volumes_are_added(chart: Chart, kind: str) -> None:
    whole = pod(chart, EVERYTHING, kind)
    (container,) = whole["containers"]

    (variable,) = [each for each in container["env"] if each["name"] == "CWM_OTLP_ENDPOINT"]
    assert variable["valueFrom"] == {"configMapKeyRef": {"name": "otel", "key": "endpoint"}}
    assert {"name": "certificates", "configMap": {"name": "certificates"}} in whole["volumes"]
    assert "/etc/ssl/certs" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_behind_an_ingress_the_client_is_the_one_that_it_names(chart: Chart) -> None:
    def trusted(values: str) -> list[str]:
        env = pod(chart, values)["containers"][0]["env"]
        return [each["value"] for each in env if each["name"] == "CWM_TRUSTED_PROXIES"]

    assert trusted(EVERYTHING) == ["10.0.0.0/8,192.168.7.7"]
    assert trusted("existingSecret: s") == []


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


def named(chart: Chart, values: str, kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each for each in chart.rendered(values) if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def test_the_engines_of_the_chart_get_the_options_of_cwm_up(chart: Chart, tmp_path: Path) -> None:
    local = commands_in(tmp_path)
    pod = named(chart, ENGINES, "StatefulSet", "team-engine")["spec"]["template"]["spec"]
    (lmcache,), (vllm, room) = pod["initContainers"], pod["containers"]
    (coordinator,) = named(chart, ENGINES, "StatefulSet", "team-coordinator")["spec"]["template"]["spec"][
        "containers"
    ]

    assert compared(coordinator["command"]) == compared(local.coordinator())
    assert compared(lmcache["command"]) == compared(local.lmcache_arguments())
    assert compared(vllm["command"]) == compared(local.vllm())
    place = {"startup_nodes", "password", "tls_enable", "base_path", "max_capacity_gb", "serde"}
    for mine, theirs in zip(
        flags(lmcache["command"])["--l2-adapter"],
        flags(local.lmcache_arguments())["--l2-adapter"],
        strict=True,
    ):
        assert told(mine, place) == told(theirs, place)
        assert told(mine, set())["serde"]["type"] == "cwm-seal"
    sizes = [flags(each["command"])["--chunk-size"] for each in (coordinator, lmcache)]
    assert [*sizes, flags(vllm["command"])["--block-size"]] == [["64"]] * 3
    assert room["args"] == ["room"]


def test_the_gateways_list_each_engine_of_the_chart_by_the_name_of_its_pod(
    chart: Chart, tmp_path: Path
) -> None:
    objects = chart.rendered(ENGINES)
    (config,) = (each["data"]["cwm.yaml"] for each in objects if each["kind"] == "ConfigMap")
    (tmp_path / "cwm.yaml").write_text(config)
    settings = load({}, tmp_path / "cwm.yaml")
    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    sets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "StatefulSet"}

    assert [spec.name for spec in settings.upstreams] == ["docs"]
    assert {name: each.vllm_url for name, each in settings.engines.items()} == {
        f"engine-{number}": f"http://team-engine-{number}.team-engines:8000" for number in range(3)
    }
    assert settings.engines["engine-2"].lmcache_url == "http://team-engine-2.team-engines:8081"
    assert (sets["team-engine"]["serviceName"], sets["team-engine"]["replicas"]) == ("team-engines", 3)
    assert services["team-engines"]["clusterIP"] == "None"
    assert (
        services["team-engines"]["selector"]
        == sets["team-engine"]["template"]["metadata"]["labels"]
        == sets["team-engine"]["selector"]["matchLabels"]
    )
    env = pod(chart, ENGINES)["containers"][0]["env"]
    assert {"name": "CWM_COORDINATOR_URL", "value": "http://team-coordinator:9300"} in env
    assert "team-coordinator" in services
    (claim,) = sets["team-engine"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"


def test_only_gateways_and_engines_reach_the_engines_of_the_chart(chart: Chart) -> None:
    policy = named(chart, ENGINES, "NetworkPolicy", "team-engines")["spec"]
    (rule,) = policy["ingress"]
    gateways = named(chart, ENGINES, "NetworkPolicy", "team")["spec"]

    assert [port["port"] for port in rule["ports"]] == [8000, 8081, 9300]
    assert gateways["egress"][1]["ports"] == rule["ports"]
    assert gateways["egress"][1]["to"][0]["podSelector"] == policy["podSelector"]


def test_one_engine_more_replaces_no_gateway(chart: Chart) -> None:
    more = ENGINES.replace("replicas: 3", "replicas: 4")
    pods = [kinds(chart.rendered(values))["Deployment"]["spec"]["template"] for values in (ENGINES, more)]
    assert pods[0] == pods[1]


def engine_pod(chart: Chart, values: str) -> dict[str, Any]:
    found: dict[str, Any] = named(chart, values, "StatefulSet", "team-engine")["spec"]["template"]["spec"]
    return found


def hook(container: dict[str, Any], name: str) -> str:
    shell, option, script = container["lifecycle"][name]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    return str(script)


def test_an_engine_is_drained_before_it_stops_where_there_is_a_key_and_has_time_for_it(chart: Chart) -> None:
    pod = engine_pod(chart, DRAINED)
    vllm, room = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in room["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert pod["terminationGracePeriodSeconds"] >= 120 + 60
    variables = {each["name"]: each.get("value", "") for each in room["env"]}
    secret = volumes[mounts["/run/secrets/drain"]]["secret"]
    assert variables["GATEWAY_URL"] == "http://team:8700"
    assert variables["CWM_API_KEY_FILE"] == f"/run/secrets/drain/{secret['items'][0]['path']}"
    assert secret["secretName"] == "admin"
    assert {"name": mounts["/run/drain"], "mountPath": "/run/drain", "readOnly": True} in vllm["volumeMounts"]
    for values in (ENGINES, DRAINED.replace("admin", "''")):
        plain = engine_pod(chart, values)
        assert plain["terminationGracePeriodSeconds"] == 60
        assert not [each for each in plain["containers"] if "lifecycle" in each]


def test_what_drains_an_engine_may_reach_the_gateways(chart: Chart) -> None:
    labels = engine_pod_labels(chart)
    policy = named(chart, DRAINED, "NetworkPolicy", "team")["spec"]
    assert policy["ingress"] == [
        {"ports": [{"port": "http"}], "from": [{"podSelector": {"matchLabels": labels}}]}
    ]
    assert "ingress" not in named(chart, ENGINES, "NetworkPolicy", "team")["spec"]


def engine_pod_labels(chart: Chart) -> dict[str, str]:
    template = named(chart, DRAINED, "StatefulSet", "team-engine")["spec"]["template"]
    labels: dict[str, str] = template["metadata"]["labels"]
    return labels


class Shell:
    """A container's shell: its folders are in ``folder``, and ``cwm`` notes how it is called."""

    def __init__(self, folder: Path) -> None:
        self.run_folder, self.calls, self.programs = folder / "drain", folder / "calls", folder / "bin"
        for each in (self.run_folder, self.programs):
            each.mkdir()

    def cwm(self, then: str) -> None:
        program = self.programs / "cwm"
        program.write_text(f'#!/bin/sh\necho "$*" >> {self.calls}\n{then}\n')
        program.chmod(0o755)

    def start(self, script: str) -> subprocess.Popen[bytes]:
        placed = script.replace("/run/drain", str(self.run_folder))
        environ = {"PATH": f"{self.programs}:{os.environ['PATH']}", "POD_NAME": "team-engine-2"}
        return subprocess.Popen(["sh", "-c", placed], env={**environ, "GATEWAY_URL": "http://team:8700"})


@pytest.mark.parametrize("then", ["exit 0", "exit 1"])
def test_the_hooks_drain_the_engine_by_the_name_that_the_gateways_know_and_vllm_waits_for_it(
    chart: Chart, tmp_path: Path, then: str
) -> None:
    vllm, room = engine_pod(chart, DRAINED)["containers"]
    shell = Shell(tmp_path)
    shell.cwm(f"[ -p {tmp_path}/gate ] && read line < {tmp_path}/gate\n{then}")
    os.mkfifo(tmp_path / "gate")
    stopping = shell.start(hook(room, "preStop"))
    waiting = shell.start(hook(vllm, "preStop"))
    with (tmp_path / "gate").open("w") as gate:
        assert waiting.poll() is None
        gate.write("go\n")
    assert (stopping.wait(30), waiting.wait(30)) == (0, 0)
    assert shell.calls.read_text() == ("engines drain engine-2 --timeout 120 --url http://team:8700\n")


def test_a_vllm_that_is_replaced_alone_waits_for_no_drain(chart: Chart, tmp_path: Path) -> None:
    vllm, _ = engine_pod(chart, DRAINED)["containers"]
    assert Shell(tmp_path).start(hook(vllm, "preStop")).wait(30) == 0


def test_an_engine_that_has_started_takes_sessions_again(chart: Chart, tmp_path: Path) -> None:
    _, room = engine_pod(chart, DRAINED)["containers"]
    shell = Shell(tmp_path)
    os.mkfifo(tmp_path / "called")
    shell.cwm(f"echo > {tmp_path}/called")
    assert shell.start(hook(room, "postStart")).wait(30) == 0
    with (tmp_path / "called").open() as called:
        called.read()
    assert shell.calls.read_text() == "engines drain engine-2 --undo --url http://team:8700\n"


def test_without_engines_of_its_own_the_chart_has_none(chart: Chart) -> None:
    assert "StatefulSet" not in kinds(chart.rendered(EVERYTHING))
    assert "engines" not in yaml.safe_load(kinds(chart.rendered(EVERYTHING))["ConfigMap"]["data"]["cwm.yaml"])


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ("{existingSecret: s, replicaCount: two}", "replicaCount"),
        ("{existingSecret: s, replicas: 3}", "replicas"),
        ("{existingSecret: s, engine: {vllmUrl: 'vllm:8000'}}", "vllmUrl"),
        ("{existingSecret: s, ingress: {enabled: true}}", "hosts"),
        ("{existingSecret: s, readinessPath: /}", "readinessPath"),
        ("{existingSecret: s, env: {'no-name': x}}", "no-name"),
        ("{existingSecret: s, engines: {enabled: true, existingSecret: kv}}", "valkey"),
        ("{existingSecret: s, engines: {enabled: true, valkey: 'v:6379'}}", "existingSecret"),
        ("{existingSecret: s, engines: {replicas: 0}}", "replicas"),
        ("{existingSecret: s, engines: {drain: {seconds: 0}}}", "seconds"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(chart: Chart, values: str, field: str) -> None:
    assert field in chart.refusal(values)
