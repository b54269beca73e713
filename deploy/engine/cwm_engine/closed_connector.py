"""The connector of an engine on which no KV is reused: it loads nothing, stores nothing and never talks to LMCache.

The response to a request with ``"cwm.tell_weights": true`` has the reason in ``"cwm.no_reuse"``, and in ``"cwm.block_size"`` (tokens) and
``"cwm.world_size"`` what LMCache lists of any other engine.
"""

from __future__ import annotations

from typing import Any

import zmq
from lmcache.integration.vllm.lmcache_mp_connector import (
    build_parallel_strategy_from_vllm_config,
    get_group_tokens_per_block,
)
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPConnectorMetadata
from lmcache.integration.vllm.mp_server_launcher import is_mp_server_autostart_enabled
from lmcache.integration.vllm.vllm_multi_process_adapter import DEFAULT_MQ_TIMEOUT, get_lmcache_chunk_size
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

from cwm_engine.deployment import deployment_digest
from cwm_engine.reuse import no_reuse
from cwm_engine.seeded_sampling import sample_with_seeds
from cwm_engine.short_spin import spin_shortly
from cwm_engine.weights import weights_digest


def why_closed(vllm_config: Any, role: Any, kv_cache_config: Any) -> str:
    """Why this engine reuses no KV, as a sentence; empty where it does."""
    caches = vllm_config.cache_config.enable_prefix_caching
    if role == KVConnectorRole.WORKER and envs.VLLM_BATCH_INVARIANT:
        # Its workers may switch the cache off in their own copies of the options, while the scheduler's is on. A connector that is
        # open here only waits, should the scheduler's be closed.
        caches = True
    blocks = get_group_tokens_per_block(vllm_config, kv_cache_config)
    return no_reuse(caches, blocks, lambda: _chunk_size(vllm_config.kv_transfer_config))


def _chunk_size(transfer: Any) -> int | None:
    """The tokens in a chunk of LMCache; None if it does not answer, which the stock connector then reports."""
    if is_mp_server_autostart_enabled(transfer.kv_connector_extra_config):
        return None
    servers = transfer.get_from_extra_config("lmcache.mp.server_urls", None) or _server(transfer)
    first = (servers.split(",") if isinstance(servers, str) else servers)[0].strip()
    client = RequestClientFactory.create(first, context=zmq.Context.instance())
    try:
        seconds = float(transfer.get_from_extra_config("lmcache.mp.mq_timeout", DEFAULT_MQ_TIMEOUT))
        return get_lmcache_chunk_size(client, timeout=seconds)
    except TimeoutError:
        return None
    finally:
        client.close()


def _server(transfer: Any) -> str:
    host = transfer.get_from_extra_config("lmcache.mp.host", "tcp://localhost")
    return f"{host}:{transfer.get_from_extra_config('lmcache.mp.port', 5555)}"


class ClosedConnector(KVConnectorBase_V1, SupportsHMA):
    """In place of LMCache's connector, in the scheduler and in every worker."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any, reason: str) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if vllm_config.device_config.device_type == "cpu":
            spin_shortly()
            if role == KVConnectorRole.WORKER:
                sample_with_seeds()
        self._own: dict[str, Any] = {}
        if role == KVConnectorRole.SCHEDULER:
            print(f"CWM: {reason}", flush=True)
            weights = weights_digest(vllm_config.model_config)
            digests = {"cwm.weights": weights, "cwm.deployment": deployment_digest(vllm_config, weights)}
            self._own = {
                "cwm.no_reuse": reason,
                "cwm.block_size": max(get_group_tokens_per_block(vllm_config, kv_cache_config)),
                "cwm.world_size": build_parallel_strategy_from_vllm_config(vllm_config, 1).kv_world_size,
                **(digests if weights else {}),
            }

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:  # noqa: ARG002
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> LMCacheMPConnectorMetadata:  # noqa: ARG002
        return LMCacheMPConnectorMetadata()

    def update_connector_output(self, connector_output: Any) -> None:
        """Drop what a worker reports whose connector is open: no request of this scheduler waits for it."""
        connector_output.finished_recving = connector_output.finished_sending = None

    def request_finished_all_groups(
        self,
        request: Any,
        block_ids: tuple[list[int], ...],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        if not isinstance(params, dict):
            return False, None
        own = self._own if params.get("cwm.tell_weights") is True else {}
        return False, {"cwm.loaded_tokens": 0, **own}

    def reset_cache(self) -> bool | None:
        return None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
