"""LMCache and its coordinator as far as room is kept through them: pins that change between two pages, deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cwm.stack.room import ChunkKey


def file_name(key: ChunkKey) -> str:
    """What LMCache calls the chunk's file."""
    model = key.model.replace("/", "-SEP-")
    return f"{model}@0x{key.rank:08x}@{key.group}@{key.hash}@{key.salt}.data"


@dataclass
class FakeLmcache:
    """``folder`` is its disk tier. ``page_read`` is called after each page of pins with how many were read so far."""

    folder: Path
    pins: list[ChunkKey] = field(default_factory=list)
    page_read: Callable[[int], None] = lambda _pages: None
    deleted: list[tuple[str, str]] = field(default_factory=list)
    """Adapter and hash of each chunk that was deleted."""
    asked_to_delete: asyncio.Event = field(default_factory=asyncio.Event)
    pages: int = 0
    instead_of_pins: list[bytes] = field(default_factory=list)
    """Bodies that it answers with first, in their order."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/cache/pins", self._list_pins),
                Route("/cache/objects", self._delete, methods=["DELETE"]),
            ]
        )

    async def _list_pins(self, request: Request) -> Response:
        if self.instead_of_pins:
            return Response(self.instead_of_pins.pop(0))
        offset, limit = int(request.query_params["offset"]), int(request.query_params["limit"])
        if not 1 <= limit <= 10_000:
            return JSONResponse({"detail": "limit"}, 422)
        page = [{"key": key.as_json(), "pin_count": 1} for key in self.pins[offset : offset + limit]]
        answer = JSONResponse({"total": len(self.pins), "pins": page})
        self.pages += 1
        self.page_read(self.pages)
        return answer

    async def _delete(self, request: Request) -> JSONResponse:
        body: dict[str, Any] = await request.json()
        for key in body["keys"]:
            chunk = ChunkKey(
                key["model_name"],
                key["kv_rank"],
                key["object_group_id"],
                key["chunk_hash_hex"],
                key["cache_salt"],
            )
            if body["adapter"] == "fs_native":
                (self.folder / file_name(chunk)).unlink()
            self.deleted.append((body["adapter"], chunk.hash))
        self.asked_to_delete.set()
        return JSONResponse({"deleted": len(body["keys"]), "skipped": 0, "ok": True})
