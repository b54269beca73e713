"""The plan of a stack, made before anything starts: sizes that fit the machine, names, folders."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cwm import settings
from cwm.stack import shm
from cwm.stack.environment import GIB, Device
from cwm.stack.errors import StackError
from cwm.stack.models import TINY
from cwm.stack.ports import LOOPBACK, Ports
from cwm.stack.redis_url import RedisAddress
from cwm.stack.room import Disk, disk_limit
from cwm.stack.runfile import key_of

_CHUNK_TINY = 32
# FlashAttention 3 ran with 64 on an H100; vLLM's other CUDA attention backends accept it, too.
_CHUNK_USUAL = 64
_CPU_BLOCK_STEP = 32
_CUDA_BLOCK_STEP = 16
_SHM_KEPT_FREE_GB = 0.6  # vLLM's own segments
_SMALLEST_L1_GB = 0.125
_SMALLEST_VALKEY_GB = 0.125
# Measured beside caches and weights: vLLM's processes 2 GiB, LMCache 0.5, the coordinator 0.4.
_BESIDE_CACHES_GB = 3.0
_COORDINATOR_GB = 0.4
# Of each of several engines: what a disk tier holds beside the reserve that is left free.
_SMALLEST_DISK_GB = 0.5


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Everything a LocalStack needs to know. Sizes are in GiB, the chunk and context in tokens."""

    device: Device
    model: str
    served_name: str | None
    max_model_len: int | None
    dtype: str
    chunk_size: int
    media_domains: tuple[str, ...]
    kv_cache_gb: float
    l1_gb: float
    disk_gb: float
    redis_gb: float
    redis: RedisAddress | None
    disk_first: bool
    """Whether a chunk that both lower tiers have is loaded from the disk."""
    storage_path: Path
    home: Path
    run_folder: Path
    ports: Ports = field(default_factory=Ports)
    temporary: Path | None = None
    """A folder with everything this stack stores, removed with it; if the stack is killed, the next one removes it."""
    gateway_port: int | None = None
    gateway_host: str = LOOPBACK
    """Address on which the gateway is going to listen; no part takes its port."""
    withheld: frozenset[str] = frozenset()
    """Environment variables that the engine does not get."""
    serving_variables: Mapping[str, str] = field(default_factory=dict)
    """Of ``cwm_engine.serve_vllm``: parsers, chat template and further arguments, if they are not as by default."""
    dev_endpoints: bool = False
    """Enables vLLM's development endpoints, with which benchmarks empty its cache. They check no API key."""
    number: int = 1
    """Which engine of the stack this is."""
    others: tuple[Mapping[str, Any], ...] = ()
    """Further engines: the fields that each has of its own."""

    def with_another(self, **own: Any) -> StackPlan:
        """Add an engine, like the first but for the fields ``own``, such as ``model`` or ``serving_variables``."""
        return replace(self, others=(*self.others, own))

    @property
    def engines(self) -> tuple[StackPlan, ...]:
        """The plan of each engine."""
        others = (replace(self, number=number, others=(), **own) for number, own in enumerate(self.others, 2))
        return (self, *others)

    @property
    def key(self) -> str:
        """Names this storage: the run file, and what the names of its shared memory begin with."""
        return key_of(self.storage_path)

    def own(self, name: str) -> str:
        """The name of something that each engine has; the first engine's is ``name`` itself."""
        return name if self.number == 1 else f"{name}-{self.number}"

    @property
    def instance(self) -> str:
        """Names one engine's LMCache server: its instance in the coordinator, its shared memory."""
        return self.own(self.key)

    @property
    def kv_folder(self) -> Path:
        """The folder of one engine's disk tier."""
        return self.storage_path / self.own("kv")

    @property
    def logs(self) -> Path:
        """The folder with the log of each part."""
        return self.run_folder / "logs" / self.key


def plan_from_settings(
    storage: settings.Storage,
    local: settings.LocalEngine,
    *,
    withheld: frozenset[str],
    engines: int = 1,
    log: Callable[[str], None] = lambda _: None,
) -> StackPlan:
    """The plan for these settings on this machine; ``log`` gets the sizes, and a line for each that had to shrink.

    ``withheld`` are the settings' ``upstream_variables``. ``engines`` of one kind share the size of the disk tier, and the machine.
    Raises StackError if the machine cannot meet the settings.
    """
    device = choose_device(local.device)
    plan = replace(plan_elsewhere(storage, local, device), withheld=withheld)
    plan = replace(plan, disk_gb=plan.disk_gb / engines, others=({},) * (engines - 1))
    if plan.others:
        _require_room_for_several(plan)
    # Counts the pools of a killed stack as free: they are removed before ours are created.
    pools = shm.lmcache_pool_bytes(plan.key) / GIB
    return _fitting(plan, Memory(_memory_gb(), _free_gb() + pools, _shm_free_gb() + pools), log)


