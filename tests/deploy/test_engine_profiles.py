"""The engine in containers is the engine of ``cwm up``: what was measured there must hold here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from cwm.settings import LocalEngine
from cwm.stack.commands import Commands
from cwm.stack.environment import EngineEnvironment
from cwm.stack.health import WARM_UP_SALT
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan
from cwm.stack.ports import Ports
from tests.deploy.modules import load

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose.yaml"
# Where a container differs from a laptop: addresses, sizes that variables set, names.
OF_THE_PLACE = {
    "--host", "--http-host", "--port", "--http-port", "--prometheus-port", "--coordinator-url",
    "--coordinator-advertise-ip", "--instance-id", "--metadata-path", "--checkpoint-path", "--model",
    "--served-model-name", "--max-model-len", "--chunk-size", "--block-size", "--l1-size-gb", "--shm-name", "--allowed-media-domains",
}  # fmt: skip
CHUNK = "${CWM_CHUNK_SIZE:-64}"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


@pytest.fixture
def local(tmp_path: Path) -> Commands:
    return commands_in(tmp_path)


def commands_in(tmp_path: Path) -> Commands:
    """What `cwm up` would start on a CPU."""
    plan = StackPlan(
        device="cpu",
        model="tiny",
        served_name=None,
        max_model_len=None,
        dtype="float32",
        chunk_size=64,
        media_domains=(),
        kv_cache_gb=1,
        l1_gb=2,
        disk_gb=50,
        redis_gb=1,
        redis=None,
        disk_first=True,
        storage_path=tmp_path,
        home=tmp_path,
        run_folder=tmp_path,
    )
    model = Model(tmp_path / "model", "tiny", 8192)
    return Commands(plan, EngineEnvironment(tmp_path), model, Ports(), tmp_path / "keys", tmp_path)


def flags(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Each option with its values, however it is spelled; positions and the program are left out."""
    found: dict[str, list[str]] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            found.setdefault(name, []).extend([value] if value else [])
        elif name:
            found[name].append(argument)
    return found


def compared(arguments: Sequence[str]) -> dict[str, list[str]]:
    taken_apart = ("--l2-adapter", "--kv-transfer-config")
    found = {name: values for name, values in flags(arguments).items() if name not in taken_apart}
    return {name: [] if name in OF_THE_PLACE else values for name, values in found.items()}


def test_the_coordinator_gets_the_same_options(services: dict[str, Any], local: Commands) -> None:
    assert compared(services["coordinator-cpu"]["command"]) == compared(local.coordinator())


@pytest.mark.parametrize("engine", ["cpu", "cpu-2"])
def test_lmcache_gets_the_same_options(services: dict[str, Any], local: Commands, engine: str) -> None:
    assert compared(services[f"lmcache-{engine}"]["command"]) == compared(local.lmcache_arguments())


@pytest.mark.parametrize("engine", ["cpu", "cpu-2"])
def test_vllm_on_the_cpu_gets_the_same_options(
    services: dict[str, Any], local: Commands, engine: str
) -> None:
    assert compared(services[f"vllm-{engine}"]["command"]) == compared(local.vllm())


def test_vllm_on_a_gpu_gets_the_same_options(services: dict[str, Any], local: Commands) -> None:
    on_gpu = compared(services["vllm-gpu"]["command"])
    of_a_cpu = {"--enforce-eager": [], "--max-num-batched-tokens": ["512"], "--dtype": ["float32"]}
    assert on_gpu | of_a_cpu == compared(local.vllm())


def test_only_the_engine_without_a_compiler_compiles_nothing(
    services: dict[str, Any], local: Commands
) -> None:
    variable = "TORCH_COMPILE_DISABLE"
    assert services["vllm-cpu"]["environment"][variable] == local.vllm_variables()[variable] == "1"
    assert variable not in services["vllm-gpu"].get("environment", {})


def test_vllm_fetches_media_from_nowhere_unless_a_host_is_named_and_follows_no_redirect(
    services: dict[str, Any], local: Commands
) -> None:
    option, variable = "--allowed-media-domains", "VLLM_MEDIA_URL_ALLOW_REDIRECTS"
    assert (flags(local.vllm())[option], local.vllm_variables()[variable]) == (["none.invalid"], "0")
    for name in ("vllm-cpu", "vllm-gpu"):
        assert flags(services[name]["command"])[option] == ["${CWM_MEDIA_DOMAINS:-none.invalid}"]
        assert services[name]["environment"][variable] == "0"


