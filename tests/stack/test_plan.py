"""What the settings come to on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.stack import plan as planning
from cwm.stack.environment import GIB
from cwm.stack.errors import StackError
from cwm.stack.plan import Memory, choose_device, l1_size
from cwm.stack.room import Disk
from tests.stack.shapes import PlanFor


def test_the_tiny_model_gets_small_chunks_and_float32(plan_for: PlanFor) -> None:
    plan = plan_for(model="tiny")

    assert (plan.chunk_size, plan.dtype, plan.device) == (32, "float32", "cpu")


def test_what_the_settings_say_goes_before_the_defaults(plan_for: PlanFor, tmp_path: Path) -> None:
    plan = plan_for(
        model="tiny", chunk_size=64, dtype="bfloat16", max_model_len=4096, storage_path=tmp_path / "else"
    )

    assert (plan.chunk_size, plan.dtype, plan.max_model_len) == (64, "bfloat16", 4096)
    assert plan.storage_path == tmp_path / "else"


def test_a_chunk_that_is_no_whole_number_of_blocks_is_refused(plan_for: PlanFor) -> None:
    with pytest.raises(StackError, match="multiple of 32"):
        plan_for(chunk_size=48)


def test_a_context_too_short_for_two_chunks_is_refused(plan_for: PlanFor) -> None:
    with pytest.raises(StackError, match="at least 512"):
        plan_for(chunk_size=256, max_model_len=300)


def test_each_storage_has_a_name_of_its_own_that_stays(plan_for: PlanFor, tmp_path: Path) -> None:
    first, again = plan_for(), plan_for()
    other = plan_for(storage_path=tmp_path / "other")

    assert first.key == again.key
    assert first.key != other.key


def test_a_cpu_tier_that_fits_is_left_alone() -> None:
    said: list[str] = []

    assert l1_size(2, Memory(16, 16, 8), 8, said.append) == 2
    assert said == []


def test_the_cpu_tier_takes_a_quarter_of_the_memory_at_most_and_says_so() -> None:
    said: list[str] = []

    assert l1_size(8, Memory(16, 16, 15), 12, said.append) == 4
    assert said == ["the CPU tier is 4.0 GB instead of 8: a quarter of this machine's memory"]


def test_the_cpu_tier_fits_into_shared_memory() -> None:
    assert l1_size(8, Memory(64, 64, 2.6), 60, lambda _line: None) == pytest.approx(2.0)


def test_a_container_with_docker_s_64_mb_of_shared_memory_is_told_what_to_do() -> None:
    with pytest.raises(StackError, match="--shm-size"):
        l1_size(8, Memory(16, 16, 0.0625), 12, lambda _line: None)


def test_an_engine_takes_no_more_memory_than_others_leave_it_and_says_what_it_chose_and_why(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_gb", lambda: 8.0)
    said: list[str] = []
    plan = plan_for(said.append, model="tiny", kv_cache_gb=1.5)

    # 8 GB free, less 3 for the programs and 2 for vLLM's KV, which has whole gigabytes: 3 for both caches.
    assert (plan.l1_gb, plan.redis_gb) == (1.5, 1.5)
    assert said == [
        "the CPU tier is 1.5 GB instead of 8: its share of the memory that is free",
        "Valkey has 1.5 GB instead of 4: what is free beside the engine and the CPU tier",
        "memory: 8.0 GB are free; the CPU tier takes 1.5, Valkey up to 1.5, the engine about 5.0",
    ]


def test_a_redis_elsewhere_takes_none_of_this_machines_memory(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_gb", lambda: 8.0)

    assert plan_for(model="tiny", kv_cache_gb=1, redis_url="redis://redis.local").l1_gb == 4


def test_the_weights_of_a_model_are_memory_too(
    plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_gb", lambda: 8.0)
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(GIB)

    assert plan_for(model=str(tmp_path), kv_cache_gb=1).l1_gb == 1.5


def test_an_engine_for_which_there_is_no_memory_does_not_start(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_gb", lambda: 4.0)

    with pytest.raises(StackError, match=r"about 5\.2 GB of memory, and 4\.0 GB are free.*CWM_KV_CACHE_GB"):
        plan_for(model="tiny")


def test_several_engines_share_the_machine_and_the_disk_tier(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_gb", lambda: 16.0)
    lines: list[str] = []
    plan = plan_for(lines.append, engines=2, model="tiny", kv_cache_gb=1, disk_cache_gb=10)

    # 16 GB free, less 2 x 3 for the programs, of which the coordinator is one, and 2 x 1 for vLLM's KV: 8.4 for the caches.
    assert (plan.l1_gb, plan.redis_gb, plan.disk_gb) == (2.1, 4, 5)
    assert [(each.number, each.l1_gb) for each in plan.engines] == [(1, 2.1), (2, 2.1)]
    assert lines[-1] == (
        "memory: 16.0 GB are free; the CPU tier takes 4.2, Valkey up to 4.0, 2 engines about 7.6"
    )


def test_engines_for_which_there_is_no_memory_do_not_start(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_gb", lambda: 6.0)
    with pytest.raises(StackError, match=r"2 engines need about 8\.0 GB of memory, .* start fewer engines"):
        plan_for(engines=2, model="tiny", kv_cache_gb=1)

    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 1.4)
    assert plan_for(engines=1, model="tiny").l1_gb == pytest.approx(0.8)
    with pytest.raises(StackError, match=r"of each of 2 engines would have 0\.10 GB, .*--shm-size 8g"):
        plan_for(engines=2, model="tiny")


def test_engines_for_whose_tiers_there_is_no_disk_do_not_start(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(total=100 * GIB, used=94 * GIB, free=6 * GIB)
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk)

    assert plan_for(engines=2, model="tiny").others
    with pytest.raises(StackError, match=r"of 3 engines need 1\.5 GB in .*, and 1\.0 GB are free"):
        plan_for(engines=3, model="tiny")


def test_several_engines_are_not_started_on_one_gpu(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _program: "/usr/bin/nvidia-smi")

    assert plan_for(device="cuda").device == "cuda"
    with pytest.raises(StackError, match="on its CPU only"):
        plan_for(device="cuda", engines=2)


def test_memory_is_what_the_kernel_says_is_available() -> None:
    available, total = planning._free_gb(), planning._memory_gb()

    assert 0 < available < total


def test_a_cpu_tier_that_is_asked_for_too_small_is_told_by_the_setting_that_says_so() -> None:
    with pytest.raises(StackError, match=r"CWM_CPU_CACHE_GB is 0\.1: the CPU tier needs 0\.125 at least"):
        l1_size(0.1, Memory(16, 16, 8), 12, lambda _line: None)


def test_a_gpu_that_is_not_there_is_refused(plan_for: PlanFor) -> None:
    assert choose_device("auto") == "cpu"
    with pytest.raises(StackError, match="nvidia-smi"):
        plan_for(device="cuda")


def test_a_redis_url_is_read_when_the_plan_is_made(plan_for: PlanFor) -> None:
    assert plan_for().redis is None
    with pytest.raises(StackError, match="scheme"):
        plan_for(redis_url="unix:///run/redis.sock")
