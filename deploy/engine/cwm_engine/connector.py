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

LMCache's keys cover neither the weights nor most of vLLM's options. So the scheduler's connector hashes the files that were
loaded, and with them everything that KV depends on: the deployment. A request with ``"cwm.weights": digest`` that expects
another deployment, or other weights, neither loads nor stores. ``"cwm.tell_weights": true`` puts the engine's own digests into
``"cwm.weights"`` and ``"cwm.deployment"`` of the response. Weights in no local folder have no digest, and requests are not
checked then.

Where vLLM's prefix cache is off, or its block does not divide LMCache's chunk, nothing is loaded or stored: :mod:`cwm_engine.closed_connector`.

vLLM loads it by name: ``"kv_connector_module_path": "cwm_engine.connector"``. The class keeps the name of its base
because both vLLM and LMCache look connectors up by that name.
"""

from __future__ import annotations

from typing import Any

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector as _Stock
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState as _State
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from cwm_engine.closed_connector import ClosedConnector, why_closed
from cwm_engine.deployment import deployment_digest
from cwm_engine.seeded_sampling import sample_with_seeds
from cwm_engine.short_spin import spin_shortly
from cwm_engine.weights import weights_digest

_LIMIT = "cwm.load_tokens"
_REPORT_LOADED = "cwm.tell_loaded"
_LOADED = "cwm.loaded_tokens"
_FAILED = "cwm.failed_tokens"
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

    def on_new_request(self, request: Any) -> None:
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
        if self._expects_others(request):
            tracker.max_offload_tokens = 0
        return tracker

    def _limit(self, request: Any) -> int | None:
        """The tokens that the request may load; None for no limit."""
        return 0 if self._expects_others(request) else _load_limit(request)

    def _expects_others(self, request: Any) -> bool:
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
        blocks_held, transfer_params = super().request_finished(request, block_ids)
        self._requests.ended(request.request_id, blocks_held=blocks_held)
        if tracker is not None and _wants_counts(request):
            loaded = max(0, tracker.num_lmcache_hit_tokens - tracker.num_vllm_hit_tokens)
            counts = {_LOADED: 0, _FAILED: loaded} if failed else {_LOADED: loaded}
            transfer_params = {**(transfer_params or {}), **counts}
        if self._weights and _params(request).get(_REPORT_WEIGHTS) is True:
            own = {_WEIGHTS: self._weights, _DEPLOYMENT: self._deployment}
            transfer_params = {**(transfer_params or {}), **own}
        return blocks_held, transfer_params

    def update_connector_output(self, connector_output: Any) -> None:
        """Filter the reports. The scheduler calls this just before it acts on them."""
        super().update_connector_output(connector_output)
        self._note_failed(connector_output.invalid_block_ids or set())
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
    limit = _params(request).get(_LIMIT)
    return limit if isinstance(limit, int) and limit >= 0 else None


def _wants_counts(request: Any) -> bool:
    return _load_limit(request) is not None or _params(request).get(_REPORT_LOADED) is True


def _params(request: Any) -> dict[str, Any]:
    """The request's ``kv_transfer_params``; empty if not an object, since vLLM passes on any client's value unchecked."""
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}