def test_vllm_in_a_container_gets_the_same_parsers(services: dict[str, Any], local: Commands) -> None:
    assert services["vllm-cpu"]["command"][:2] == services["vllm-gpu"]["command"][:2] == local.vllm()[1:3]
    named = LocalEngine.model_validate(
        {
            "tool_parser": "hermes",
            "reasoning_parser": "qwen3",
            "chat_template": "/t",
            "engine_args": "--seed 1",
        }
    )
    for name in ("vllm-cpu", "vllm-gpu"):
        assert services[name]["environment"].keys() >= named.serving_variables.keys()


def test_an_engine_is_no_root_and_vllm_whoever_can_read_the_model(services: dict[str, Any]) -> None:
    """Safetensors writes files that only their owner may read."""
    for name in ("vllm-cpu", "vllm-gpu"):
        assert services[name]["user"] == "${CWM_ENGINE_USER:-10001:10001}"
        assert "cap_add" not in services[name]
    stages = (ROOT / "deploy/engine/Dockerfile").read_text().split("\nFROM ")[1:]
    assert len(stages) == 2
    assert all("\nUSER 10001:10001\n" in stage for stage in stages)


@pytest.mark.parametrize("engine", ["cpu", "cpu-2"])
def test_the_tiers_and_the_connector_are_the_same(
    services: dict[str, Any], local: Commands, engine: str
) -> None:
    here, there = flags(services[f"lmcache-{engine}"]["command"]), flags(local.lmcache_arguments())
    place = {"startup_nodes", "password", "tls_enable", "base_path", "max_capacity_gb", "keyring_path"}
    for mine, theirs in zip(here["--l2-adapter"], there["--l2-adapter"], strict=True):
        assert told(mine, place) == told(theirs, place)
    here, there = flags(services[f"vllm-{engine}"]["command"]), flags(local.vllm())
    connector = (
        told(each["--kv-transfer-config"][0], {"lmcache.mp.host", "lmcache.mp.port"})
        for each in (here, there)
    )
    assert next(connector) == next(connector)


def told(document: str, leave: set[str]) -> dict[str, Any]:
    def kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in pairs if name not in leave}

    whole = document.replace("${CWM_DISK_CACHE_GB:-50}", "50")
    return dict(json.loads(whole, object_pairs_hook=kept))


def test_room_is_kept_in_both_tiers_of_either_engine(services: dict[str, Any], tmp_path: Path) -> None:
    room, valkey = services["room"], services["valkey-kv"]
    subprocess.run([ROOT / "deploy/compose/secrets.sh", tmp_path], check=True, capture_output=True)
    named = urlsplit((tmp_path / "kv_valkey_url").read_text().strip())

    assert room["command"] == ["room", "--alive", "/tmp/alive", "--metrics", "0.0.0.0:9464"]
    assert set(room["profiles"]) == {"engine-cpu", "engine-gpu"}
    assert set(valkey["profiles"]) == {*room["profiles"], "fleet-cpu"}
    assert room["environment"]["CWM_REDIS_URL_FILE"] == "/run/secrets/kv_valkey_url"
    assert room["secrets"] == ["kv_valkey_url"]
    assert (named.hostname, named.port) == ("valkey-kv", 6379)
    # An eviction of Valkey's own would take frozen chunks, and nobody would notice.
    assert flags(valkey["command"])["--maxmemory-policy"] == ["noeviction"]
    for device in ("cpu", "gpu"):
        engine = services[f"lmcache-{device}"]
        tiers = [told(tier, set()) for tier in flags(engine["command"])["--l2-adapter"]]
        assert [tier["type"] for tier in tiers] == ["fs_native", "valkey"]
        (shared,) = engine["volumes"]
        assert shared == f"kv:{tiers[0]['base_path']}"
        storage = room["environment"]["CWM_STORAGE_PATH"]
        assert room["volumes"] == [f"kv:{storage}/kv:ro"], "what a second engine left is reached by none"
        assert room["environment"]["CWM_DISK_CACHE_GB"] == "${CWM_DISK_CACHE_GB:-50}"


