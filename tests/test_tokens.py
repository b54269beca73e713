"""The gateway counts in the vocabulary that was set, and asks its own engine for the share that was set."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.settings import ABSENT, Database, Engine, Isolation, Settings, Tokens
from cwm.wiring.parts import build_parts
from tests.adapters.vllm.fake_vllm import fake_vllm

TEXT = "快速的棕色狐狸 jumps over 12345 lazy dogs"


async def test_settings_choose_the_vocabulary_and_the_share(tmp_path: Path) -> None:
    async with fake_vllm() as vllm:
        parts = build_parts(
            Settings(
                database=Database(db_path=tmp_path / "cwm.db"),
                engine=Engine(vllm_url=vllm.url, lmcache_url=ABSENT, coordinator_url=ABSENT),
                isolation=Isolation(secret=SecretStr("s")),
                tokens=Tokens(token_vocabulary="cl100k_base", token_drift_share=1),
            )
        )
        async with parts.close():
            counted = parts.agent_side.token_counter.count(TEXT)
            parts.agent_side.token_drift.delivered(TEXT, counted)
            await parts.agent_side.token_drift.settle()
    sampled = {
        s.labels["by"]: s.value for s in parts.base.meter.samples() if s.name == "cwm_sampled_tokens_total"
    }
    assert sampled["counted"] == BpeTokenCounter("cl100k_base").count(TEXT) != BpeTokenCounter().count(TEXT)
    assert sampled["served"] > 0
