"""Conversations as an agent leaves them, recorded through the registry, for pages to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from cwm.domain.messages import message_of
from cwm.domain.prefix import digest
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Turn, TurnParts, TurnTag
from cwm.domain.window import Window
from cwm.ports.registry import Registry
from tests.contracts.nouns import a_session, a_window, stored


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@dataclass
class Scene:
    """One session to which turns are added. ``ids`` by turn are the token ids of its context."""

    registry: Registry
    session: Session
    now: datetime
    ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    async def turn(
        self,
        *contents: Mapping[str, Any],
        parent: Turn | None = None,
        tokens: int = 600,
        answer: int = 200,
        branch_at: int | None = None,
        reused: float | None = 0.9,
        **fields: Any,
    ) -> Turn:
        """An ended turn with these messages, the last of them its answer. It branches off where only so many tokens are its parent's."""
        self.now += timedelta(seconds=73)
        turn_id = f"turn_{uuid4().hex}"
        above = self.ids[parent.id] if parent else ()
        at = len(above) if branch_at is None else branch_at
        begun = len(self.ids) * 10_000
        ids = above[:at] + tuple(range(begun, begun + tokens + answer))
        messages = tuple(message_of(dict(each)) for each in contents)
        asked = Turn(
            self.session.tenant, self.session.id, turn_id, self.session.owner, self.now,
            client=fields.pop("client", "claude-cli/2.1.197 (external, cli)"),
        )  # fmt: skip
        begun_turn = await self.registry.begin_turn(asked, self.session.created_at)
        assert begun_turn is not None
        prompt = len(ids) - answer
        values: dict[str, Any] = {
            "main": True,
            "continues": parent is not None and branch_at is None,
            "cached_tokens": None if reused is None else int(prompt * reused),
            "first_token_ms": 180,
            **fields,
        }
        ended = replace(
            begun_turn,
            parent=None if parent is None else parent.id,
            parent_at=at,
            parent_messages=0 if parent is None or branch_at == 0 else self.counts[parent.id],
            prompt_tokens=prompt,
            total_tokens=len(ids),
            prompt_digest=digest(ids[:prompt]),
            digest=digest(ids),
            ended_at=self.now + timedelta(seconds=4),
            **values,
        )
        added = TurnParts(ids[at:], messages)
        assert await self.registry.end_turn(ended, added) is not None
        self.ids[turn_id] = ids
        self.counts[turn_id] = ended.parent_messages + len(messages)
        return ended

    async def tag(self, turn: Turn, name: str, *, automatic: bool = False) -> None:
        tag = TurnTag(
            self.session.tenant, name, self.session.id, turn.id, self.session.owner, self.now, automatic
        )
        assert await self.registry.tag(tag) is not None

    async def window(self, turn: Turn, name: str, *hashes: str, **fields: Any) -> Window:
        """A durable window of the session at this turn, which goes on."""
        ids = self.ids[turn.id]
        window = a_window(
            name, self.session.tenant, session_id=self.session.id, snapshot_id=digest(ids), owner=self.session.owner,
            token_count=len(ids), model=self.session.model, turn_id=turn.id, created_at=self.now, updated_at=self.now,
            **fields,
        )  # fmt: skip
        await self.registry.begin_freeze(window, ids, None)
        return await self.registry.finish_freeze(window, stored(*hashes, size_bytes=2_949_120), self.now)


async def opened(
    registry: Registry, session_id: str, tenant: str = "default", age_minutes: float = 30, **fields: Any
) -> Scene:
    at = datetime.now(UTC) - timedelta(minutes=age_minutes)
    values = {
        "owner": "local",
        "model": "qwen3-coder-30b",
        "state": SessionState.ACTIVE,
        "token_count": 0,
        **fields,
    }
    session = a_session(session_id, tenant, created_at=at, updated_at=at, **values)
    session = await registry.add_session(session, ())
    return Scene(registry, session, at)


