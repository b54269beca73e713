"""Conversations that a real Codex and a real opencode compact: what a summary lost is named, recalled word for word, and gone back to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.agents.programs import AGENTS, place, prepare_codex, summarize
from tests.live.agents.proxy import proxied
from tests.live.conftest import LiveGateway
from tests.live.talk import talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

PLANTED: Final = [f"{48213 + 37 * number}" for number in range(30)]
# Codex keeps what a user said in its summary, and not what the model answered.
ANSWER: Final = "The ports of the services are " + ", ".join(PLANTED) + ". That is all."
# Above Codex's own instructions, below them with the answer.
LIMIT: Final = ("model_auto_compact_token_limit = 4550", "model_context_window = 8192")


async def test_what_a_codex_forgot_is_named_recalled_and_gone_back_to(
    gateway: LiveGateway, tmp_path: Path
) -> None:
    codex = next(agent for agent in AGENTS if agent.name == "codex")
    async with proxied(gateway.url) as proxy, talk(gateway.url, gateway.model) as own:
        here = place(tmp_path, proxy.url, gateway.model)
        prepare_codex(here, *LIMIT)
        proxy.answers = [ANSWER]
        await codex.says(here, "Which ports do the services have?", resumed=False)
        before = proxy.passed[-1]
        await codex.says(here, "Go on, please.", resumed=True)
        after = proxy.passed[-1]
        session = str(before.session)
        assert {each.session for each in proxy.passed} == {session}

        log = {turn["id"]: turn for turn in (await own.tool("turn_log", session_id=session))["turns"]}
        assert log[str(after.turn)]["compacts"] == before.turn
        lost = await own.tool("turn_left_out", session_id=session)
        assert (lost["turn"], lost["before"]) == (after.turn, before.turn)
        named = {fact["text"] for fact in lost["facts"]}
        request = str(after.body)
        gone = [fact for fact in PLANTED if fact not in request]
        assert len(gone) >= 20
        assert len(named.intersection(gone)) >= 0.95 * len(gone)
        # A number may be a part of an id that the client made up.
        assert not [fact for fact in named if re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", request)]

        for fact in gone:
            (result,) = (
                await own.tool("turn_search", session_id=session, query=fact, include_messages=True)
            )["results"]
            assert (result["turn"], result["message"]["content"]) == (before.turn, ANSWER)

        whole = await own.tool("turn_show", turn=str(before.turn), include_tokens=True)
        await own.tool("turn_revert", turn=f"tag:{lost['tag']}")
        status: dict[str, Any] = await own.tool("turn_show", session_id=session, include_tokens=True)
        assert status["token_ids"] == whole["token_ids"]
        answer = await own.http.post(
            f"{gateway.url}/v1/chat/completions",
            headers={"CWM-Continue": f"session:{session}"},
            json={
                "model": gateway.model,
                "max_tokens": 8,
                "messages": [{"role": "user", "content": "And the first of them?"}],
            },
        )
        assert answer.status_code == 200, answer.text
        again = await own.tool("turn_show", turn=answer.headers["cwm-turn"], include_tokens=True)
        assert again["turn"]["parent"] == before.turn
        assert again["token_ids"][: len(whole["token_ids"])] == whole["token_ids"]


async def test_an_opencode_goes_on_from_its_summary_in_the_same_session(
    gateway: LiveGateway, tmp_path: Path
) -> None:
    opencode = next(agent for agent in AGENTS if agent.name == "opencode")
    async with proxied(gateway.url) as proxy, talk(gateway.url, gateway.model) as own:
        here = place(tmp_path, proxy.url, gateway.model)
        opencode.prepare(here)
        await opencode.says(here, "Which ports do the services have?", resumed=False)
        before = next(each for each in proxy.passed if each.has_tools)
        session = str(before.session)
        await summarize(here, session)
        summary = proxy.passed[-1]
        await opencode.says(here, "Go on, please.", resumed=True)
        after = proxy.passed[-1]
        assert {(each.session, each.status) for each in proxy.passed} == {(session, 200)}

        answer = await own.tool("turn_log", session_id=session)
        log = {turn["id"]: turn for turn in answer["turns"]}
        assert answer["current_turn"] == after.turn
        assert log[str(after.turn)]["compacts"] == before.turn
        assert log[str(summary.turn)]["line"] == "side"
        number = log[str(before.turn)]["number"]
        assert {tag["tag"]: tag["turn"] for tag in answer["tags"]} == {
            f"{session}.before-compaction-{number}": before.turn
        }
