"""``cwm engine command``: what it prints starts the engine that ``cwm up`` would start."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cwm.settings import LocalEngine, Storage
from cwm.stack import proc
from cwm.stack.commands import Commands
from cwm.stack.environment import Device, EngineEnvironment
from cwm.stack.models import model_elsewhere
from cwm.stack.plan import plan_elsewhere
from cwm.stack.ports import Ports
from tests.cli.command import cwm
from tests.deploy.tools import installed

pytestmark = pytest.mark.slow

MODEL = "/models/llama"
DEVICES: list[Device] = ["cpu", "cuda"]
# What a container has elsewhere: addresses, folders, and shared memory that a restart would lose.
PLACES = {
    "--host", "--http-host", "--coordinator-url", "--coordinator-advertise-ip", "--instance-id", "--metadata-path",
    "--checkpoint-path", "--shm-name", "--dir", "--bind",
}  # fmt: skip
PLACES_IN_JSON = {"base_path", "keyring_path", "startup_nodes", "lmcache.mp.host"}


def printed(folder: Path, form: str, *options: str, model: str = MODEL, **variables: str) -> str:
    variables = {"CWM_STORAGE_PATH": str(folder / "kv store"), **variables}
    run = cwm(folder, "engine", "command", model, "--as", form, *options, **variables)
    assert run.returncode == 0, run.stderr
    return run.stdout


def of_cwm_up(folder: Path, device: Device) -> dict[str, list[str]]:
    """The command lines of ``cwm up``, by the names of the programs."""
    plan = plan_elsewhere(Storage(storage_path=folder / "kv store"), LocalEngine(), device)
    keyring = plan.storage_path / "kv.keys"
    commands = Commands(plan, EngineEnvironment(folder), model_elsewhere(MODEL), Ports(), keyring, folder)
    return {
        "valkey-kv": commands.valkey_options(),
        "coordinator": commands.coordinator()[1:],
        "lmcache": ["-m", "cwm_engine.serve_lmcache", *commands.lmcache_arguments()],
        "vllm": commands.vllm()[1:],
    }


def in_containers(folder: Path, form: str, device: Device) -> dict[str, dict[str, Any]]:
    """Each program of a Compose file or a pod: its ``argv`` without the program, and its environment."""
    text = printed(folder, form, "--device", device)
    documents = list(yaml.safe_load_all(text))
    if form == "compose":
        return {
            name: {"argv": each["command"], "env": each.get("environment", {})}
            for name, each in documents[0]["services"].items()
        }
    pod = documents[0]["spec"]["template"]["spec"]
    return {
        each["name"]: {
            "argv": each["command"][1:],
            "env": {variable["name"]: variable["value"] for variable in each.get("env", [])},
        }
        for each in [*pod["initContainers"], *pod["containers"]]
    }


def without_places(argv: Sequence[str]) -> list[Any]:
    kept: list[Any] = []
    for before, argument in zip(["", *argv], argv, strict=False):
        if before in PLACES:
            kept.append("elsewhere")
        elif argument.startswith("{"):
            kept.append(json.loads(argument, object_pairs_hook=_without_places_in_json))
        else:
            kept.append(argument)
    return kept


def _without_places_in_json(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: "elsewhere" if name in PLACES_IN_JSON else value for name, value in pairs}


@pytest.mark.parametrize("device", DEVICES)
def test_the_script_parses_and_has_the_flags_of_cwm_up(tmp_path: Path, device: Device) -> None:
    script = printed(tmp_path, "shell", "--device", device)

    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    lines = [shlex.split(line) for line in script.splitlines() if line.endswith(" &")]

    assert (parsed.returncode, parsed.stderr) == (0, "")
    for argv in of_cwm_up(tmp_path, device).values():
        assert any(line[1:-1] == argv for line in lines), argv


def test_the_script_starts_each_program_once_the_one_before_answers_and_stops_all_of_them(
    tmp_path: Path,
) -> None:
    """Programs of the same names stand in for the real ones: they write down their arguments and go on."""
    programs = tmp_path / "bin"
    programs.mkdir()
    ready_once = {
        "valkey-cli": "valkey-server",
        "*:9300/*": "lmcache.cli.main",
        "*:8081/*": "serve_lmcache",
        "*warm": "serve_vllm",
    }
    cases = "".join(f"{sign}) grep -q {part} started || exit 1;; " for sign, part in ready_once.items())
    for name in ("valkey-server", "valkey-cli", "python3", "cwm", "curl"):
        asks = f'for each in {name} "$@"; do case "$each" in {cases}esac; done'
        line = f'echo "$$ {name} $1 $2" >> {tmp_path}/started'
        ends = f'case "{name} $2" in curl*|valkey-cli*|*warm) exit 0;; esac; exec sleep 600'
        (programs / name).write_text(f"#!/bin/sh\n{asks}\n{line}\n{ends}\n")
        (programs / name).chmod(0o755)
    script = printed(tmp_path, "shell", "--device", "cpu")

    with subprocess.Popen(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 130
    started = [line.split() for line in (tmp_path / "started").read_text().splitlines()]

    assert ready.startswith("The engine is ready. A gateway: CWM_VLLM_URL=http://127.0.0.1:8000 ")
    order = [" ".join(words[1:4]) for words in started if words[1] in {"valkey-server", "python3"}]
    assert order[:3] == [
        "valkey-server --bind 127.0.0.1",
        "python3 -m lmcache.cli.main",
        "python3 -m cwm_engine.serve_lmcache",
    ]
    assert set(order[3:]) == {"python3 -m cwm_engine.serve_vllm", "python3 -m cwm_engine.warm"}
    assert order[-1] == "python3 -m cwm_engine.warm"
    assert len((tmp_path / "kv store" / "kv.keys").read_text().strip()) == 64
    (valkey,) = [int(words[0]) for words in started if words[1] == "valkey-server"]
    deadline = time.monotonic() + 30
    while proc.start_time(valkey) is not None:
        assert time.monotonic() < deadline, "it goes on"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["compose", "kubernetes"])
def test_containers_have_the_flags_of_cwm_up_except_for_their_places(
    tmp_path: Path, form: str, device: Device
) -> None:
    programs = in_containers(tmp_path, form, device)

    for name, argv in of_cwm_up(tmp_path, device).items():
        assert without_places(programs[name]["argv"]) == without_places(argv)


@pytest.mark.parametrize("form", ["compose", "kubernetes"])
def test_a_cpu_engine_has_the_variables_of_cwm_up_and_needs_no_pythonpath(tmp_path: Path, form: str) -> None:
    env = in_containers(tmp_path, form, "cpu")["vllm"]["env"]

    assert (env["TORCH_COMPILE_DISABLE"], env["VLLM_CPU_KVCACHE_SPACE"]) == ("1", "2")
    assert env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert "PYTHONPATH" not in env


@pytest.mark.parametrize("form", ["compose", "kubernetes"])
def test_vllm_gets_the_parsers_and_arguments_of_the_settings_as_they_are(tmp_path: Path, form: str) -> None:
    named = {"CWM_TOOL_PARSER": "hermes", "CWM_ENGINE_ARGS": "--name '$(HOME) $HOME'"}
    (document, *_) = yaml.safe_load_all(printed(tmp_path, form, "--device", "cpu", **named))
    if form == "compose":
        env = document["services"]["vllm"]["environment"]
        assert env["CWM_ENGINE_ARGS"] == "--name '$$(HOME) $$HOME'"
    else:
        (vllm, _room) = document["spec"]["template"]["spec"]["containers"]
        env = {variable["name"]: variable["value"] for variable in vllm["env"]}
        assert env["CWM_ENGINE_ARGS"] == "--name '$$(HOME) $HOME'"
    assert env["CWM_TOOL_PARSER"] == "hermes"
    assert "CWM_REASONING_PARSER" not in env


def test_a_model_with_a_name_may_be_downloaded_and_one_in_a_folder_is_mounted(tmp_path: Path) -> None:
    named = yaml.safe_load(printed(tmp_path, "compose", "--device", "cpu", model="org/model"))["services"][
        "vllm"
    ]
    folder = yaml.safe_load(printed(tmp_path, "compose", "--device", "cpu"))["services"]["vllm"]

    assert "org/model" in named["command"]
    assert "HF_HUB_OFFLINE" not in named["environment"]
    assert "default" in named["networks"]
    assert folder["volumes"] == [f"{MODEL}:{MODEL}:ro"]
    assert folder["networks"] == ["engine"]


@pytest.mark.parametrize("form", ["shell", "compose", "kubernetes"])
def test_a_password_of_redis_is_read_from_a_file_and_never_printed(tmp_path: Path, form: str) -> None:
    text = printed(tmp_path, form, "--device", "cpu", CWM_REDIS_URL="rediss://cwm:hunter2@redis.local:6380")

    assert "hunter2" not in text
    assert "valkey-server" not in text
    assert "redis.local:6380" in text
    assert '"password": "@/' in text.replace('\\"', '"')
    assert "kv_valkey_url" in text


def test_a_model_that_only_cwm_up_makes_is_refused_with_a_code(tmp_path: Path) -> None:
    run = cwm(tmp_path, "engine", "command", "tiny")

    assert run.returncode == 1
    assert run.stderr.startswith("CWM-5001: Only `cwm up` makes the model 'tiny'")


def test_a_chunk_that_vllm_cannot_have_is_refused_with_a_code(tmp_path: Path) -> None:
    run = cwm(tmp_path, "engine", "command", MODEL, "--device", "cpu", CWM_CHUNK_SIZE="48")

    assert run.returncode == 1
    assert run.stderr.startswith("CWM-5001: CWM_CHUNK_SIZE is 48")


def test_help_says_what_is_printed_and_from_what(tmp_path: Path) -> None:
    text = cwm(tmp_path, "engine", "command", "--help").stdout

    for word in ("--as", "--device", "compose", "kubernetes", "CWM_CHUNK_SIZE", "cwm-engine"):
        assert word in text


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_kubernetes_has_nothing_against_the_manifests(tmp_path: Path, device: Device) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(printed(tmp_path, "kubernetes", "--device", device))

    valid = installed().run("kubernetes-validate", "-k", "1.37", "--strict", file)

    assert valid.status == 0, valid.told
