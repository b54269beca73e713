"""An engine as Kubernetes manifests."""

from __future__ import annotations

from typing import Any, Final

from cwm.cli.engine.notes import comments, gateway, yaml_of
from cwm.cli.engine.programs import SECRETS, SERVICE, USER, EnginePrograms, Program

_LABELS: Final = {"app": SERVICE}
_GATEWAYS: Final = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "cwm"}}}
_FOR_GATEWAYS: Final = ("vllm", "lmcache", "coordinator")
_BESIDE_CACHE_GIB: Final = 2


def as_kubernetes(engine: EnginePrograms) -> str:
    """A Deployment of one pod, whose parts start one after the other, its Service and its NetworkPolicy."""
    ports = [{"name": each.name, "port": each.port} for each in engine.programs if each.name in _FOR_GATEWAYS]
    allowed = [{"from": [_GATEWAYS], "ports": [{"port": each["port"]} for each in ports]}]
    template = {"metadata": {"labels": _LABELS}, "spec": _pod(engine)}
    documents = [
        _object("apps/v1", "Deployment", {
            "replicas": 1,
            # Two pods would share the volume, and only one of them the name.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _LABELS},
            "template": template,
        }),
        _object("v1", "Service", {"selector": _LABELS, "ports": ports}),
        _object("networking.k8s.io/v1", "NetworkPolicy", {
            "podSelector": {"matchLabels": _LABELS}, "policyTypes": ["Ingress"], "ingress": allowed,
        }),
    ]  # fmt: skip
    notes = [
        "deploy/engine/Dockerfile builds an image.",
        f"The key of stored KV: openssl rand -hex 32 > kv_keys; kubectl create secret generic {SERVICE} --from-file=kv_keys",
        "You provide the PersistentVolumeClaims `cwm-kv`, for the disk tier and the coordinator, and `model`. Kubernetes must be 1.29 or newer.",
        f"A gateway: {gateway(engine)}",
    ]
    return comments(engine, notes) + "---\n".join(map(yaml_of, documents))


def _object(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": SERVICE, "labels": dict(_LABELS)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _pod(engine: EnginePrograms) -> dict[str, Any]:
    *before, vllm, room = engine.programs
    scratch = [each.scratch.name for each in before if each.scratch]
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        # Init containers that go on running start in this order, each once the one before it answers.
        "initContainers": [{**_container(engine, each), "restartPolicy": "Always"} for each in before],
        "containers": [_container(engine, vllm), _container(engine, room)],
        "volumes": [
            {"name": "kept", "persistentVolumeClaim": {"claimName": "cwm-kv"}},
            {"name": "model", "persistentVolumeClaim": {"claimName": "model"}},
            *({"name": name, "emptyDir": {}} for name in scratch),
            {"name": "secrets", "secret": {"secretName": SERVICE}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _container(engine: EnginePrograms, program: Program) -> dict[str, Any]:
    security: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # Kubernetes replaces $(NAME); $$ is a dollar.
    env = [{"name": name, "value": value.replace("$(", "$$(")} for name, value in program.variables.items()]
    container: dict[str, Any] = {
        "name": program.name,
        "image": program.image,
        "command": [argument.replace("$(", "$$(") for argument in program.argv],
        "env": env,
        "volumeMounts": _mounts(engine, program),
        "securityContext": security,
    }
    if program.scratch:
        security |= {"runAsUser": USER, "runAsNonRoot": True}
    if program.name == "vllm":
        security["capabilities"]["add"] = ["DAC_READ_SEARCH"]
    if program.probe:
        container["startupProbe"] = {
            "exec": {"command": list(program.probe)}, "periodSeconds": 2, "timeoutSeconds": 130, "failureThreshold": 450,
        }  # fmt: skip
    if program.health:
        container["ports"] = [{"containerPort": program.port}]
        container["livenessProbe"] = {
            "httpGet": {"path": program.health, "port": program.port}, "timeoutSeconds": 10, "failureThreshold": 6,
        }  # fmt: skip
    if program.cache_gb:
        container["resources"] = {"requests": {"memory": f"{program.cache_gb + _BESIDE_CACHE_GIB:g}Gi"}}
    if program.gpu and program.name == "vllm":
        container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    elif program.gpu:
        env.append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})  # the same GPU, beside vLLM
    return {name: value for name, value in container.items() if value}


def _mounts(engine: EnginePrograms, program: Program) -> list[dict[str, Any]]:
    mounts = [
        *({"name": "kept", "mountPath": str(each), "subPath": each.name} for each in program.folders),
        *({"name": "secrets", "mountPath": str(SECRETS / name), "subPath": name} for name in program.secrets),
    ]
    if program.scratch:
        mounts.append({"name": program.scratch.name, "mountPath": str(program.scratch)})
    if program.name == "vllm":
        mounts.append({"name": "model", "mountPath": str(engine.model_folder)})
    if program.name in {"vllm", "lmcache"}:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - of the pod
    return mounts
