"""docs/engine.md: its figures follow from the formula, and its flags are those of ``cwm up``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cwm.settings import LocalEngine, Storage
from cwm.stack.commands import Commands
from cwm.stack.environment import EngineEnvironment, Pins
from cwm.stack.models import model_elsewhere
from cwm.stack.plan import plan_elsewhere
from cwm.stack.ports import Ports
from tests.deploy.modules import chunk_seal

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
MODELS = re.findall(
    r"^\| (\S+) \| (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
)
GIB = 2**30
# Flags of vLLM that an operator may add, or should not set.
OF_OPERATORS = {
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--reasoning-parser",
    "--api-key",
    "--gpu-memory-utilization",
    "--hash-algorithm",
    "--no-enable-prefix-caching",
}
OF_CWM = {"--device", "--as", "--check"}


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row[0])
def test_a_models_figures_follow_from_its_configuration(row: tuple[str, ...]) -> None:
    layers, heads, size = (int(number) for number in row[1:4])
    per_token = 2 * layers * heads * size * 2

    assert int(row[4].replace(",", "")) == per_token
    assert float(row[5]) == pytest.approx(8192 * per_token / GIB, abs=0.006)
    assert float(row[6]) == pytest.approx(GIB / (8192 * per_token), abs=0.06)


def test_the_page_has_a_dozen_models() -> None:
    assert len(MODELS) == 12


def test_the_flags_of_the_page_are_those_of_cwm_up(tmp_path: Path) -> None:
    plan = plan_elsewhere(Storage(storage_path=tmp_path), LocalEngine(), "cpu")
    commands = Commands(plan, EngineEnvironment(tmp_path), model_elsewhere("/m"), Ports(), tmp_path, tmp_path)
    used = " ".join([*commands.vllm(), *commands.lmcache_arguments(), *commands.coordinator()])
    named = set(re.findall(r"--[a-z][a-z0-9-]+[a-z0-9]", PAGE))

    assert named - OF_OPERATORS - OF_CWM - set(used.split()) == set()
    for key in re.findall(r'"(lmcache\.mp\.\w+|kv_\w+)": ', PAGE):
        assert f'"{key}"' in used
    for variable in ("TORCH_COMPILE_DISABLE=1", "VLLM_MEDIA_URL_ALLOW_REDIRECTS=0"):
        name, _, value = variable.partition("=")
        assert variable in PAGE
        assert commands.vllm_variables()[name] == value


def test_the_versions_of_the_page_are_the_pinned_ones() -> None:
    pins = Pins.for_device("cuda").file.read_text()
    for name, written in (
        ("vllm", "vLLM"),
        ("lmcache", "LMCache"),
        ("valkey-glide-sync", "valkey-glide-sync"),
    ):
        (version,) = re.findall(rf"^{name}==(\S+)$", pins, re.MULTILINE)
        assert f"{written} {version}" in PAGE


def test_the_page_knows_what_a_seal_adds() -> None:
    assert f"Sealing adds {chunk_seal.OVERHEAD_BYTES} bytes" in PAGE
