"""An engine as a Compose file."""

from __future__ import annotations

from typing import Any

from cwm.cli.engine.notes import comments, gateway, yaml_of
from cwm.cli.engine.programs import USER, EnginePrograms, Program


def as_compose(engine: EnginePrograms) -> str:
    """Services on a network without a route out, each started once the ones before it are healthy."""
    document = {
        "services": {program.name: _service(engine, program) for program in engine.programs},
        "networks": {"engine": {"internal": True}},
        "volumes": {name: {} for name in sorted({*engine.folders, *engine.downloads})},
        "secrets": {name: {"file": f"./secrets/{name}"} for name in engine.secrets},
    }
    notes = [
        "deploy/engine/Dockerfile builds an image.",
        "The key of stored KV: mkdir -p secrets; openssl rand -hex 32 > secrets/kv_keys",
        f"A gateway on the network `engine`: {gateway(engine)}",
    ]
    return comments(engine, notes) + yaml_of(document)


def _service(engine: EnginePrograms, program: Program) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": program.image,
        "entrypoint": [program.argv[0]],
        # Compose replaces $NAME; $$ is a dollar.
        "command": [argument.replace("$", "$$") for argument in program.argv[1:]],
        "environment": {name: value.replace("$", "$$") for name, value in program.variables.items()},
        "networks": ["engine"],
        "volumes": [f"{folder.name}:{folder}" for folder in program.folders],
        "secrets": list(program.secrets),
        "restart": "unless-stopped",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    if "NO_PROXY" in program.variables:
        hosts = ",".join([program.variables["NO_PROXY"], *(each.name for each in engine.programs)])
        service["environment"] |= {"NO_PROXY": hosts, "no_proxy": hosts}
    if program.scratch:
        service |= {"user": f"{USER}:{USER}", "tmpfs": [str(program.scratch)]}
    if program.name == "vllm":
        source = str(engine.model_folder) if engine.is_folder else "model"
        service["volumes"] = [f"{source}:{engine.model_folder}{':ro' if engine.is_folder else ''}"]
        service |= {"cap_add": ["DAC_READ_SEARCH"], "tmpfs": ["/run/cwm"], "shm_size": "2g"}
        if not engine.is_folder:
            service["networks"] = ["engine", "default"]  # it downloads the model
    if program.gpu:
        gpu = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
        # CUDA's IPC handles are valid within one IPC namespace only.
        first = program.name == "lmcache"
        service["ipc"] = "shareable" if first else "service:lmcache"
        service.pop("shm_size", None)
        service |= {"shm_size": "2g"} if first else {}
    if program.probe:
        service["healthcheck"] = {
            "test": ["CMD", *program.probe], "interval": "5s", "timeout": "130s", "start_period": "15m",
        }  # fmt: skip
    before = [each for each in engine.before(program) if each.probe]
    service["depends_on"] = {each.name: {"condition": "service_healthy"} for each in before}
    return {name: value for name, value in service.items() if value}
