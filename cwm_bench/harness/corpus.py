"""Text that fills contexts."""

from __future__ import annotations

import inspect
import platform
import tempfile
from typing import Protocol

from cwm import domain
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.prefix import TokenIds
from cwm.settings import Engine


class Stack(Protocol):
    vllm_url: str
    model_name: str


async def read_corpus(stack: Stack, size: int) -> TokenIds:
    """``size`` tokens of real text: sources of standard library modules."""
    engine = VllmEngine(Engine(vllm_url=stack.vllm_url))
    try:
        ids: TokenIds = ()
        for module in (inspect, platform, tempfile, domain):
            source = inspect.getsource(module)
            ids += await engine.tokenize(stack.model_name, source[:60_000], add_special_tokens=False)
            if len(ids) >= size:
                return ids[:size]
        return (ids * (size // len(ids) + 1))[:size]
    finally:
        await engine.aclose()
