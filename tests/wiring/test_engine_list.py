"""The engines at the addresses of a name, and what becomes of engines when addresses or settings change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cwm.adapters.local.clock import SystemClock
from cwm.domain.access import EVERY
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import EngineConnectionError
from cwm.domain.principal import Principal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.turns.sending.generate import TurnInput
from cwm.settings import Settings, load
from cwm.wiring.engine_list import EngineList
from cwm.wiring.lifetime import Drain, running
from cwm.wiring.parts import build_parts
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.certificates import certified
from tests.eventually import eventually

ANN = Principal("acme", "ann", EVERY)


@dataclass
class Names:
    """What names stand for, as a resolver says; a name without addresses is one that nobody knows."""

    addresses: dict[str, list[str]] = field(default_factory=dict)

    async def look_up(self, name: str) -> Sequence[str]:
        if not self.addresses.get(name):
            raise OSError("Name or service not known")
        return self.addresses[name]


@dataclass
class Home:
    names: Names
    folder: Path
    listed: EngineList

    def settings(self, text: str) -> Settings:
        (self.folder / "cwm.yaml").write_text(text)
        return load({}, self.folder / "cwm.yaml")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    (tmp_path / "cwm.yaml").write_text(
        "engines: {fixed: {url: 'http://h:1'}, pods: {dns: 'vllm.svc:8000', max_running: 4}}"
    )
    names = Names()
    listed = EngineList(load({}, tmp_path / "cwm.yaml"), look_up=names.look_up)
    listed.directory = EngineDirectory(listed.fleet, listed.kv_tier, secret=b"s", weights_digest="")
    yield Home(names, tmp_path, listed)
    await listed.fleet.aclose()
    await listed.kv_tier.aclose()


async def test_the_addresses_of_a_name_are_engines_that_come_and_go(home: Home) -> None:
    fleet, directory = home.listed.fleet, home.listed.directory
    assert fleet.names() == ("fixed",)
    home.names.addresses["vllm.svc"] = ["10.0.0.1", "10.0.0.2"]
    await home.listed.look()
    assert fleet.names() == ("fixed", "pods-10.0.0.1", "pods-10.0.0.2")
    assert directory is not None
    assert directory.rules["pods-10.0.0.2"] == EngineRules(max_running=4)
    second = fleet.one("pods-10.0.0.2")
    home.names.addresses["vllm.svc"] = ["10.0.0.2", "10.0.0.3"]
    await home.listed.look()
    assert fleet.names() == ("fixed", "pods-10.0.0.2", "pods-10.0.0.3")
    assert fleet.one("pods-10.0.0.2") is second, "it keeps its connections"
    home.names.addresses.clear()
    await home.listed.look()
    assert "pods-10.0.0.2" in fleet.names(), "a resolver that is away takes no engine away"


async def test_a_name_without_an_address_so_far_is_no_engine(home: Home) -> None:
    await home.listed.configure(home.settings("engines: {pods: {dns: 'vllm.svc:8000'}}"))
    await home.listed.look()
    assert home.listed.fleet.names() == ()
    with pytest.raises(EngineConnectionError, match="No engine is known"):
        await home.listed.fleet.models()


async def test_a_name_that_no_resolver_can_ask_for_keeps_its_addresses(home: Home) -> None:
    home.names.addresses["vllm.svc"] = ["10.0.0.1"]
    await home.listed.look()

    async def fails(_: str) -> Sequence[str]:
        raise UnicodeError("label empty or too long")

    home.listed.look_up = fails
    await home.listed.look()
    assert home.listed.fleet.names() == ("fixed", "pods-10.0.0.1")


async def test_names_are_looked_up_on_after_a_certificate_was_not_there_for_a_moment(home: Home) -> None:
    certified(home.folder)
    pem = home.folder / "certificate.pem"
    await home.listed.configure(
        home.settings(f"engines: {{pods: {{dns: 'vllm.svc:8000', tls: {{ca: {pem}}}}}}}")
    )
    content = pem.read_bytes()
    pem.write_text("half")
    home.names.addresses["vllm.svc"] = ["10.0.0.1"]
    with capture_logs() as logs:
        watch = asyncio.create_task(home.listed.watch(0.001))
        await eventually(lambda: any(each["event"] == "engines_not_looked_up" for each in logs))
    pem.write_bytes(content)
    await eventually(lambda: home.listed.fleet.names() == ("pods-10.0.0.1",))
    assert not watch.done()
    watch.cancel()


async def test_after_the_last_of_several_engines_the_cache_of_the_settings_is_asked(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    one = "engine: {lmcache_url: 'http://127.0.0.1:9', coordinator_url: 'http://127.0.0.1:9'}\n"
    config.write_text(
        f"{one}engines: {{fixed: {{url: 'http://127.0.0.1:7', lmcache: 'http://127.0.0.1:11'}}}}"
    )
    listed = EngineList(load({}, config))
    config.write_text(one)
    await listed.configure(load({}, config))
    with pytest.raises(EngineConnectionError, match=r"at http://127\.0\.0\.1:9/"):
        await listed.kv_tier.storing()
    await listed.fleet.aclose()
    await listed.kv_tier.aclose()


async def test_changed_rules_keep_connections_and_a_changed_key_does_not(home: Home) -> None:
    fleet = home.listed.fleet
    fixed = fleet.one("fixed")
    await home.listed.configure(home.settings("engines: {fixed: {url: 'http://h:1', max_running: 2}}"))
    assert fleet.one("fixed") is fixed
    await home.listed.configure(home.settings("engines: {fixed: {url: 'http://h:1', api_key: other}}"))
    assert fleet.one("fixed") is not fixed


async def test_an_engine_found_by_a_name_answers(home: Home) -> None:
    async with fake_vllm() as fake:
        home.names.addresses["vllm.svc"] = ["127.0.0.1"]
        port = fake.url.rpartition(":")[2]
        await home.listed.configure(home.settings(f"engines: {{pods: {{dns: 'vllm.svc:{port}'}}}}"))
        await home.listed.look()
        assert [served.id for served in await home.listed.fleet.models()] == [fake.model]


async def test_engines_come_and_go_while_the_gateway_runs(tmp_path: Path) -> None:
    async with fake_vllm() as one, fake_vllm() as two:
        config = tmp_path / "cwm.yaml"

        def listed(**urls: str) -> Settings:
            entries = "".join(f"  {name}: {{url: '{url}', lmcache: none}}\n" for name, url in urls.items())
            config.write_text(f"engines:\n{entries}")
            environ = {"CWM_DB_PATH": str(tmp_path / "cwm.db"), "CWM_SECRET": "a test's secret"}
            return load({**environ, "CWM_COORDINATOR_URL": "none"}, config)

        settings = listed(one=one.url, two=two.url)
        parts = build_parts(settings)
        async with running(settings, parts, Drain(5, SystemClock())):
            services = parts.services

            async def turn(session_id: str) -> None:
                await services.generate(ANN, session_id, TurnInput(text="Hello.", max_tokens=2))

            for name in ("s1", "s2"):
                await services.open_session(ANN, name)
                await turn(name)
            assert (len(one.turns), len(two.turns)) == (1, 1)
            listed(two=two.url)
            await eventually(lambda: parts.engine_side.engine.names() == ("two",))
            await turn("s1")
            assert (len(one.turns), len(two.turns)) == (1, 2)
            listed(one=one.url, two=two.url)
            await eventually(lambda: parts.engine_side.engine.names() == ("one", "two"))
            await services.open_session(ANN, "s3")
            await turn("s3")
            await turn("s1")
            assert (len(one.turns), len(two.turns)) == (2, 3), "who has moved stays"
