"""A person with a real browser sees and acts on what the real engine computed: the three stories, freeze, thaw, branch, go back, delete."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import openai
import pytest
from playwright.async_api import Page, async_playwright, expect

from cwm.domain.prefix import restorable_tokens
from tests.browser.chromium import chromium
from tests.browser.stories import finds_and_goes_on, sees_why_it_was_slow, undoes_the_compaction
from tests.browser.visitor import Visitor, visit
from tests.live.conftest import LiveGateway
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, Talk, talk

pytestmark = pytest.mark.live

ANSWER_TOKENS: Final = 8
TOOL: Final[Any] = {"type": "function", "function": {"name": "read_notes", "parameters": {"type": "object"}}}
FACTS = "The password is 4711. " + " ".join(f"Item {i} is {i * 7 % 13}." for i in range(60))


@dataclass
class Program:
    """An agent with a tool, which sends all that it has said with each question."""

    gateway: LiveGateway
    session: str
    messages: list[Any] = field(default_factory=list)

    async def asks(self, question: str) -> Turn:
        """Ask with all that was said before, and keep the answer."""
        self.messages.append({"role": "user", "content": question})
        turn = await sent(self.gateway, self.messages, CWM_Session_Id=self.session)
        self.messages.append({"role": "assistant", "content": turn.answer})
        return turn


@dataclass(frozen=True)
class Turn:
    """What the engine answered, and what it says of the prompt: its tokens, and how many of them it had."""

    id: str
    answer: str
    prompt: int
    cached: int


async def sent(gateway: LiveGateway, messages: list[Any], **headers: str) -> Turn:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=120) as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(
            model=gateway.model,
            messages=messages,
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            tools=[TOOL],
            tool_choice="none",
            extra_body={"ignore_eos": True},
            extra_headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
    answer = raw.parse()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return Turn(
        raw.headers["cwm-turn"],
        answer.choices[0].message.content or "",
        answer.usage.prompt_tokens,
        answer.usage.prompt_tokens_details.cached_tokens or 0,
    )


def system(day: str, session: str) -> dict[str, str]:
    return {"role": "system", "content": f"Today's date: {day}\nYou keep {session}. {FACTS}"}


@pytest.fixture
async def visitor(gateway: LiveGateway) -> AsyncIterator[Visitor]:
    program = chromium()
    if program is None:
        pytest.skip("There is no Chromium here; make test-console installs one.")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        async with visit(browser, gateway.url) as visiting:
            visiting.page.set_default_timeout(60_000)
            yield visiting
        await browser.close()


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


async def asked(gateway: LiveGateway, session_id: str, messages: list[Any]) -> tuple[int, list[Any]]:
    """How many tokens of the prompt the engine had, and the conversation with the answer."""
    turn = await sent(gateway, messages, CWM_Session_Id=session_id)
    return turn.cached, [*messages, {"role": "assistant", "content": turn.answer}]


async def acts(page: Page, verb: str, **fields: str) -> None:
    """Follow the action's link, fill in the form on its page, and press the button."""
    await page.get_by_role("list", name="Actions").get_by_role("link", name=verb, exact=True).click()
    for label, value in fields.items():
        await page.get_by_label(re.compile(label, re.IGNORECASE)).first.fill(value)
    await page.locator("form.confirm").get_by_role("button", name=verb, exact=True).click()


async def is_gone_on_with(engine: LiveEngine, agent: Talk, turn: Turn, parent: Turn) -> None:
    """The turn continues that parent to its last token, and the engine had all of its KV that can be had."""
    record = (await agent.tool("turn_show", turn=turn.id))["turn"]
    assert (record["parent"], record["relation"]) == (parent.id, "continues")
    assert record["parent_at"] == parent.prompt + ANSWER_TOKENS
    assert turn.cached == record["cached_tokens"] == restorable_tokens(record["parent_at"], engine.chunk_size)


async def test_a_person_finds_a_conversation_and_goes_on_with_it_in_any_client(
    gateway: LiveGateway, live_engine: LiveEngine, visitor: Visitor, agent: Talk
) -> None:
    session = f"notes-{uuid4().hex[:8]}"
    program = Program(gateway, session, [system("2026-11-26", session)])
    await program.asks("What is item 7?")
    last = await program.asks(f"Who is told about {session}?")
    # As on the next day: it is in the tiers below.
    await live_engine.forget_gpu_cache()
    header = await finds_and_goes_on(visitor, f"Who is told about {session}?")
    assert header == f"CWM-Continue: session:{session}"
    name, _, value = header.partition(": ")
    turn = await sent(gateway, [{"role": "user", "content": "And who else?"}], **{name: value})
    await is_gone_on_with(live_engine, agent, turn, last)


