"""Models that embed, score or classify stand beside others, which they do not disturb."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.errors import EngineResponseError, ModelDoesNotGenerateError
from tests.fakes.engine import FakeEngine
from tests.services.fleet_of import together
from tests.services.replicas_of import OPERATOR
from tests.services.windows_of import gateway


async def test_a_caller_who_names_no_model_gets_one_that_generates(sqlite: Database) -> None:
    engines = {
        "embeds": FakeEngine(model="embedder", root="/models/embedder", generates=False),
        "talks": FakeEngine(),
    }
    cwm = gateway(sqlite, engines["talks"], served=together(engines))
    assert (await cwm.directory.identity()).model == "tiny"
    await cwm.session("s1")
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    assert session.engine == "talks"
    engines["embeds"].requests.clear()
    for _ in range(2):
        assert [each.deployments for each in await cwm.survey(OPERATOR)] == [
            {"embedder": ""},
            {"tiny": "fp-1"},
        ]
    assert len(engines["embeds"].requests) <= 1, "it is asked once whether it generates"
    assert await cwm.directory.served_name("embedder", "acme") == "embedder"
    await cwm.settle()


async def test_a_turn_or_a_session_of_such_a_model_is_refused_with_what_it_is_for(sqlite: Database) -> None:
    engines = {
        "embeds": FakeEngine(model="embedder", root="/models/embedder", generates=False),
        "talks": FakeEngine(),
    }
    cwm = gateway(sqlite, engines["talks"], served=together(engines))
    for _ in range(2):
        with pytest.raises(ModelDoesNotGenerateError, match="does not generate") as refused:
            await cwm.directory.asked_for("embedder", "acme")
        assert (refused.value.code, refused.value.retryable) == ("CWM-1003", False)
        assert refused.value.context["serves"] == ["/v1/embeddings", "/pooling"]
    assert len(engines["embeds"].requests) == 1, "it is asked once whether it generates"
    assert [each.deployments for each in await cwm.survey(OPERATOR)] == [{"embedder": ""}, {"tiny": "fp-1"}]
    engines["embeds"].generates = True
    cwm.directory.forget("embeds")
    assert (await cwm.directory.asked_for("embedder", "acme")).model == "embedder"
    await cwm.settle()


async def test_an_engine_that_does_not_say_what_it_serves_is_only_at_fault(sqlite: Database) -> None:
    engine = FakeEngine(generates=False)
    engine.reports_paths = False
    cwm = gateway(sqlite, engine)
    with pytest.raises(EngineResponseError, match="404"):
        await cwm.directory.identity()
