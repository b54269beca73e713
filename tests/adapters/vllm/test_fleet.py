"""Several vLLM servers as one engine."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.domain.errors import EngineConnectionError, InvalidParameterError
from cwm.ports.engine import Generation
from cwm.settings import Engine
from cwm.settings.engines import read_engines
from tests.adapters.vllm.fake_vllm import ANSWER, Behaviour, FakeVllm, fake_vllm
from tests.certificates import certified
from tests.eventually import eventually

GENERATION = Generation("small", (1, 2, 3), "salt-1", 4)


@dataclass
class Servers:
    """Two of the model ``small`` and one of ``large``."""

    one: FakeVllm
    two: FakeVllm
    three: FakeVllm
    fleet: VllmFleet


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    async with fake_vllm() as one, fake_vllm() as two, fake_vllm() as three:
        one.model = two.model = "small"
        three.model = "large"
        by_name = {"one": one, "two": two, "three": three}
        fleet = VllmFleet(
            {name: VllmEngine(Engine(vllm_url=fake.url, vllm_api_key=name)) for name, fake in by_name.items()}
        )
        yield Servers(one, two, three, fleet)
        await fleet.aclose()


async def test_a_request_goes_to_the_engine_that_it_names_else_to_one_that_serves_its_model(
    servers: Servers,
) -> None:
    await servers.fleet.complete(replace(GENERATION, engine="two"))
    await servers.fleet.complete(replace(GENERATION, model="large"))
    async for _ in servers.fleet.stream(replace(GENERATION, engine="two")):
        pass
    assert [len(fake.turns) for fake in (servers.one, servers.two, servers.three)] == [0, 2, 1]
    assert servers.two.turns[0].headers["authorization"] == "Bearer two"


async def test_one_that_cannot_be_reached_names_what_sets_its_url(tmp_path: Path) -> None:
    listed, _ = read_engines({"a": {"url": "http://127.0.0.1:9"}}, Engine(), {}, tmp_path)
    for settings, origin in (
        (listed["a"], "the engine's url"),
        (Engine(vllm_url="http://127.0.0.1:9"), "CWM_VLLM_URL"),
    ):
        engine = VllmEngine(settings)
        with pytest.raises(EngineConnectionError, match=f"is {origin} right"):
            await engine.health()
        await engine.aclose()


async def test_a_model_that_no_engine_serves_is_refused_in_an_engines_words(servers: Servers) -> None:
    with pytest.raises(InvalidParameterError, match="gone"):
        await servers.fleet.complete(replace(GENERATION, model="gone"))


async def test_the_models_of_all_engines_are_served_each_once_also_while_one_is_away(
    servers: Servers,
) -> None:
    assert [served.id for served in await servers.fleet.models()] == ["small", "large"]
    away = VllmEngine(Engine(vllm_url="http://127.0.0.1:9"))
    here = servers.fleet.on("three")
    assert isinstance(here, VllmEngine)
    some = VllmFleet({"away": away, "three": here})
    assert [served.id for served in await some.models()] == ["large"]
    await some.health()
    with pytest.raises(EngineConnectionError):
        await VllmFleet({"away": away}).health()
    await away.aclose()


async def test_an_engine_that_is_not_in_the_directory_is_not_asked(servers: Servers) -> None:
    with pytest.raises(EngineConnectionError, match="four"):
        await servers.fleet.complete(replace(GENERATION, engine="four"))


async def test_an_answer_of_an_engine_that_is_taken_off_the_list_comes_to_its_end(servers: Servers) -> None:
    servers.one.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    stream = servers.fleet.stream(replace(GENERATION, engine="one"))
    texts = [(await anext(stream)).text]
    two = servers.fleet.one("two")
    servers.fleet.configure({"two": two})
    assert servers.fleet.names() == ("two",)
    await servers.fleet.close_retired()
    await servers.fleet.complete(GENERATION)
    servers.one.release.set()
    texts += [delta.text async for delta in stream]
    assert "".join(texts) == "".join(ANSWER[:4])
    assert len(servers.two.turns) == 1
    await servers.fleet.close_retired()
    await eventually(lambda: not servers.one.open_connections)


async def test_vllm_over_tls_is_trusted_by_its_own_ca_and_shown_a_certificate(tmp_path: Path) -> None:
    served, _ = certified(tmp_path)
    ca, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    served.load_verify_locations(ca)
    served.verify_mode = ssl.CERT_REQUIRED
    async with fake_vllm(served) as fake:

        async def version(**tls: str) -> str:
            document = {"one": {"url": fake.url, "tls": tls}}
            entries, _ = read_engines(document, Engine(), {}, tmp_path / "cwm.yaml")
            engine = VllmEngine(entries["one"])
            try:
                return await engine.version()
            finally:
                await engine.aclose()

        assert await version(ca=str(ca), cert=str(ca), key=str(key)) == "0.0.1"
        with pytest.raises(EngineConnectionError, match="certificate that is not accepted"):
            await version(cert=str(ca), key=str(key))
        with pytest.raises(EngineConnectionError):
            await version(ca=str(ca))


async def test_counters_are_the_sums(servers: Servers) -> None:
    servers.one.busy, servers.two.busy = (2, 0), (3, 4)
    counters = await servers.fleet.counters()
    assert (counters.requests_running, counters.requests_waiting) == (5, 4)
    assert await servers.fleet.abort(["x"]) is False
    servers.two.aborts = True
    assert await servers.fleet.abort(["x"]) is True
