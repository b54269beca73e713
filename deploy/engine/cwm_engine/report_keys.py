"""Makes LMCache's status name the keys with which each adapter seals and opens chunks: ``cwm_keys``, the sealing one first.

The names are those at the head of every sealed chunk. Servers that do not have each other's keys take what the others stored for damaged.
"""

from __future__ import annotations

from typing import Any

from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper


def report_keys() -> None:
    """Call it before LMCache starts."""
    report = SerdeL2AdapterWrapper.report_status

    def report_with_keys(adapter: SerdeL2AdapterWrapper) -> dict[str, Any]:
        sealer = getattr(adapter._serde, "_serializer", None)  # noqa: SLF001 - it has no public face
        ring = getattr(sealer, "ring", None)
        status: dict[str, Any] = report(adapter)
        return status if ring is None else {**status, "cwm_keys": ring.names()}

    SerdeL2AdapterWrapper.report_status = report_with_keys