def _require_room_for_several(plan: StackPlan) -> None:
    if plan.device != "cpu":
        raise StackError(
            "several engines on one machine run on its CPU only. Start each GPU's engine by itself (cwm engine command) and list "
            "them as engines in cwm.yaml, or set CWM_DEVICE to cpu."
        )
    count, folder = len(plan.engines), plan.storage_path
    needed = count * _SMALLEST_DISK_GB
    free = disk_limit(0, 0, Disk(*shutil.disk_usage(_nearest(folder)))) / GIB
    if free < needed:
        raise StackError(
            f"the disk tiers of {count} engines need {needed:.1f} GB in {folder}, and {free:.1f} GB are free beside the reserve. Make "
            "room, start fewer engines, or set CWM_STORAGE_PATH to another folder."
        )


def _nearest(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def plan_elsewhere(storage: settings.Storage, local: settings.LocalEngine, device: Device) -> StackPlan:
    """The plan for a machine that is not this one: sizes are those of the settings. Raises StackError."""
    chunk_size = _chunk_size(local.chunk_size, local.model, device)
    if local.max_model_len is not None and local.max_model_len < 2 * chunk_size:
        raise StackError(
            f"CWM_MAX_MODEL_LEN is {local.max_model_len}; with chunks of {chunk_size} tokens it must be at least "
            f"{2 * chunk_size}."
        )
    storage_path = storage.storage_path.absolute()
    home = local.home.absolute()
    return StackPlan(
        device=device,
        model=local.model,
        served_name=local.served_model_name,
        max_model_len=local.max_model_len,
        # With float32 a thaw, an uninterrupted run and a recompute always agree; a GPU uses the model's own type.
        dtype="float32" if local.dtype == "auto" and device == "cpu" else local.dtype,
        chunk_size=chunk_size,
        media_domains=local.media_domains,
        kv_cache_gb=local.kv_cache_gb,
        l1_gb=storage.cpu_cache_gb,
        disk_gb=storage.disk_cache_gb,
        redis_gb=storage.redis_cache_gb,
        redis=RedisAddress.parse(storage.redis_url.get_secret_value()) if storage.redis_url else None,
        # The tier that outlives the others comes first: a freeze proves the copy that it reads back.
        disk_first=storage.redis_url is None,
        storage_path=storage_path,
        home=home,
        run_folder=home / "run",
        serving_variables=local.serving_variables,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """A machine's memory in GiB: all of it, what programs may still take, and what ``/dev/shm`` has free."""

    total: float
    free: float
    shm_free: float


def _fitting(plan: StackPlan, memory: Memory, log: Callable[[str], None]) -> StackPlan:
    """``plan`` with caches that fit into the memory that is free now: other programs may have the rest."""
    count = len(plan.engines)
    needed = count * _BESIDE_CACHES_GB - (count - 1) * _COORDINATOR_GB
    if plan.device == "cpu":
        needed += count * (max(1, math.ceil(plan.kv_cache_gb)) + _weights_gb(Path(plan.model).expanduser()))
    smallest = count * _SMALLEST_L1_GB + (0 if plan.redis else _SMALLEST_VALKEY_GB)
    spare = memory.free - needed
    if spare < smallest:
        who, fewer = (
            ("the engine needs", "") if count == 1 else (f"{count} engines need", ", start fewer engines")
        )
        raise StackError(
            f"{who} about {needed + smallest:.1f} GB of memory, and {memory.free:.1f} GB are free. Stop what else "
            f"takes memory{fewer}, or lower CWM_KV_CACHE_GB."
        )
    share = Memory(memory.total / count, memory.free / count, memory.shm_free / count)
    l1_gb = l1_size(plan.l1_gb, share, (spare if plan.redis else spare / 2) / count, log, count)
    redis_gb = plan.redis_gb if plan.redis else min(plan.redis_gb, spare - count * l1_gb)
    if redis_gb < plan.redis_gb:
        log(
            f"Valkey has {redis_gb:.1f} GB instead of {plan.redis_gb:g}: what is free beside the engine and the CPU tier"
        )
    valkey = "" if plan.redis else f", Valkey up to {redis_gb:.1f}"
    engines = "the engine" if count == 1 else f"{count} engines"
    log(
        f"memory: {memory.free:.1f} GB are free; the CPU tier takes {count * l1_gb:.1f}{valkey}, {engines} about {needed:.1f}"
    )
    return replace(plan, l1_gb=l1_gb, redis_gb=round(redis_gb, 3))


def _weights_gb(folder: Path) -> float:
    """Size of the weights in a folder; of a model that CWM makes, which is small, nothing."""
    files = (file for kind in ("*.safetensors", "*.bin", "*.gguf") for file in folder.glob(kind))
    return sum(file.stat().st_size for file in files) / GIB


def choose_device(wanted: str) -> Device:
    """``cuda`` if the setting says so, or if it is ``auto`` and ``nvidia-smi`` exists; otherwise ``cpu``."""
    if wanted == "cpu":
        return "cpu"
    present = shutil.which("nvidia-smi") is not None
    if wanted == "cuda" and not present:
        raise StackError("CWM_DEVICE is cuda, but there is no nvidia-smi on this machine; use cpu.")
    return "cuda" if present else "cpu"


def l1_size(
    wanted: float, memory: Memory, spare: float, log: Callable[[str], None], engines: int = 1
) -> float:
    """The CPU tier's size in GiB: as configured, at most ``spare``, a quarter of the memory and what /dev/shm has free.

    Each of several ``engines`` has one, and its share of all three.
    """
    title = "the CPU tier" if engines == 1 else f"the CPU tier of each of {engines} engines"
    if wanted < _SMALLEST_L1_GB:
        raise StackError(
            f"CWM_CPU_CACHE_GB is {wanted:g}: the CPU tier needs {_SMALLEST_L1_GB:g} at least to hold a window."
        )
    size = wanted
    for limit, why in (
        (memory.total / 4, "a quarter of this machine's memory"),
        (memory.shm_free - _SHM_KEPT_FREE_GB, "what /dev/shm has free"),
        (spare, "its share of the memory that is free"),
    ):
        if limit < size:
            log(f"{title} is {max(limit, 0):.1f} GB instead of {wanted:g}: {why}")
            size = limit
    if size < _SMALLEST_L1_GB:
        raise StackError(
            f"{title} would have {max(size, 0):.2f} GB, too little for a window. In a container make /dev/shm "
            f"larger (docker run --shm-size {4 * engines}g)."
        )
    return round(size, 3)


def _chunk_size(wanted: int | None, model: str, device: Device) -> int:
    chunk = wanted or (_CHUNK_TINY if model == TINY else _CHUNK_USUAL)
    step = _CPU_BLOCK_STEP if device == "cpu" else _CUDA_BLOCK_STEP
    if chunk % step:
        raise StackError(
            f"CWM_CHUNK_SIZE is {chunk}; vLLM's blocks have the same size, which must be a multiple of {step} on {device}."
        )
    return chunk


def _memory_gb() -> float:
    """Memory of the machine, or of the container if that has less, in GiB."""
    limit = _container_bytes("memory.max", "memory/memory.limit_in_bytes")
    return min(_meminfo_bytes("MemTotal"), limit) / GIB


def _free_gb() -> float:
    """Memory that programs may still take, of the machine, or of the container if that has less, in GiB."""
    limit = _container_bytes("memory.max", "memory/memory.limit_in_bytes")
    used = _container_bytes("memory.current", "memory/memory.usage_in_bytes")
    left = limit - used + _cached_bytes() if limit < math.inf and used < math.inf else math.inf
    return min(_meminfo_bytes("MemAvailable"), left) / GIB


def _cached_bytes() -> int:
    """What the container's control group counts as used although the kernel gives it up when memory is asked for."""
    for file in ("memory.stat", "memory/memory.stat"):
        path = Path("/sys/fs/cgroup") / file
        for line in path.read_text(encoding="ascii").splitlines() if path.is_file() else ():
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return int(line.split()[1])
    return 0


def _container_bytes(*files: str) -> float:
    """The number in the first of these files of the control group; infinity if there is none."""
    for file in files:
        path = Path("/sys/fs/cgroup") / file
        if path.is_file() and (text := path.read_text(encoding="ascii").strip()).isdigit():
            return int(text)
    return math.inf


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise StackError(f"/proc/meminfo has no {name}.")


def _shm_free_gb() -> float:
    return shutil.disk_usage(shm.FOLDER).free / GIB if shm.FOLDER.is_dir() else 0.0
