"""Two people of one tenant, before a real engine: who names what is somebody else's gets nothing of it and changes nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.cli.command import cwm
from tests.live.agents.protocols import PROTOCOLS, RESPONSES, Protocol, Question, require_refused, user
from tests.live.conftest import served
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, Talk, talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

CODE: Final = "XY-4711"
SECRET: Final = f"The code of the door is {CODE}."
HERS: Final = "hers"
IN_THE_CLIENTS_WORDS: Final = (
    {"X-Claude-Code-Session-Id": HERS},
    {"session-id": HERS},
    {"session-id": "of-bob", "thread-id": HERS},
    {"x-session-id": HERS},
    {"x-session-affinity": HERS},
    {"agent-session-id": HERS},
)
AS_ITS_PARENT: Final = (
    {"X-Claude-Code-Session-Id": HERS, "x-claude-code-agent-id": "a1"},
    {"session-id": HERS, "thread-id": "t1"},
    {"x-session-id": "s1", "x-parent-session-id": HERS},
)
VARIABLES: Final = {
    "CWM_API_KEYS": "true",
    "CWM_RATE_LIMIT_SESSION": "none",
    "CWM_RATE_LIMIT_PRINCIPAL": "none",
}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)


@dataclass(frozen=True, slots=True)
class People:
    """Ann has a private session, a window of it, a conversation of OpenAI's API and a response in it."""

    ann: Talk
    bob: Talk
    turn: str
    response: str
    conversation: str

    async def everything_of_ann(self) -> list[dict[str, Any]]:
        ann = self.ann
        gets = [f"/v1/responses/{self.response}", f"/v1/conversations/{self.conversation}/items"]
        return [
            await ann.tool("turn_log", session_id=HERS),
            await ann.tool("turn_show", session_id=HERS, include_tokens=True),
            await ann.tool("turn_show", turn=self.turn, include_tokens=True),
            (await ann.tool("window_status", window_name="of-ann"))["timestamps"],
            *[(await ann.http.get(f"{ann.url}{path}")).raise_for_status().json() for path in gets],
        ]

    async def asks(self, protocol: Protocol, headers: dict[str, str], **fields: Any) -> httpx2.Response:
        """Bob does."""
        question = Question((user("And what did I say before?"),), max_tokens=4)
        body = {**protocol.body(self.bob.model, question), **fields}
        return await self.bob.http.post(f"{self.bob.url}{protocol.path}", json=body, headers=headers)


@pytest.fixture(scope="module")
async def people(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[People]:
    folder: Path = tmp_path_factory.mktemp("people")
    scopes = [f"--scope={scope}" for scope in ("windows:*", "sessions:write")]
    keys = [
        cwm(folder, "keys", "create", name, *scopes, "--tenant", "acme").stdout.strip()
        for name in ("ann", "bob")
    ]
    async with AsyncExitStack() as stack:
        gateway = stack.enter_context(served(engine, folder / "cwm.db", "acme", **VARIABLES))
        ann, bob = [
            await stack.enter_async_context(talk(gateway.url, gateway.model, key=key)) for key in keys
        ]
        made = await ann.http.post(f"{ann.url}/v1/conversations", json={})
        conversation = made.raise_for_status().json()["id"]
        question = RESPONSES.body(ann.model, Question((user(SECRET),), max_tokens=4))
        answer = await ann.http.post(
            f"{ann.url}{RESPONSES.path}",
            json={**question, "conversation": conversation},
            headers={"CWM-Session-Id": HERS},
        )
        answer.raise_for_status()
        await ann.tool(
            "window_freeze", session_id=HERS, window_name="of-ann", keep_session=True, visibility="private"
        )
        yield People(ann, bob, answer.headers["cwm-turn"], answer.json()["id"], conversation)


@each_protocol
async def test_a_session_id_of_somebody_else_is_refused_in_the_protocols_shape(
    people: People, protocol: Protocol
) -> None:
    before = await people.everything_of_ann()
    refusals = [
        ({"CWM-Session-Id": HERS}, 409, "CWM-3001"),
        ({"CWM-Continue": f"session:{HERS}"}, 404, "CWM-2001"),
        ({"CWM-Continue": f"turn:{people.turn}"}, 404, "CWM-2007"),
        ({"CWM-Continue": "window:of-ann"}, 404, "CWM-2002"),
    ]
    # Responses continue one another by an id of theirs.
    for headers, status, code in refusals[:1] if protocol is RESPONSES else refusals:
        answer = await people.asks(protocol, headers)
        require_refused(protocol, answer, str(headers))
        assert (answer.status_code, code in answer.text) == (status, True), answer.text
        assert CODE not in answer.text
    assert await people.everything_of_ann() == before


@each_protocol
async def test_an_id_of_somebody_elses_conversation_is_one_of_its_own_for_another_person(
    people: People, protocol: Protocol
) -> None:
    before = await people.everything_of_ann()
    for headers in (*IN_THE_CLIENTS_WORDS, *AS_ITS_PARENT):
        answer = await people.asks(protocol, headers)
        assert answer.status_code == 200, answer.text
        session = answer.headers["cwm-session-id"]
        assert session != HERS
        status = await people.bob.tool("window_status", session_id=session)
        assert (status["owner"], status["visibility"]) == ("key:bob", "private")
        shown = await people.bob.tool("turn_show", session_id=session)
        assert CODE not in str(shown["messages"])
        log = await people.bob.tool("turn_log", session_id=session)
        assert "origin" not in log or log["origin"] is None
        assert {turn.get("parent") for turn in log["turns"]} <= {None, *(turn["id"] for turn in log["turns"])}
        with pytest.raises(RefusedError, match="CWM-2001"):
            await people.ann.tool("turn_log", session_id=session)
    assert await people.everything_of_ann() == before


async def test_a_response_and_a_conversation_of_somebody_else_are_not_there(people: People) -> None:
    before, bob = await people.everything_of_ann(), people.bob
    for status, fields in (
        (400, {"previous_response_id": people.response}),
        (404, {"conversation": people.conversation}),
    ):
        answer = await people.asks(RESPONSES, {}, **fields)
        require_refused(RESPONSES, answer, str(fields))
        assert (answer.status_code, "not found" in answer.text) == (status, True)
    for method, path in (
        ("GET", f"/v1/responses/{people.response}"),
        ("GET", f"/v1/responses/{people.response}/input_items"),
        ("DELETE", f"/v1/responses/{people.response}"),
        ("GET", f"/v1/conversations/{people.conversation}"),
        ("GET", f"/v1/conversations/{people.conversation}/items"),
        ("DELETE", f"/v1/conversations/{people.conversation}"),
    ):
        answer = await bob.http.request(method, f"{bob.url}{path}")
        require_refused(RESPONSES, answer, f"{method} {path}")
        assert (answer.status_code, CODE in answer.text) == (404, False)
    for tool, arguments in (
        ("turn_log", {"session_id": HERS}),
        ("turn_show", {"turn": people.turn}),
        ("window_freeze", {"session_id": HERS, "window_name": "stolen"}),
        ("window_thaw", {"window_name": "of-ann"}),
    ):
        with pytest.raises(RefusedError, match=r"CWM-200[127]"):
            await bob.tool(tool, **arguments)
    assert await people.everything_of_ann() == before
