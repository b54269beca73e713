"""LMCache's connector for vLLM: hardened against disconnecting clients, with limited loads and a check of the weights.

vLLM's scheduler asserts that it still knows every request that a connector reports as finished. When a
request is aborted during a load, LMCache reports its id more than once: as received, as sent, and again
after vLLM has dropped it. The stock connector then fails the assertion, which ends the whole engine. This
subclass passes on each report only while the scheduler still waits for it.

A request with ``"kv_transfer_params": {"cwm.load_tokens": n}`` loads at most ``n`` tokens from LMCache, in
whole chunks; below one chunk it does not ask LMCache at all. Tokens that are computed instead are stored as usual. Its
response, and that of a request with ``"cwm.tell_loaded": true``, has in ``"cwm.loaded_tokens"`` the number of tokens
loaded beyond those that vLLM still had. If LMCache aborted the load and vLLM computed the tokens
(``kv_load_failure_policy: recompute``), ``"cwm.failed_tokens"`` is the number that vLLM still counts as cached.

``"cwm.resting_tokens"`` stands beside these counts: where the last load ends that the prompt's KV rests on, its own or one of requests before it whose
blocks vLLM still had; 0 if all of it was computed since the engine started (``cwm_engine.loaded_blocks``).

``"cwm.drop_after": n`` drops the prompt's blocks from the one with token ``n`` on from vLLM's own cache, before the request is scheduled, and every
block that was computed on top of them (``cwm_engine.block_chains``). ``"cwm.dropped_blocks"`` of the response is their number.

LMCache's keys cover neither the weights nor most of vLLM's options. So the scheduler's connector hashes the files that were
loaded, and with them everything that KV depends on: the deployment. A request with ``"cwm.weights": digest`` that expects
another deployment, or other weights, neither loads nor stores. ``"cwm.tell_weights": true`` puts the engine's own digests into
``"cwm.weights"`` and ``"cwm.deployment"`` of the response. Weights in no local folder have no digest, and requests are not
checked then.

A LoRA adapter's digest is part of LMCache's keys where CWM did not derive the salt (``cwm_engine.adapter_keys``).

Blocks that LMCache's server has still to read or to write are held (``cwm_engine.held_blocks``).
Where vLLM's prefix cache is off, or its block does not divide LMCache's chunk, nothing is loaded or stored: :mod:`cwm_engine.closed_connector`.

vLLM loads it by name: ``"kv_connector_module_path": "cwm_engine.connector"``. The class keeps the name of its base
because both vLLM and LMCache look connectors up by that name.
"""

from __future__ import annotations

from typing import Any

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector as _Stock
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState as _State
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from cwm_engine.adapter_keys import AdapterKeys
from cwm_engine.block_chains import BlockChains
from cwm_engine.closed_connector import ClosedConnector, why_closed
from cwm_engine.deployment import deployment_digest
from cwm_engine.held_blocks import HeldBlocks, OpenTransfers, SettledTransfers, works_after_steps
from cwm_engine.loaded_blocks import LoadedBlocks
from cwm_engine.seeded_sampling import sample_with_seeds
from cwm_engine.short_spin import spin_shortly
from cwm_engine.weights import weights_digest

_LIMIT = "cwm.load_tokens"
_REPORT_LOADED = "cwm.tell_loaded"
_LOADED = "cwm.loaded_tokens"
_FAILED = "cwm.failed_tokens"
_RESTING = "cwm.resting_tokens"
_DROP = "cwm.drop_after"
_DROPPED = "cwm.dropped_blocks"
_WEIGHTS = "cwm.weights"
_DEPLOYMENT = "cwm.deployment"
_REPORT_WEIGHTS = "cwm.tell_weights"


class _Ledger:
    """The requests that the scheduler knows, and those of them that have ended but still hold their blocks."""

    __slots__ = ("awaiting_send", "known")

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.awaiting_send: set[str] = set()

    def seen(self, request_id: str) -> None:
        self.known.add(request_id)

    def ended(self, request_id: str, *, blocks_held: bool) -> None:
        if blocks_held:
            self.awaiting_send.add(request_id)
        else:
            self.known.discard(request_id)

    def received(self, reported: set[str] | None) -> set[str] | None:
        """The loads to pass on. For an ended request the scheduler then frees the blocks, so it is removed here."""
        loads = (reported or set()) & self.known
        self._settle(loads & self.awaiting_send)
        return loads or None

    def sent(self, reported: set[str] | None) -> set[str] | None:
        """The stores to pass on: those of ended requests whose blocks are not freed yet."""
        stores = (reported or set()) & self.awaiting_send
        self._settle(stores)
        return stores or None

    def _settle(self, request_ids: set[str]) -> None:
        self.known -= request_ids
        self.awaiting_send -= request_ids