def test_a_fleet_is_two_engines_with_what_they_would_fight_for_of_their_own(
    services: dict[str, Any],
) -> None:
    profile = "fleet-cpu"
    fleet = {name: service for name, service in services.items() if profile in service.get("profiles", [])}
    assert fleet.keys() == {
        "valkey-kv", "room-1", "room-2", "coordinator-cpu", "lmcache-cpu", "vllm-cpu", "lmcache-cpu-2", "vllm-cpu-2",
    }  # fmt: skip
    listed = yaml.safe_load((ROOT / "deploy/compose/fleet/cwm.yaml").read_text())["engines"]
    for number, name in enumerate(("", "-2")):
        lmcache, vllm = fleet[f"lmcache-cpu{name}"], fleet[f"vllm-cpu{name}"]
        arguments = flags(lmcache["command"])
        assert arguments["--instance-id"] == [f"cwm{name}"]
        assert arguments["--coordinator-advertise-ip"] == [f"lmcache{name}"]
        assert arguments["--coordinator-url"] == ["http://coordinator:9300"]
        assert lmcache["networks"]["back"]["aliases"] == [f"lmcache{name}"]
        assert vllm["networks"]["back"]["aliases"] == [f"vllm{name}"]
        transfer = told(flags(vllm["command"])["--kv-transfer-config"][0], set())
        assert transfer["kv_connector_extra_config"]["lmcache.mp.host"] == f"tcp://lmcache{name}"
        assert lmcache["volumes"] == [f"kv{name}:/kv"]
        assert lmcache["secrets"] == fleet["lmcache-cpu"]["secrets"], "one keyring"
        room = fleet[f"room-{number + 1}"]
        assert room["volumes"] == [f"kv{name}:/storage/kv:ro", f"kv{'' if name else '-2'}:/storage/kv-2:ro"]
        assert room["environment"]["CWM_REDIS_URL_FILE"] == "/run/secrets/kv_valkey_url"
        assert room["environment"]["CWM_LMCACHE_URL"] == f"http://lmcache{name}:8081"
        entry = {"url": f"http://vllm{name}:8000", "lmcache": f"http://lmcache{name}:8081"}
        assert [*listed.items()][number] == (f"engine-{number + 1}", entry)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_block_and_chunk_are_one_size(services: dict[str, Any], device: str) -> None:
    sizes = [
        flags(services[f"{part}-{device}"]["command"])[option]
        for part, option in (
            ("coordinator", "--chunk-size"),
            ("lmcache", "--chunk-size"),
            ("vllm", "--block-size"),
        )
    ]
    assert sizes == [[CHUNK]] * 3


def test_an_lmcache_that_starts_again_shares_no_memory_with_a_vllm_that_did_not(
    services: dict[str, Any],
) -> None:
    """Its container has a new /dev/shm then, and vLLM would find the old pool, of the same name, in its own."""
    for device in ("cpu", "gpu"):
        assert flags(services[f"lmcache-{device}"]["command"])["--shm-name"] == []
    assert not any("ipc" in services[f"{part}-cpu"] for part in ("lmcache", "vllm"))
    # vLLM's processes share memory among themselves, more than the 64 MB that Docker gives.
    assert services["vllm-cpu"]["shm_size"] == "${CWM_ENGINE_SHM:-2g}"


def test_a_vllm_that_starts_again_is_warmed_up_again(services: dict[str, Any]) -> None:
    """A file outlives a restart of its container unless it is in a tmpfs."""
    remembered = str(load("warm")._WARM.parent)
    for device in ("cpu", "gpu"):
        assert services[f"vllm-{device}"]["tmpfs"] == [remembered]


def test_passwords_come_from_files_into_adapters_alone(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    arguments_of = load("serve_lmcache").arguments_of
    adapter = json.dumps({"type": "valkey", "password": f"@{tmp_path}/password", "num_workers": 4})
    arguments = ["server", "--instance-id", "@/not/a/file", "--l2-adapter", adapter]

    *before, last = arguments_of(arguments)

    assert before == arguments[:-1]
    assert json.loads(last) == {"type": "valkey", "password": "open sesame", "num_workers": 4}


def test_the_container_warms_up_under_the_salt_that_is_nobodys() -> None:
    assert load("warm")._SALT == WARM_UP_SALT
