"""One list of the models of several engines, and a model that none of them serves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from cwm.domain.engine_rules import EngineRules
from cwm.domain.model_aliases import ModelAliases
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.transport.llm.models import ModelsEndpoint
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.transport.llm.gateway import Authenticated, gateway, serving, settings_for
from tests.transport.llm.test_messages_through import COUNT

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's list."""

    models: tuple[str, ...]
    owner: str
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)

    def body(self) -> bytes:
        data = [{"id": name, "object": "model", "owned_by": self.owner} for name in self.models]
        return json.dumps({"object": "list", "data": data}).encode()


@dataclass(frozen=True, slots=True)
class Engines:
    answers: tuple[Answer, ...]
    aliases: ModelAliases = field(default_factory=ModelAliases)

    async def relay_to_all(self, *_: Any) -> list[tuple[Answer, bytes]]:
        return [(answer, answer.body()) for answer in self.answers]


async def test_models_are_listed_in_the_order_of_their_engines_each_as_the_first_one_has_it() -> None:
    engines = Engines(
        (Answer(("small", "draft"), "one"), Answer(("small",), "two"), Answer(("large",), "two"))
    )
    endpoint = ModelsEndpoint(cast("PassThrough", engines))
    app = Authenticated(Starlette(routes=[Route("/v1/models", endpoint)]))
    async with serving(app) as url, httpx2.AsyncClient(trust_env=False) as client:
        models = (await client.get(f"{url}/v1/models")).json()["data"]
    assert [(each["id"], each["owned_by"]) for each in models] == [
        ("small", "one"), ("draft", "one"), ("large", "two"),
    ]  # fmt: skip


async def test_what_a_model_that_is_not_served_is_to_count_goes_to_no_engine_of_other_tenants(
    tmp_path: Path,
) -> None:
    async with (
        fake_vllm() as first,
        fake_vllm() as second,
        gateway(settings_for(first.url), tmp_path, others={"second": settings_for(second.url)}) as cwm,
    ):
        cwm.directory.rules = {"first": EngineRules(tenants=frozenset({"umbrella"}))}
        text = {"model": "gone", "messages": [{"role": "user", "content": "A secret."}]}
        await cwm.client.post(COUNT, json=text)
        asked = [[b"A secret." in each.body for each in fake.seen] for fake in (first, second)]
    assert [any(each) for each in asked] == [False, True]


_HALF = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize(("beginning", "hangs"), [(b"", True), (_HALF, True), (_HALF, False)])
async def test_an_engine_that_hangs_or_breaks_off_is_not_waited_for_and_the_others_models_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning: bytes, hangs: bool
) -> None:
    monkeypatch.setattr("cwm.services.turns.sending.pass_through._ANSWER_SECONDS", 0.3)
    end = asyncio.Event()

    async def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        await writer.drain()
        if hangs:
            await end.wait()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with (
        fake_vllm() as sound,
        gateway(settings_for(url), tmp_path, others={"second": settings_for(sound.url)}) as cwm,
    ):
        async with asyncio.timeout(5):
            listed = (await cwm.client.get("/v1/models")).json()["data"]
        end.set()
        server.close()
    assert [each["id"] for each in listed] == [sound.model]