class LMCacheMPConnector(_Stock):
    """The stock connector with filtered reports and limited loads. Runs in the scheduler and in every worker."""

    def __new__(cls, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> Any:
        """Where no KV may be reused, a :class:`ClosedConnector`."""
        reason = why_closed(vllm_config, role, kv_cache_config)
        return ClosedConnector(vllm_config, role, kv_cache_config, reason) if reason else super().__new__(cls)

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        self._requests = _Ledger()
        self._failed: set[str] = set()
        if vllm_config.device_config.device_type == "cpu":
            spin_shortly()
            if role == KVConnectorRole.WORKER:
                sample_with_seeds()
        super().__init__(vllm_config, role, kv_cache_config)
        scheduler = role == KVConnectorRole.SCHEDULER
        self._weights = weights_digest(vllm_config.model_config) if scheduler else None
        self._deployment = deployment_digest(vllm_config, self._weights)
        self._held: HeldBlocks | None = None
        self._open: OpenTransfers | None = None
        self._loaded = LoadedBlocks(self._group_tokens_per_block)
        self._chains = BlockChains(self._group_tokens_per_block)
        self._dropped: dict[str, int] = {}
        self._adapters = AdapterKeys()
        if works_after_steps(vllm_config) and not self.lazy_offload:
            if scheduler:
                workers = vllm_config.parallel_config.world_size
                chunk_tokens = self.scheduler_adapter.lmcache_tokens_per_chunk
                self._held = HeldBlocks(workers, self._group_tokens_per_block, chunk_tokens)
            else:
                self._open = OpenTransfers(self.worker_adapter)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._loaded.bind(kv_cache_manager)
        self._chains.bind(kv_cache_manager)
        if self._held is not None:
            self._held.bind(kv_cache_manager)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._mark_loaded(scheduler_output)
        if self._held is None:
            return super().build_connector_meta(scheduler_output)
        can_store = self._can_store
        # Without room no store is made; its tokens stay to be stored with a later step.
        self._can_store = can_store and self._held.has_room()
        try:
            metadata = super().build_connector_meta(scheduler_output)
        finally:
            self._can_store = can_store
        self._held.hold(metadata, self.request_trackers)
        # LMCache would have the step wait for the stores of preempted requests, however long its server takes.
        metadata.need_flush_before_forward = False
        return metadata

    def _mark_loaded(self, scheduler_output: Any) -> None:
        cached = scheduler_output.scheduled_cached_reqs
        for new in scheduler_output.scheduled_new_reqs:
            self._loaded.admit(new.req_id, new.num_computed_tokens, self._tokens_loaded(new.req_id))
        steps = zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)
        for request_id, computed, new_block_ids in steps:
            if request_id in cached.resumed_req_ids:
                self._loaded.admit(request_id, computed, self._tokens_loaded(request_id))
            else:
                self._loaded.step(request_id, computed, new_block_ids)

    def _tokens_loaded(self, request_id: str) -> range | None:
        tracker = self.request_trackers.get(request_id)
        if tracker is None or request_id in self._failed:
            return None
        return range(tracker.num_vllm_hit_tokens, tracker.num_lmcache_hit_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._chains.run(request)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._open is None:
            super().start_load_kv(forward_context, **kwargs)
            return
        with self._open.submitting(getattr(self._get_connector_metadata(), "load_holds", {})):
            super().start_load_kv(forward_context, **kwargs)

    def wait_for_save(self) -> None:
        if self._open is None:
            super().wait_for_save()
            return
        with self._open.submitting(getattr(self._get_connector_metadata(), "holds", {})):
            super().wait_for_save()

    def build_connector_worker_meta(self) -> Any:
        return super().build_connector_worker_meta() if self._open is None else self._open.take()

    def has_pending_push_work(self) -> bool:
        return super().has_pending_push_work() or (self._held is not None and self._held.is_waiting())

    def on_new_request(self, request: Any) -> None:
        if (tokens := _count(request, _DROP)) is not None:
            self._dropped[request.request_id], others = self._chains.drop(request, tokens)
            for tracker in map(self.request_trackers.get, others):
                if tracker is not None:
                    # What it computes on top of dropped blocks stays out of LMCache, too.
                    tracker.max_offload_tokens = tracker.num_stored_tokens
        # The stock connector may start its lookup here, without the limit.
        if self._limit(request) is None:
            super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._requests.seen(request.request_id)
        limit = self._limit(request)
        if limit is not None:
            tracker = self._get_or_create_request_tracker(request)
            if limit < self.scheduler_adapter.lmcache_tokens_per_chunk:
                # Stores start after the tokens that vLLM has, as after a lookup without hits.
                aligned = num_computed_tokens // self._hit_alignment_tokens * self._hit_alignment_tokens
                tracker.num_vllm_hit_tokens = aligned
                return 0, False
            if tracker.state == _State.PREFETCHING:
                self._look_up(tracker, limit)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def _get_or_create_request_tracker(self, request: Any) -> Any:
        tracker = super()._get_or_create_request_tracker(request)
        tracker.cache_salt = self._salt(request) or ""
        if self._expects_others(request):
            tracker.max_offload_tokens = 0
        return tracker

    def _limit(self, request: Any) -> int | None:
        """The tokens that the request may load; None for no limit."""
        return 0 if self._expects_others(request) else _load_limit(request)

    def _salt(self, request: Any) -> str | None:
        return self._adapters.salt(request.cache_salt or "", request.lora_request)

    def _expects_others(self, request: Any) -> bool:
        """Whether the KV that LMCache has, or that the request computes, may be of other weights than it says."""
        if self._salt(request) is None:
            return True
        expected = _params(request).get(_WEIGHTS)
        return bool(self._weights and expected and expected not in {self._weights, self._deployment})

    def _look_up(self, tracker: Any, limit: int) -> None:
        """Look up the first ``limit`` tokens, before the stock connector looks up all of them.

        A lookup locks the chunks that it finds, so a shorter one leaves no locks that are never released. The
        adapter submits one lookup per request and then skips the stock connector's. The list of ids stays
        complete, because LMCache compares it with the ids of the load.
        """
        token_ids = tracker.get_token_ids()
        self.scheduler_adapter.maybe_submit_lookup_request(
            tracker.request_id,
            token_ids=token_ids,
            cache_salt=tracker.cache_salt,
            request_configs=tracker.request_configs,
            # Its callers pass a flag, but LMCache subtracts it as a number of tokens.
            reserve_last_token=max(len(token_ids) - limit, int(self._reserve_last_token_for_lookup)),
        )

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        tracker = self.request_trackers.get(request.request_id)
        failed = request.request_id in self._failed
        self._failed.discard(request.request_id)
        resting = self._loaded.finish(request.request_id, request.num_computed_tokens)
        self._chains.finish(request)
        dropped = self._dropped.pop(request.request_id, None)
        blocks_held, transfer_params = super().request_finished(request, block_ids)
        self._requests.ended(request.request_id, blocks_held=blocks_held)
        if tracker is not None and _wants_counts(request):
            loaded = max(0, tracker.num_lmcache_hit_tokens - tracker.num_vllm_hit_tokens)
            counts = {_LOADED: 0, _FAILED: loaded} if failed else {_LOADED: loaded}
            counts[_RESTING] = min(resting, request.num_prompt_tokens)
            transfer_params = {**(transfer_params or {}), **counts}
        if dropped is not None:
            transfer_params = {**(transfer_params or {}), _DROPPED: dropped}
        if self._weights and _params(request).get(_REPORT_WEIGHTS) is True:
            own = {_WEIGHTS: self._weights, _DEPLOYMENT: self._deployment}
            transfer_params = {**(transfer_params or {}), **own}
        return blocks_held, transfer_params

    def update_connector_output(self, connector_output: Any) -> None:
        """Filter the reports. The scheduler calls this just before it acts on them."""
        super().update_connector_output(connector_output)
        report = connector_output.kv_connector_worker_meta
        if self._held is not None and isinstance(report, SettledTransfers):
            self._held.settle(report)
        self._note_failed(connector_output.invalid_block_ids or set())
        self._failed |= connector_output.failed_recving & self.request_trackers.keys()
        # Received first: for a request in both lists, the first report frees it, and the second must be dropped.
        connector_output.finished_recving = self._requests.received(connector_output.finished_recving)
        connector_output.finished_sending = self._requests.sent(connector_output.finished_sending)

    def _note_failed(self, invalid_block_ids: set[int]) -> None:
        """Record failed loads. LMCache fails a load as a whole; vLLM may count its tokens as cached nevertheless."""
        if invalid_block_ids:
            self._failed |= {
                request_id
                for request_id, tracker in self.request_trackers.items()
                if any(not invalid_block_ids.isdisjoint(ids) for ids in tracker.allocated_block_ids.values())
            }


def _load_limit(request: Any) -> int | None:
    """The request's limit in tokens; None if it sets none."""
    return _count(request, _LIMIT)


def _count(request: Any, field: str) -> int | None:
    value = _params(request).get(field)
    return value if type(value) is int and value >= 0 else None


def _wants_counts(request: Any) -> bool:
    return _load_limit(request) is not None or _params(request).get(_REPORT_LOADED) is True


def _params(request: Any) -> dict[str, Any]:
    """The request's ``kv_transfer_params``; empty if not an object, since vLLM passes on any client's value unchecked."""
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}
