"""Models that embed, score or classify stand beside others, which they do not disturb."""

from __future__ import annotations

from cwm.adapters.sql.database import Database
from tests.fakes.engine import FakeEngine
from tests.services.fleet_of import together
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
        assert [each.deployments for each in await cwm.survey()] == [{"embedder": ""}, {"tiny": "fp-1"}]
    assert len(engines["embeds"].requests) <= 1, "it is asked once whether it generates"
    assert await cwm.directory.served_name("embedder", "acme") == "embedder"
    await cwm.settle()