async def a_working_day(registry: Registry, tenant: str = "default", **fields: Any) -> dict[str, Any]:
    """A conversation with a title request, a sub-agent, a retry, a compaction, a branch, windows and a tag."""
    scene = await opened(registry, "fix-flaky-login-test", tenant, age_minutes=47, **fields)
    system = {
        "role": "system",
        "content": "You are a careful coding agent. Work in small steps and run the tests.",
    }
    title = await scene.turn(
        {"role": "system", "content": "Write a title of at most six words."},
        user("The login test fails about once in ten runs. Find out why."),
        assistant("Flaky login test"),
        main=False, tokens=140, answer=8, reused=0.0, client="claude-cli/2.1.197 (external, cli)",
    )  # fmt: skip
    first = await scene.turn(
        system,
        user("The login test fails about once in ten runs. Find out why."),
        assistant(
            "I will look at the test first.",
            reasoning_content="A flaky test: look for time, order, and shared state. Begin with the test itself.",
            tool_calls=[call("Read", '{"file_path": "tests/test_login.py"}')],
        ),
        tokens=4200, answer=90, reused=0.0, first_token_ms=2350,
    )  # fmt: skip
    code = "def test_login(client, clock):\n    token = issue(user='ann', ttl=1)\n    sleep(0.99)\n    assert client.get('/me', token).status == 200\n"
    second = await scene.turn(
        result(code * 9),
        assistant(
            "The test waits 0.99 s of a token that lives 1 s:\n\n```python\n" + code + "```\n\n"
            "On a busy machine that is too close. I will search for other places that do the same.",
            tool_calls=[call("Grep", '{"pattern": "ttl=1", "path": "tests"}', "c2")],
        ),
        parent=first, tokens=1350, answer=160, reused=0.75,
    )  # fmt: skip
    agent = await scene.turn(
        {"role": "system", "content": "You search code and answer with file names only."},
        user("Find every test that waits for a token to expire."),
        assistant("tests/test_login.py, tests/test_refresh.py, tests/test_logout.py"),
        main=False, tokens=2100, answer=40, reused=0.31, first_token_ms=640,
    )  # fmt: skip
    agent = await scene.turn(
        user("And in the integration tests?"), assistant("tests/integration/test_sso.py"),
        parent=agent, main=False, tokens=60, answer=14, reused=0.97, first_token_ms=95,
    )  # fmt: skip
    third = await scene.turn(
        result("tests/test_refresh.py:14\ntests/test_logout.py:31", "c2"),
        assistant("Three tests share the pattern. A clock that the test moves by itself removes the race."),
        parent=second, tokens=420, answer=120, reused=0.94,
    )  # fmt: skip
    await scene.window(
        third, "login-race-found", "aa01", "aa02", "aa03",
        description="The cause is known, nothing changed yet", tags=("login",),
    )  # fmt: skip
    tried = await scene.turn(
        user("Do it with a sleep of half a second, quickly."),
        assistant("Done: the three tests sleep 0.5 s now."),
        parent=third, tokens=90, answer=60, main=False,
    )  # fmt: skip
    fourth = await scene.turn(
        user("Today's date: 2026-11-26\nNo. Use a clock that the test moves."),
        assistant("Agreed. I add a `ManualClock` fixture and use it in all three tests."),
        parent=third, tokens=140, answer=700, branch_at=len(scene.ids[third.id]) - 120, reused=0.96,
        diverged_at=5, cause="repeated",
    )  # fmt: skip
    old = message_of(user("Today's date: 2026-11-26\nNo. Use a clock that the test moves."))
    new = message_of(user("Today's date: 2026-11-27\nNo. Use a clock that the test moves."))
    fifth = await scene.turn(
        new.content, user("Now run them a hundred times."),
        assistant("100 of 100 runs passed. The slowest took 0.21 s."),
        parent=fourth, tokens=320, answer=70, branch_at=4200, reused=0.41, first_token_ms=1620,
        diverged_at=1, cause="edited", new_message=new.digest, old_message=old.digest, missed="evicted",
    )  # fmt: skip
    await scene.tag(fifth, "fix-flaky-login-test.before-compaction-9", automatic=True)
    await scene.tag(fifth, "green")
    await scene.window(
        fifth, "login-fixed", "bb01", "bb02", "bb03", "bb04", description="All three tests pass"
    )
    sixth = await scene.turn(
        system,
        user("Summary of the conversation so far: three tests raced against a token's life. A ManualClock fixed them."),
        user("Write the changelog entry."),
        assistant("### Fixed\n\n- The login, refresh and logout tests no longer depend on the machine's speed."),
        tokens=900, answer=80, reused=0.62, compacts=fifth.id, compactions=1, diverged_at=1, cause="edited",
    )  # fmt: skip
    last = await scene.turn(
        user("Thanks. Open a pull request."),
        assistant("It is open: #418.", tool_calls=[call("Bash", '{"command": "gh pr create --fill"}', "c9")]),
        parent=sixth, tokens=110, answer=50, reused=0.98, first_token_ms=84,
    )  # fmt: skip
    return {
        "session": scene.session, "title": title, "agent": agent, "first": first, "second": second, "third": third,
        "tried": tried, "fourth": fourth, "fifth": fifth, "sixth": sixth, "last": last, "scene": scene,
    }  # fmt: skip


async def a_small_talk(
    registry: Registry, session_id: str, *exchanges: Sequence[str], **fields: Any
) -> Scene:
    scene = await opened(registry, session_id, **fields)
    parent = None
    for question, answer in exchanges:
        parent = await scene.turn(user(question), assistant(answer), parent=parent, client="opencode/1.18.33")
    return scene
