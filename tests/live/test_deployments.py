"""The main job in other set-ups: without LMCache, on Postgres with two replicas, with KV of one lineage only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, select, text, update

from cwm.adapters.sql import schema
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.tables.windows import windows
from cwm.domain.engine import TOKEN_FIELDS
from cwm.domain.prefix import restorable_tokens
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, cached, talk, words

pytestmark = pytest.mark.live


async def test_without_lmcache_windows_keep_tokens_and_everything_says_so(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    with served(
        live_engine,
        tmp_path / "cwm.db",
        f"t{uuid4().hex[:6]}",
        CWM_LMCACHE_URL="none",
        CWM_COORDINATOR_URL="none",
    ) as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, ids = await agent.fill(words(200))
            frozen = await agent.tool("window_freeze", session_id=session, window_name="w")
            assert frozen["block_count"] == 0
            assert "no LMCache" in frozen["warning"]
            assert (await agent.tool("health_check"))["status"] == "degraded"
            components = {c["name"]: c for c in (await agent.tool("health_check"))["components"]}
            assert "no LMCache" in components["kv_store"]["message"]
            thawed = await agent.tool("window_thaw", window_name="w")
            assert thawed["token_count"] == len(ids)
            assert thawed["partial"] is False
            assert (await agent.tool("window_delete", window_name="w", force=True))["blocks_deleted"] == 0


async def test_a_window_frozen_through_one_replica_thaws_through_another_on_postgres(
    live_engine: LiveEngine, empty_postgres_url: str, tmp_path: Path
) -> None:
    await schema.upgrade(empty_postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    tenant, more = f"t{uuid4().hex[:6]}", {"CWM_DATABASE_URL": empty_postgres_url}
    with (
        served(live_engine, tmp_path / "unused.db", tenant, **more) as one,
        served(live_engine, tmp_path / "unused.db", tenant, **more) as two,
    ):
        async with talk(one.url, one.model) as here, talk(two.url, two.model, "legacy") as there:
            session, ids = await here.fill(words(300))
            await here.tool("window_freeze", session_id=session, window_name="w")
            await live_engine.forget_gpu_cache()
            thawed = await there.tool("window_thaw", window_name="w")
            assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), live_engine.chunk_size)
            rival, _ = await there.fill(words(100))
            results = await asyncio.gather(
                here.tool("window_freeze", session_id=thawed["session_id"], window_name="same"),
                there.tool("window_freeze", session_id=rival, window_name="same"),
                return_exceptions=True,
            )
            assert [r.code for r in results if isinstance(r, RefusedError)] == ["CWM-3003"]


async def test_with_session_scope_only_a_lineage_shares_kv(live_engine: LiveEngine, tmp_path: Path) -> None:
    with served(
        live_engine, tmp_path / "cwm.db", f"t{uuid4().hex[:6]}", CWM_CACHE_SCOPE="session"
    ) as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            prompt = words(200)
            session, ids = await agent.fill(prompt)
            stranger = await agent.complete(prompt, session=f"s_{uuid4().hex[:8]}")
            assert cached(stranger) == 0
            await agent.tool("window_freeze", session_id=session, window_name="w")
            heir = await agent.tool("window_thaw", window_name="w")
            assert heir["partial"] is False
            assert cached(await agent.complete([*ids, 400], session=heir["session_id"])) > 0


async def test_a_freeze_waits_for_the_turn_in_flight_that_continues_the_session(
    gateway: LiveGateway,
) -> None:
    async with talk(gateway.url, gateway.model) as agent:
        session, ids = await agent.fill(words(60))
        turn = asyncio.create_task(
            agent.http.send(
                agent.http.build_request(
                    "POST",
                    f"{gateway.url}/v1/completions",
                    json={
                        "model": gateway.model,
                        "prompt": ids,
                        "max_tokens": 500,
                        "ignore_eos": True,
                        "stream": True,
                    },
                    headers={"CWM-Session-Id": session},
                ),
                stream=True,
            )
        )
        response = await turn
        assert response.status_code == 200
        freezing = asyncio.create_task(
            agent.tool("window_freeze", session_id=session, window_name=f"w{uuid4().hex[:8]}")
        )
        await response.aread()
        assert (await freezing)["token_count"] == len(ids) + 500


async def test_an_empty_session_and_a_frozen_one_are_not_frozen_and_a_frozen_one_takes_no_turn(
    gateway: LiveGateway,
) -> None:
    async with talk(gateway.url, gateway.model) as agent:
        empty = (await agent.tool("session_create"))["session_id"]
        with pytest.raises(RefusedError, match=r"CWM-3002.*no tokens"):
            await agent.tool("window_freeze", session_id=empty, window_name="w-empty")
        session, ids = await agent.fill(words(60))
        await agent.tool("window_freeze", session_id=session, window_name=f"w{uuid4().hex[:8]}")
        with pytest.raises(RefusedError, match="CWM-3002"):
            await agent.tool("window_freeze", session_id=session, window_name=f"w{uuid4().hex[:8]}")
        answer = await agent.http.post(
            f"{gateway.url}/v1/completions",
            json={"model": gateway.model, "prompt": ids},
            headers={"CWM-Session-Id": session},
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CWM-3002")


async def alter(database: Path, **changed: str) -> None:
    """Make every window of the registry one that was frozen on an engine with these facts."""

    def rewrite(connection: Connection) -> None:
        for uid, identity in connection.execute(select(windows.c.uid, windows.c.identity)).all():
            altered = update(windows).where(windows.c.uid == uid).values(identity={**identity, **changed})
            connection.execute(altered)

    opened = open_database(f"sqlite:///{database}")
    await opened.write(rewrite)
    await opened.dispose()


@pytest.mark.parametrize("field", TOKEN_FIELDS)
async def test_a_window_whose_tokens_mean_something_else_now_is_refused_with_the_fix(
    live_engine: LiveEngine, tmp_path: Path, field: str
) -> None:
    with served(live_engine, tmp_path / "cwm.db", "acme") as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, ids = await agent.fill(words(60))
            await agent.tool("window_freeze", session_id=session, window_name="w")
            await alter(tmp_path / "cwm.db", **{field: "another"})
            with pytest.raises(RefusedError, match=r"Serve the model with the .* it had") as refused:
                await agent.tool("window_thaw", window_name="w")
            assert refused.value.code == "CWM-3005"
            assert refused.value.context["field"] == field
            assert refused.value.context["frozen"] == "another"
            if field == "template_digest":
                thawed = await agent.tool("window_thaw", window_name="w", accept_template=True)
                assert (thawed["token_count"], thawed["partial"]) == (len(ids), False)
            else:
                with pytest.raises(RefusedError, match="CWM-3005"):
                    await agent.tool("window_thaw", window_name="w", accept_template=True)


async def test_a_window_of_a_model_that_is_not_served_is_refused_with_what_is(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    with served(live_engine, tmp_path / "cwm.db", "acme") as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, _ = await agent.fill(words(60))
            await agent.tool("window_freeze", session_id=session, window_name="w")
            database = open_database(f"sqlite:///{tmp_path / 'cwm.db'}")
            renamed = text("UPDATE windows SET model = 'llama-of-last-year'")
            await database.write(lambda connection: connection.execute(renamed))
            await database.dispose()
            with pytest.raises(RefusedError) as refused:
                await agent.tool("window_thaw", window_name="w")
            assert refused.value.code == "CWM-5002"
            assert refused.value.context["served"] == [gateway.model]
