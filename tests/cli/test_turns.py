"""``cwm turns …`` at a gateway without an engine: reading and going back need none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cwm.adapters.local import process
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.divergence import divergence
from cwm.domain.messages import message_of
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Profile
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered, Turns
from tests.cli.command import cwm, refused, serving
from tests.contracts.nouns import a_session

pytestmark = pytest.mark.slow

HOSTILE = "\x1b[2J\x00\x07\x9b1m \u202e \ud83d\tend"
ONE, TWO = tuple(range(100, 140)), tuple(range(200, 230))


@pytest.fixture
async def stocked(sqlite_url: str, tmp_path: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """The URL of a gateway with a session ``s`` of two turns, and the ids of these."""
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
    turns = Turns(registry, SqlAuditLog(database, ChainKeys([b"a secret"])), SystemClock())
    session = await registry.add_session(a_session("s", "default"), ())
    ids: list[str] = []
    said = [message_of({"role": "user", "content": "One?"})]
    for prompt, answer in ((ONE, "First."), ((*ONE, *TWO), "Second.")):
        with turns.begin(Principal("default", "ann"), "s") as turn:
            await turn.ask(session, Said(said))
            reply = message_of({"role": "assistant", "content": answer})
            await turn.record(Answered((*prompt, 7, 8), len(prompt), reply, 0))
        said += [reply, message_of({"role": "user", "content": "Two?"})]
        ids.append(turn.id or "")
    await database.dispose()
    with serving(tmp_path) as (url, _):
        yield url, ids


@asynccontextmanager
async def recording(sqlite_url: str, session_id: str) -> AsyncIterator[tuple[Turns, Session]]:
    """A new session in the registry of a gateway that runs already: it would end one that was last used long ago."""
    database = open_database(sqlite_url)
    # As a living process: the gateway forgets turns in flight that are nobody's.
    registry = SqlRegistry(database, process.holder())
    now = SystemClock().now()
    session = a_session(session_id, "default", created_at=now, updated_at=now)
    turns = Turns(registry, SqlAuditLog(database, ChainKeys([b"a secret"])), SystemClock())
    yield turns, await registry.add_session(session, ())
    await database.dispose()


async def test_the_turns_of_a_session_are_listed_and_shown(
    stocked: tuple[str, list[str]], tmp_path: Path
) -> None:
    url, (first, second) = stocked
    log = cwm(tmp_path, "turns", "log", "s", "--url", url, COLUMNS="300").stdout
    newest, oldest = [line for line in log.splitlines() if "turn_" in line][:2]
    assert newest.startswith("*")
    assert second in newest
    assert f"continues {first} at 40" in newest
    assert first in oldest
    shown = cwm(tmp_path, "turns", "show", "s", "--url", url).stdout
    assert shown == "[user]\nOne?\n\n[assistant]\nFirst.\n\n[user]\nTwo?\n\n[assistant]\nSecond.\n\n"
    export = cwm(tmp_path, "turns", "show", "--turn", first, "--format", "anthropic", "--url", url).stdout
    assert [message["role"] for message in json.loads(export)["messages"]] == ["user", "assistant"]


async def test_a_terminal_obeys_nothing_of_what_was_said(
    stocked: tuple[str, list[str]], tmp_path: Path, sqlite_url: str
) -> None:
    url, _ = stocked
    async with recording(sqlite_url, "hostile") as (turns, session):
        with turns.begin(Principal("default", "ann"), "hostile") as turn:
            await turn.ask(session, Said([message_of({"role": "user", "content": HOSTILE})]))
            await turn.record(Answered((1, 7, 8), 1))
    shown = "␛[2J␀␇⟨U+009B⟩1m ⟨U+202E⟩ \\ud83d\tend"
    for words in (("show", "hostile"), ("search", "end", "--whole"), ("search", "end")):
        run = cwm(tmp_path, "turns", *words, "--url", url, COLUMNS="300")
        assert shown in run.stdout.replace(" end", "\tend"), (words, run.stdout, run.stderr)
    assert not set(HOSTILE) & set(run.stdout) - set(" \tend[2J1m")


async def test_a_call_has_the_digits_that_were_sent(
    stocked: tuple[str, list[str]], tmp_path: Path, sqlite_url: str
) -> None:
    url, (first, _) = stocked
    written = '{"price": 1.10, "many": 1e3, "whole": 9007199254740993, "one": 1.0, "a": 1, "a": 2}'
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": written}}
    async with recording(sqlite_url, "numbers") as (turns, session):
        with turns.begin(Principal("default", "ann"), "numbers") as turn:
            said = message_of({"role": "assistant", "content": "", "tool_calls": [call]})
            await turn.ask(session, Said([said]))
            await turn.record(Answered((1, 7, 8), 1))
    for words in (("show", "numbers"), ("diff", f"turn:{first}", "session:numbers")):
        assert f"pay({written})" in cwm(tmp_path, "turns", *words, "--url", url).stdout
    shown = json.loads(cwm(tmp_path, "turns", "show", "numbers", "--json", "--url", url).stdout)
    assert shown["messages"][0]["tool_calls"][0]["function"]["arguments"] == written


async def test_what_was_said_is_found(stocked: tuple[str, list[str]], tmp_path: Path) -> None:
    url, (first, second) = stocked
    found = cwm(tmp_path, "turns", "search", "SECOND", "--url", url, COLUMNS="300").stdout
    assert second in found
    assert "Second." in found
    assert first not in found
    whole = cwm(tmp_path, "turns", "search", "second", "--whole", "--url", url).stdout
    assert whole == f"[assistant] s {second}\nSecond.\n\n"
    page = cwm(tmp_path, "turns", "search", "one", "--limit", "1", "--session", "s", "--url", url, "--json")
    assert [each["turn"] for each in json.loads(page.stdout)["results"]] == [first]
    nothing = cwm(tmp_path, "turns", "search", "two", "words", "--url", url).stdout
    assert nothing == "None of 4 messages has these words.\n"
    refused(cwm(tmp_path, "turns", "search", "w", "--cursor", "x", "--url", url), "CWM-1003")


async def test_contexts_are_compared_and_gone_back_to(stocked: tuple[str, list[str]], tmp_path: Path) -> None:
    url, (first, second) = stocked
    compared = cwm(tmp_path, "turns", "diff", f"turn:{first}", "session:s", "--url", url).stdout
    assert "The first 40 tokens and 2 messages are equal, of 42 and 72 tokens." in compared
    assert "+ [user] Two?" in compared
    branch = cwm(tmp_path, "turns", "branch", first, "--session", "b", "--url", url).stdout
    assert branch == "b\n"
    assert "First." in cwm(tmp_path, "turns", "show", "b", "--url", url).stdout
    refused(cwm(tmp_path, "turns", "delete", second, "--yes", "--url", url), "CWM-3004")
    reverted = cwm(tmp_path, "turns", "revert", first, "--url", url).stdout
    assert reverted == f"Session s is at {first}: 42 tokens.\n"
    assert cwm(tmp_path, "turns", "delete", second, "--yes", "--url", url).stdout == "Deleted 1 turn.\n"


async def test_a_clients_habit_is_named_with_the_clients_own_switch_against_it(
    stocked: tuple[str, list[str]], tmp_path: Path, sqlite_url: str
) -> None:
    url, _ = stocked
    line: list[str] = []
    async with recording(sqlite_url, "habits") as (turns, session):
        for number in range(2):
            block = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch=0000{number};"
            said = [message_of({"role": "system", "content": block})]
            diverged = divergence(said, Profile(), line, Profile())
            with turns.begin(Principal("default", "ann"), "habits") as turn:
                await turn.ask(session, Said(said, diverged=diverged))
                await turn.record(Answered((number, 7, 8), 1))
            line = [message.digest for message in said]
    log = cwm(tmp_path, "turns", "log", "habits", "--url", url, COLUMNS="300").stdout
    assert "2 left at message 0 (system_text, billing_block):" in log
    assert "2: CLAUDE_CODE_ATTRIBUTION_HEADER=0 switches that off in the client." in log
    newest = json.loads(cwm(tmp_path, "turns", "log", "habits", "--url", url, "--json").stdout)["turns"][0]
    assert newest["habit"] == "billing_block"
    assert newest["habit_switch"] == "CLAUDE_CODE_ATTRIBUTION_HEADER=0"


async def test_a_template_that_writes_earlier_answers_in_another_way_is_named(
    stocked: tuple[str, list[str]], tmp_path: Path, sqlite_url: str
) -> None:
    url, _ = stocked
    said = [message_of({"role": "user", "content": "One?"}), message_of({"role": "assistant", "content": ""})]
    line = [message.digest for message in said]
    async with recording(sqlite_url, "thinking") as (turns, session):
        current = None
        for messages, prompt in ((said[:1], (1, 2)), (said, (1, 3))):
            with turns.begin(Principal("default", "ann"), "thinking") as turn:
                await turn.ask(session, Said(messages, current=current, line=line if current else ()))
                await turn.record(Answered((*prompt, 7, 8), 2, said[1]))
            current = turn.id
    log = cwm(tmp_path, "turns", "log", "thinking", "--url", url, COLUMNS="300").stdout.splitlines()
    assert "  template  " in log[1]
    newest = json.loads(cwm(tmp_path, "turns", "log", "thinking", "--url", url, "--json").stdout)["turns"][0]
    assert (newest["cause"], newest["parent_at"]) == ("template", 1)
    assert "diverged_at" not in newest


async def test_what_a_router_chose_is_shown_where_there_is_one(
    stocked: tuple[str, list[str]], tmp_path: Path, sqlite_url: str
) -> None:
    url, _ = stocked
    async with recording(sqlite_url, "routed") as (turns, session):
        with turns.begin(Principal("default", "ann"), "routed") as turn:
            await turn.ask(session, Said(()))
            await turn.record(Answered((1, 7, 8), 1, router_decision="10.0.0.7:8000"))
    log = cwm(tmp_path, "turns", "log", "routed", "--url", url, COLUMNS="300").stdout.splitlines()
    assert log[0].endswith("ROUTED TO")
    assert log[1].endswith("10.0.0.7:8000")
    shown = json.loads(cwm(tmp_path, "turns", "show", "routed", "--url", url, "--json").stdout)
    assert shown["turn"]["router_decision"] == "10.0.0.7:8000"
    assert "ROUTED TO" not in cwm(tmp_path, "turns", "log", "s", "--url", url, COLUMNS="300").stdout


async def test_what_a_summary_left_out_is_listed_with_the_way_back(
    stocked: tuple[str, list[str]], tmp_path: Path, sqlite_url: str
) -> None:
    url, _ = stocked
    async with recording(sqlite_url, "c") as (turns, session):
        for number, text in enumerate(("The port is 8731.", "A summary.")):
            with turns.begin(Principal("default", "ann"), "c") as turn:
                said = [message_of({"role": "user", "content": text})]
                await turn.ask(session, Said(said, compactions=number))
                await turn.record(Answered((number, 7, 8), 1))
                await turn.tag_compacted()
    left_out = cwm(tmp_path, "turns", "left-out", "c", "--url", url)
    assert "8731" in left_out.stdout, left_out.stderr
    assert left_out.stdout.endswith("go back with `cwm turns revert tag:c.before-compaction-1`.\n")
    reverted = cwm(tmp_path, "turns", "revert", "tag:c.before-compaction-1", "--url", url).stdout
    assert reverted == "Session c is at tag:c.before-compaction-1: 3 tokens.\n"


async def test_two_sessions_are_merged(stocked: tuple[str, list[str]], tmp_path: Path) -> None:
    url, turns = stocked
    for name, turn in zip(("a", "b", "c"), (*turns, turns[0]), strict=True):
        cwm(tmp_path, "turns", "branch", turn, "--session", name, "--url", url)
    for name, count in (("b", 2), ("c", 3)):
        merged = cwm(tmp_path, "sessions", "merge", name, "a", "--url", url).stdout
        assert merged == f"Session a has {count} turns; {name} ended.\n"
    shown = cwm(tmp_path, "turns", "show", "a", "--url", url).stdout
    assert shown == "[user]\nOne?\n\n[assistant]\nFirst.\n\n"
    refused(cwm(tmp_path, "sessions", "merge", "b", "a", "--url", url), "CWM-2001")
    refused(cwm(tmp_path, "sessions", "merge", "a", "s", "--url", url), "CWM-1003")


async def test_turns_are_named_and_gone_back_to_by_name(
    stocked: tuple[str, list[str]], tmp_path: Path
) -> None:
    url, (first, second) = stocked
    assert cwm(tmp_path, "turns", "tag", "--url", url).stdout == "There are no tags.\n"
    named = cwm(tmp_path, "turns", "tag", "v1", first, "--url", url).stdout
    assert named == f"Tag v1 names {first} of session s.\n"
    refused(cwm(tmp_path, "turns", "tag", "v1", second, "--url", url), "CWM-3009")
    log = cwm(tmp_path, "turns", "log", "s", "--url", url, COLUMNS="300").stdout
    assert [line.split()[1:3] for line in log.splitlines() if " v1 " in line] == [[first, "v1"]]
    assert first in cwm(tmp_path, "turns", "tag", "--url", url, COLUMNS="300").stdout
    assert "First." in cwm(tmp_path, "turns", "show", "--turn", "tag:v1", "--url", url).stdout
    assert "of 42 and 72 tokens" in cwm(tmp_path, "turns", "diff", "tag:v1", "session:s", "--url", url).stdout
    removed = cwm(tmp_path, "turns", "tag", "v1", "--delete", "--url", url).stdout
    assert removed == f"Removed tag v1 of {first} of session s.\n"
    refused(cwm(tmp_path, "turns", "show", "--turn", "tag:v1", "--url", url), "CWM-2007")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("turns", "log", "nobody"), "CWM-2001"),
        (("turns", "log", "s", "--window", "w"), "CWM-1003"),
        (("turns", "show", "--turn", "nobody"), "CWM-2007"),
        (("turns", "show", "--window", "nobody"), "CWM-2002"),
        (("turns", "diff", "s", "session:s"), "CWM-1003"),
        (("turns", "branch", "nobody"), "CWM-2007"),
        (("sessions", "unfreeze", "s"), "CWM-3002"),
    ],
    ids=" ".join,
)
async def test_a_refusal_says_what_is_wrong(
    stocked: tuple[str, list[str]], tmp_path: Path, arguments: tuple[str, ...], code: str
) -> None:
    refused(cwm(tmp_path, *arguments, "--url", stocked[0]), code)
