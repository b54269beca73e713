from __future__ import annotations

from pathlib import Path

import pytest

from cwm.settings import LocalEngine, Storage
from cwm.stack.commands import Commands
from cwm.stack.environment import EngineEnvironment
from cwm.stack.models import Model
from cwm.stack.plan import plan_elsewhere
from cwm.stack.ports import Ports
from cwm_bench.arms import Arm, Prompt, sections, summary
from cwm_bench.harness.agent import Streamed
from cwm_bench.harness.bare_engine import without_cache

FIRST_MS = {
    Arm.CACHE_OFF: 90.0,
    Arm.COLD: 100.0,
    Arm.WARM_SAME_PROCESS: 10.0,
    Arm.WARM_AFTER_RESTART: 25.0,
}


def answered(ids: list[int]) -> Prompt:
    prompt = Prompt([5] * 64, "w")
    for arm, first_ms in FIRST_MS.items():
        prompt.answers[arm] = [Streamed(ids, first_ms, first_ms + 50) for _ in range(3)]
    receipt = {
        "tokens_by_tier": {"redis": 63},
        "tokens_restored": 63,
        "verification": {"verify_ms": 5.0},
    }
    prompt.thaws = [{"receipt": receipt, "ms": 15.0, "first_ms": 10.0}]
    return prompt


def test_each_arm_is_summed_up_against_cold() -> None:
    told = summary([answered([1, 2]), answered([3, 4])])
    assert list(told) == ["cache_off", "cold", "warm_same_process", "warm_after_restart"]
    assert told["warm_after_restart"] == {
        "ttft_ms_median": 25.0,
        "total_ms_median": 75.0,
        "speedup_over_cold": 4.0,
        "identical": True,
    }
    assert told["cold"]["speedup_over_cold"] == 1.0


@pytest.mark.parametrize("arm", Arm)
def test_one_other_token_in_one_answer_is_told_of_its_arm_alone(arm: Arm) -> None:
    prompt = answered([1, 2])
    prompt.answers[arm][2] = Streamed([1, 3], 1.0, 2.0)
    told = summary([prompt, answered([3, 4])])
    assert [name for name, figures in told.items() if not figures["identical"]] == [arm.value]


def test_every_row_of_every_table_has_a_figure_for_each_column() -> None:
    for section in sections([answered([1, 2])]):
        assert [len(row) for row in section.rows] == [len(section.columns)], section.title


def test_the_engine_without_a_cache_has_all_other_flags_of_the_one_with_it(tmp_path: Path) -> None:
    plan = plan_elsewhere(Storage(storage_path=tmp_path), LocalEngine(model="tiny", home=tmp_path), "cpu")
    model = Model(tmp_path, "tiny", 8192)
    full = Commands(plan, EngineEnvironment(tmp_path), model, Ports(), tmp_path / "kv.keys", tmp_path).vllm()
    bare = without_cache(full)
    gone = full.index("--kv-transfer-config")
    assert [*full[:gone], *full[gone + 2 :]] == bare[:-1]
    assert bare[-1] == "--no-enable-prefix-caching"
