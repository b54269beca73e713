"""Fields of other servers' APIs, over a socket: what the engine gets of them, and what the answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm
from tests.transport.llm.gateway import Gateway

pytestmark = pytest.mark.slow

HEY = {"role": "user", "content": "hey"}
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [HEY]},
    "/v1/completions": {"prompt": "hey"},
    "/v1/responses": {"input": [HEY]},
    "/v1/messages": {"messages": [HEY], "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": [HEY]},
}


@pytest.mark.parametrize("path", ASKS)
async def test_what_nobody_knows_does_not_reach_the_engine_and_the_answer_names_it(
    cwm: Gateway, vllm: FakeVllm, path: str
) -> None:
    foreign = {"search_parameters": {"mode": "off"}, "keep_alive": "5m", "plugins": [], "odd\nname: x": 1}
    ask = {"model": MODEL, **ASKS[path]}
    answer = await cwm.client.post(path, json={**ask, **foreign})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cwm-dropped"] == "keep_alive, odd?name??x, search_parameters"
    plain = await cwm.client.post(path, json=ask)
    assert "cwm-dropped" not in plain.headers
    with_foreign, without = [json.loads(each.body).keys() for each in vllm.turns[-2:]]
    assert with_foreign == without


async def test_a_header_names_sixteen_fields_and_counts_the_others(cwm: Gateway) -> None:
    foreign = {f"field_{number:03}": "x" for number in range(500)}
    answer = await cwm.client.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [HEY], **foreign}
    )
    names = answer.headers["cwm-dropped"].split(", ")
    assert (names[0], names[15], names[16:]) == ("field_000", "field_015", ["and 484 more"])
