"""LMCache's connector for vLLM, hardened against clients that disconnect while KV is being loaded.

vLLM's scheduler asserts that every request a connector reports as finished is still known to it. When a
request is aborted during a load, LMCache reports its id more than once: as received, as sent, and again
after vLLM has forgotten it. Stock code then dies on the assertion, and the whole engine with it. This
subclass passes each report on only while the scheduler still waits for it.

vLLM loads it by name: ``"kv_connector_module_path": "cwm_connector"`` with this folder on PYTHONPATH. The
class keeps the name of its base because both vLLM and LMCache look connectors up by that name.
"""

from __future__ import annotations

from typing import Any

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector as _Stock


class _Ledger:
    """Which requests the scheduler knows, and which of those have ended but still hold their blocks."""

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
        """Loads to pass on. A load of an ended request makes the scheduler free it, so it is settled here."""
        passed = (reported or set()) & self.known
        self._settle(passed & self.awaiting_send)
        return passed or None

    def sent(self, reported: set[str] | None) -> set[str] | None:
        """Stores to pass on: only those of ended requests that nobody has freed yet."""
        passed = (reported or set()) & self.awaiting_send
        self._settle(passed)
        return passed or None

    def _settle(self, request_ids: set[str]) -> None:
        self.known -= request_ids
        self.awaiting_send -= request_ids


class LMCacheMPConnector(_Stock):
    """The stock connector, with its completion reports filtered. Runs in the scheduler and in every worker."""

    _ledger: _Ledger | None = None

    @property
    def _requests(self) -> _Ledger:
        # Made on first use: the base class has several constructors' worth of set-up and no hook before it.
        if self._ledger is None:
            self._ledger = _Ledger()
        return self._ledger

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._requests.seen(request.request_id)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        blocks_held, transfer_params = super().request_finished(request, block_ids)
        self._requests.ended(request.request_id, blocks_held=blocks_held)
        return blocks_held, transfer_params

    def update_connector_output(self, connector_output: Any) -> None:
        """Called by the scheduler just before it acts on the reports, so what is dropped here never reaches it."""
        super().update_connector_output(connector_output)
        # Received first: a request in both lists is freed by the first and must be gone from the second.
        connector_output.finished_recving = self._requests.received(connector_output.finished_recving)
        connector_output.finished_sending = self._requests.sent(connector_output.finished_sending)