async def test_a_person_sees_why_a_turn_was_slow_and_undoes_a_compaction(
    gateway: LiveGateway, live_engine: LiveEngine, visitor: Visitor, agent: Talk
) -> None:
    session = f"notes-{uuid4().hex[:8]}"
    program = Program(gateway, session, [system("2026-11-26", session)])
    await program.asks("What is item 7?")
    program.messages[0] = system("2026-11-27", session)
    slow = await program.asks(f"Which of them are in {session}?")
    before = await program.asks("Is that so?")
    summary = {"role": "user", "content": f"Summary of {session}: items were asked about."}
    program.messages = [program.messages[0], summary, *program.messages[-1:]]
    question = f"Write down what {session} says."
    compaction = await program.asks(question)
    assert (await agent.tool("turn_show", turn=compaction.id))["turn"]["compacts"] == before.id

    broken = await sees_why_it_was_slow(visitor, question, f"Which of them are in {session}?")
    await expect(broken).to_contain_text(
        "message 1: the system text is another one; the client writes the date"
    )
    await expect(broken.locator("del")).to_contain_text("2026-11-26")
    await expect(broken.locator("ins")).to_contain_text("2026-11-27")
    assert slow.cached < slow.prompt // 2
    await expect(visitor.page.get_by_role("main")).to_contain_text(
        f"{slow.cached:,} tokens reused, {slow.prompt - slow.cached:,} computed"
    )

    await undoes_the_compaction(visitor, question)
    next_one = [{"role": "user", "content": "Which of them is the last?"}]
    turn = await sent(gateway, next_one, CWM_Continue=f"session:{session}")
    await is_gone_on_with(live_engine, agent, turn, before)


async def test_a_person_freezes_thaws_and_goes_on_from_a_page(
    gateway: LiveGateway, visitor: Visitor, agent: Talk
) -> None:
    session, window, thawed = (f"{kind}-{uuid4().hex[:8]}" for kind in ("talk", "kept", "again"))
    _, said = await asked(gateway, session, [{"role": "user", "content": f"{session} {FACTS}"}])
    page = visitor.page
    await visitor.open(f"/console/conversations/{session}")
    await acts(page, "Freeze", name=window)
    await expect(page.locator("p.notice")).to_have_text(
        "The window is there, and its blocks are proven to be stored."
    )
    await expect(page.get_by_role("heading", level=1)).to_have_text(window)
    await visitor.open(f"/console/windows/{window}")
    await acts(page, "Thaw", **{"id of the new": thawed})
    await expect(page.locator("p.notice")).to_have_text(
        "The conversation is open, and goes on from the window."
    )
    await visitor.open(f"/console/windows/{window}")
    receipt = page.locator(".receipts .item")
    await expect(receipt).to_contain_text(thawed)
    await expect(receipt).to_contain_text("verdict: exact")
    restored = int(
        re.sub(r"\D", "", (await receipt.inner_text()).split("tokens restored")[0].splitlines()[-1])
    )
    cached, _ = await asked(gateway, thawed, [*said, {"role": "user", "content": "What is the password?"}])
    assert cached >= restored > 0


async def test_a_person_branches_goes_back_and_deletes_from_a_page(
    gateway: LiveGateway, visitor: Visitor, agent: Talk
) -> None:
    session, branch, window = (f"{kind}-{uuid4().hex[:8]}" for kind in ("talk", "other", "kept"))
    _, said = await asked(gateway, session, [{"role": "user", "content": f"{session} {FACTS}"}])
    await asked(gateway, session, [*said, {"role": "user", "content": "This was a mistake."}])
    turns = (await agent.tool("turn_log", session_id=session))["turns"]
    second, first = (each["id"] for each in turns)
    page = visitor.page
    await visitor.open(f"/console/turns/{first}")
    await acts(page, "Tag", name="before-the-mistake")
    await visitor.open(f"/console/turns/{first}")
    await acts(page, "Branch", id=branch)
    cached, _ = await asked(gateway, branch, [*said, {"role": "user", "content": "What is the password?"}])
    assert cached > 0
    await visitor.open(f"/console/turns/{first}")
    await acts(page, "Go back to it")
    await expect(page.locator("p.notice")).to_have_text("The conversation goes on here.")
    await visitor.open(f"/console/turns/{second}")
    await acts(page, "Delete")
    left = (await agent.tool("turn_log", session_id=session))["turns"]
    assert [each["id"] for each in left] == [first]
    await visitor.open(f"/console/conversations/{session}")
    await acts(page, "Freeze", name=window)
    await visitor.open(f"/console/windows/{window}")
    await page.get_by_role("list", name="Actions").get_by_role("link", name="Delete").click()
    await expect(page.get_by_role("main")).to_contain_text(re.compile(r"free|stay"))
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator("p.notice")).to_have_text("The window is deleted.")
    with pytest.raises(RefusedError, match="CWM-2002"):
        await agent.tool("window_status", window_name=window)
