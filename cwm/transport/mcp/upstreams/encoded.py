"""The definitions of upstreams as the JSON of a list: made once for what is offered, not for each list."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from uuid import uuid4

from mcp_types.methods import serialize_server_result

from cwm.domain.upstream import Offer

# Values that a list of each method must have besides its items.
_OF_A_PAGE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_NAME: Final = f"cwm-{uuid4().hex}"
_PLACEHOLDERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tools": {"name": _NAME, "inputSchema": {"type": "object"}},
    "resources": {"name": _NAME, "uri": f"cwm://{_NAME}"},
    "resourceTemplates": {"name": _NAME, "uriTemplate": f"cwm://{_NAME}"},
    "prompts": {"name": _NAME},
}
_AT_ONCE: Final = 20
_MOST_BYTES: Final = 64 * 1024 * 1024

_Key = tuple[str, str, tuple[int, ...]]


@dataclass(slots=True)
class EncodedOffers:
    """Keeps the newest lists, at most so many bytes of them. An offer is a value: what changed is another one."""

    most_bytes: int = _MOST_BYTES
    _texts: OrderedDict[_Key, tuple[Sequence[Offer], bytes]] = field(default_factory=OrderedDict)
    _size: int = 0
    _making: dict[_Key, asyncio.Lock] = field(default_factory=dict)

    async def text(
        self,
        method: str,
        list_field: str,
        version: str,
        offers: Sequence[Offer],
        definition: Callable[[Offer], Mapping[str, Any]],
    ) -> bytes:
        """The items of a list of ``method``, with commas between, as ``version`` of MCP has them."""
        # The offers stay alive in the entry, so no other one has the identity of any of them.
        key = method, version, tuple(map(id, offers))
        async with self._making.setdefault(key, asyncio.Lock()):
            try:
                if (entry := self._texts.get(key)) is not None:
                    self._texts.move_to_end(key)
                    return entry[1]
                pieces: list[bytes] = []
                for start in range(0, len(offers), _AT_ONCE):
                    items = [definition(offer) for offer in offers[start : start + _AT_ONCE]]
                    pieces += map(_encoded, _sieved(method, list_field, version, items))
                    await asyncio.sleep(0)
                text = b",".join(pieces)
                self._keep(key, offers, text)
                return text
            finally:
                self._making.pop(key, None)

    def _keep(self, key: _Key, offers: Sequence[Offer], text: bytes) -> None:
        self._texts[key] = tuple(offers), text
        self._size += len(text)
        while self._size > self.most_bytes:
            self._size -= len(self._texts.popitem(last=False)[1][1])


@cache
def placeholder(method: str, list_field: str, version: str) -> tuple[Mapping[str, Any], bytes]:
    """An item that stands for all of them, and its JSON in the answer."""
    item = _PLACEHOLDERS[list_field]
    return item, _encoded(_sieved(method, list_field, version, [item])[0])


def _sieved(
    method: str, list_field: str, version: str, items: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    result = serialize_server_result(method, version, {**_OF_A_PAGE, list_field: list(items)})
    sieved: list[dict[str, Any]] = result[list_field]
    return sieved


def _encoded(item: Mapping[str, Any]) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()
