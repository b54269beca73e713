"""The command lines, and the files they rely on."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cwm.stack.commands import Commands, valkey_binary
from cwm.stack.environment import EngineEnvironment
from cwm.stack.errors import StackError
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan
from cwm.stack.ports import Ports
from cwm.stack.private_files import keyring, write_private_json
from tests.stack.shapes import PlanFor


def commands_for(plan: StackPlan, tmp_path: Path) -> Commands:
    model = Model(tmp_path / "models" / "tiny", "tiny", 32768)
    return Commands(
        plan, EngineEnvironment(tmp_path / "engine"), model, Ports(), tmp_path / "kv.keys", tmp_path
    )


@pytest.fixture
def commands(plan_for: PlanFor, tmp_path: Path) -> Commands:
    return commands_for(plan_for(model="tiny"), tmp_path)


def option(argv: Sequence[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def adapters(argv: Sequence[str]) -> list[dict[str, Any]]:
    return [json.loads(argv[place + 1]) for place, part in enumerate(argv) if part == "--l2-adapter"]


def test_block_and_chunk_are_one_size_everywhere(commands: Commands) -> None:
    sizes = {
        option(commands.vllm(), "--block-size"),
        option(commands.lmcache_arguments(), "--chunk-size"),
        option(commands.coordinator(), "--chunk-size"),
    }

    assert sizes == {"32"}


def test_the_engine_fetches_media_from_the_named_domains_alone_and_follows_no_redirect(
    plan_for: PlanFor, tmp_path: Path
) -> None:
    commands = commands_for(plan_for(), tmp_path)
    assert option(commands.vllm(), "--allowed-media-domains") == "none.invalid"
    assert commands.vllm_variables()["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    widened = commands_for(plan_for(media_domains="a.example.com, b.example.com"), tmp_path).vllm()
    place = widened.index("--allowed-media-domains")
    assert widened[place + 1 : place + 3] == ["a.example.com", "b.example.com"]


def test_vllm_is_told_of_parsers_template_and_arguments_that_are_not_as_by_default(
    plan_for: PlanFor, tmp_path: Path
) -> None:
    def told(commands: Commands) -> dict[str, str]:
        return {name: value for name, value in commands.vllm_variables().items() if name.startswith("CWM_")}

    named = {"tool_parser": "hermes", "reasoning_parser": "none", "engine_args": "--seed 1"}
    assert told(commands_for(plan_for(), tmp_path)) == {}
    assert told(commands_for(plan_for(**named, chat_template=tmp_path / "chat.jinja"), tmp_path)) == {
        "CWM_TOOL_PARSER": "hermes",
        "CWM_REASONING_PARSER": "none",
        "CWM_CHAT_TEMPLATE": str(tmp_path / "chat.jinja"),
        "CWM_ENGINE_ARGS": "--seed 1",
    }


def test_the_disk_is_asked_before_an_embedded_valkey_and_after_a_redis_of_its_own(
    plan_for: PlanFor, tmp_path: Path
) -> None:
    embedded = commands_for(plan_for(), tmp_path)
    shared = commands_for(plan_for(redis_url="redis://redis.local"), tmp_path)

    assert [a["type"] for a in adapters(embedded.lmcache_arguments())] == ["fs_native", "valkey"]
    assert [a["type"] for a in adapters(shared.lmcache_arguments())] == ["valkey", "fs_native"]


def test_both_lower_tiers_are_encrypted_and_neither_evicts_by_itself(commands: Commands) -> None:
    disk, shared = adapters(commands.lmcache_arguments())

    assert shared["serde"] == disk["serde"]
    assert shared["serde"]["type"] == "cwm-seal"
    assert "eviction" not in disk, "LMCache's own eviction would remove frozen windows"


def test_the_hardened_connector_is_the_one_that_vllm_loads(commands: Commands) -> None:
    transfer = json.loads(option(commands.vllm(), "--kv-transfer-config"))
    folder = Path(commands.vllm_variables()["PYTHONPATH"])

    assert transfer["kv_connector_module_path"] == "cwm_engine.connector"
    assert transfer["kv_connector_extra_config"]["lmcache.mp.mq_timeout"] == 10.0
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert "class LMCacheMPConnector" in (folder / "cwm_engine/connector.py").read_text()


def test_every_part_listens_on_the_loopback_alone(commands: Commands) -> None:
    lines = [commands.vllm(), commands.lmcache_arguments(), commands.coordinator()]

    assert {option(line, "--host") for line in lines} == {"127.0.0.1"}
    assert option(commands.lmcache_arguments(), "--http-host") == "127.0.0.1"
    assert option(commands.valkey(), "--bind") == "127.0.0.1"


def test_valkey_never_evicts_and_writes_no_file_beside_the_disk_tier(commands: Commands) -> None:
    argv = commands.valkey()

    assert option(argv, "--maxmemory-policy") == "noeviction"
    assert option(argv, "--appendonly") == "no"
    assert option(argv, "--save") == ""
    assert option(argv, "--maxmemory") == str(4 * 1024**3)
    assert valkey_binary().is_file()


def test_the_context_is_8192_tokens_unless_told_otherwise(commands: Commands) -> None:
    longer = replace(commands, plan=replace(commands.plan, max_model_len=20000))

    assert option(commands.vllm(), "--max-model-len") == "8192"
    assert option(longer.vllm(), "--max-model-len") == "20000"


def test_a_gpu_gets_none_of_the_flags_of_a_cpu(commands: Commands) -> None:
    gpu = replace(commands, plan=replace(commands.plan, device="cuda"))

    assert "--enforce-eager" in commands.vllm()
    assert "--enforce-eager" not in gpu.vllm()
    assert option(commands.vllm(), "--max-num-batched-tokens") == "512"
    assert "--max-num-batched-tokens" not in gpu.vllm()
    assert "VLLM_CPU_KVCACHE_SPACE" not in gpu.vllm_variables()
    assert "--shm-name" not in gpu.lmcache_arguments()


def test_a_redis_password_stays_out_of_the_process_list(plan_for: PlanFor, tmp_path: Path) -> None:
    commands = commands_for(plan_for(redis_url="rediss://cwm:hunter2@redis.local:6380/1"), tmp_path)
    file = tmp_path / "run" / "lmcache.json"

    write_private_json(file, commands.lmcache_arguments())

    shared, _ = adapters(json.loads(file.read_text()))
    assert (shared["password"], shared["tls_enable"], shared["database_id"]) == ("hunter2", True, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hunter2" not in " ".join(commands.lmcache(file))


def test_the_keyring_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = keyring(tmp_path)
    made = path.read_text()

    assert keyring(tmp_path).read_text() == made
    assert len(made.splitlines()[-1]) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_keyring_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "kv.keys").write_bytes(b"short")

    with pytest.raises(StackError, match="damaged"):
        keyring(tmp_path)
