"""The wheel that brings the engine-side files into the vLLM environment that somebody has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

from cwm import shipped
from tests.deploy.tools import installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The names that the engine-side files take from vLLM and LMCache when they are imported.
STAND_INS = {
    "zmq.py": "",
    "vllm/envs.py": "",
    "vllm/distributed/kv_transfer/kv_connector/v1/base.py": (
        "class KVConnectorRole: pass\nclass KVConnectorBase_V1: pass\nclass SupportsHMA: pass"
    ),
    "vllm/distributed/device_communicators/shm_broadcast.py": "class SpinCondition: pass",
    "vllm/v1/worker/gpu_model_runner.py": "class GPUModelRunner: pass",
    "lmcache/integration/vllm/lmcache_mp_connector.py": (
        "class LMCacheMPConnector: pass\nbuild_parallel_strategy_from_vllm_config = get_group_tokens_per_block = None"
    ),
    "lmcache/integration/vllm/lmcache_mp_metadata.py": (
        "class LMCacheMPRequestState: pass\nclass LMCacheMPConnectorMetadata: pass"
    ),
    "lmcache/integration/vllm/mp_server_launcher.py": "is_mp_server_autostart_enabled = None",
    "lmcache/integration/vllm/vllm_multi_process_adapter.py": "DEFAULT_MQ_TIMEOUT = get_lmcache_chunk_size = None",
    "lmcache/v1/multiprocess/transport/factory.py": "RequestClientFactory = None",
    "lmcache/cli/main.py": "import sys\ndef main():\n    print(' '.join(sys.argv))",
    "lmcache/v1/distributed/api.py": "class MemoryLayoutDesc: pass\nclass ObjectKey: pass",
    "lmcache/v1/distributed/serde/async_processor.py": "class AsyncSerdeProcessor: pass",
    "lmcache/v1/distributed/serde/base.py": "class Deserializer: pass\nclass Serializer: pass\nclass SerdeProcessor: pass",
    "lmcache/v1/distributed/serde/factory.py": "def register_serde_factory(name, make):\n    print('registered', name)",
    "lmcache/v1/memory_management.py": "class MemoryObj: pass",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel, its dependencies and stand-ins for vLLM and LMCache."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(shipped.folder("engine"), folder / "source")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"],
        cwd=folder / "source",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(installed().folder)},
        check=True,
        capture_output=True,
    )
    (wheel,) = (folder / "dist").iterdir()
    venv.create(folder / "vllm", with_pip=False)
    (site,) = (folder / "vllm" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--target", site, wheel], check=True, capture_output=True)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    for name, text in STAND_INS.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return folder / "vllm" / "bin" / "python"


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-I", *arguments], env={}, capture_output=True, text=True, check=False, cwd=python.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vllm_finds_the_connector_in_an_environment_with_the_wheel_and_without_pythonpath(
    python: Path,
) -> None:
    compose = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())
    vllm = compose["services"]["vllm-cpu"]["command"]
    transfer = json.loads(vllm[vllm.index("--kv-transfer-config") + 1])
    script = "import importlib, sys; module = importlib.import_module(sys.argv[1]); print(getattr(module, sys.argv[2]), module.__file__)"

    printed = run(python, "-c", script, transfer["kv_connector_module_path"], transfer["kv_connector"])

    assert "cwm_engine.connector.LMCacheMPConnector" in printed
    assert str(python.parents[1]) in printed


def test_the_launcher_of_the_wheel_registers_the_serde(python: Path) -> None:
    assert run(python, "-c", "import cwm_engine.serde").strip() == "registered cwm-seal"


def test_the_wheel_holds_what_runs_inside_an_engine_and_nothing_of_cwm(python: Path) -> None:
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    modules = {file.name for file in (site / "cwm_engine").glob("*.py")}

    assert modules == {file.name for file in (shipped.folder("engine") / "cwm_engine").glob("*.py")}
    assert {"connector.py", "serde.py", "serve_lmcache.py", "warm.py"} < modules
    assert not any(
        "import cwm\n" in file.read_text() or "from cwm " in file.read_text()
        for file in (site / "cwm_engine").glob("*.py")
    )
