"""A freeze and a thaw on a real vLLM + LMCache, each one trace from the client down to both."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from cwm.settings import Engine
from tests.live.engine import LiveEngine
from tests.live.talk import talk
from tests.traces.gateway import Caller, caller, traced_gateway
from tests.traces.sink import Sink, sink

pytestmark = pytest.mark.live

SECRET = "never-to-be-seen"
TEXT = f"The lighthouse keeper wrote {SECRET} what the sea had brought to the rocks that day. " * 12


def peers(collector: Sink, whose: Caller) -> set[str]:
    return {str(span.attributes.get("service.peer.name")) for span in collector.of(whose.trace)} - {"None"}


async def test_a_freeze_and_a_thaw_are_traced_down_to_vllm_and_lmcache(
    tmp_path: Path, live_engine: LiveEngine
) -> None:
    engine = Engine(
        vllm_url=live_engine.vllm_url,
        lmcache_url=live_engine.lmcache_url,
        coordinator_url=live_engine.coordinator_url,
    )
    turn, freezing, thawing = caller(), caller(), caller()
    window = f"w-{uuid4().hex[:10]}"
    with sink() as collector:
        async with (
            traced_gateway(tmp_path, collector, engine=engine) as url,
            talk(url, live_engine.model_name, "2026-07-28") as agent,
        ):
            session = (await agent.tool("session_create"))["session_id"]
            with turn.calling():
                await agent.tool("session_generate", session_id=session, text=TEXT, max_tokens=8)
            with freezing.calling():
                await agent.tool("window_freeze", session_id=session, window_name=window)
            await live_engine.forget_gpu_cache()
            await live_engine.drop_l1()
            with thawing.calling():
                thawed = await agent.tool("window_thaw", window_name=window)
            assert thawed["success"] is True

        generated = next(span for span in collector.of(turn.trace) if span.name.startswith("text_completion"))
        assert generated.attributes["gen_ai.usage.input_tokens"] > 0
        assert collector.one("window_freeze", freezing.trace).attributes["cwm.window.name"] == window
        for whose, verb in ((freezing, "window_freeze"), (thawing, "window_thaw")):
            call = collector.one(f"tools/call {verb}", whose.trace)
            assert (call.parent, call.failed) == (whose.span, False)
            assert collector.one(verb, whose.trace).parent == call.id
            assert peers(collector, whose) == {"vllm", "lmcache"}
            assert "prefetch" in {span.name for span in collector.of(whose.trace)}
            ids = {span.id for span in collector.of(whose.trace)}
            assert all(span.parent in {*ids, whose.span} for span in collector.of(whose.trace))
        assert SECRET.encode() not in b"".join(collector.raw)
