"""A whole gateway that serves two tenants, or two users of one, one of which owns a thing of every kind."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
from fastapi import FastAPI
from redis import Redis
from sqlalchemy import Connection, Row, delete, func, select

from cwm.adapters.local.secret import signing_secrets
from cwm.adapters.sql import schema
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.tables.audit import audit_log
from cwm.app import assemble
from cwm.domain.access import OF_AN_AGENT
from cwm.domain.cursor import Cursors, Position
from cwm.domain.engine_rules import EngineRules
from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind, handle_of
from cwm.domain.tool_policy import ToolPolicy
from cwm.domain.visibility import circle_of
from cwm.settings import ABSENT, Database, Engine, Isolation, Retention, Settings, Shared
from cwm.settings.engines import EngineEntry
from cwm.settings.telling import Metrics
from cwm.wiring.parts import Parts, build_parts
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.contracts.nouns import freeze
from tests.transport.mcp.gateway import MODERN, HeaderIdentity, fastmcp_agent, serving
from tests.transport.mcp.wire import wired

A: Final = "zqamber"
B: Final = "beryl"
"""Two tenants, or two users. Whatever is A's has A's name in it, so that it is known wherever it turns up."""
NOBODY: Final = "zqnobody"
"""In place of it, in names of things that there are not."""


@dataclass(frozen=True, slots=True)
class TwoTenants:
    url: str
    app: FastAPI
    parts: Parts
    owned: Mapping[str, str]
    """What A has, by the name of the argument, header or part of a URI that would name it."""
    unknown: Mapping[str, str]
    """The same for things that there are not."""
    redis_url: str | None
    of_one: bool
    """A and B are users of one tenant. What its users share, shared context, is not A's."""

    async def records_of_b(self) -> int:
        """How many records the audit log has of what B did."""
        whose = ("acme", B) if self.of_one else (B, "agent")
        query = select(func.count()).where(audit_log.c.tenant == whose[0], audit_log.c.subject == whose[1])
        return int(await self.parts.base.database.read(lambda c: c.execute(query).scalar_one()))

    async def everything_of_a(self) -> dict[Any, Any]:
        """What is kept of A, byte for byte."""

        def rows(connection: Connection) -> dict[str, Any]:
            tables = [table for table in metadata.sorted_tables if "tenant" in table.c]
            found = {t.name: connection.execute(select(t)).all() for t in tables}
            return {
                name: sorted(repr(row) for row in rows if mine(name, row)) for name, rows in found.items()
            }

        def mine(table: str, row: Row[Any]) -> bool:
            if self.of_one:
                # What B asks for is on record.
                return A in repr(row) and table != "audit_log"
            return bool(row.tenant == A)

        kept: dict[Any, Any] = dict(await self.parts.base.database.read(rows))
        if self.redis_url is not None:
            with Redis.from_url(self.redis_url) as client:
                # What a repeated request is answered with lapses by itself after 20 s.
                keys = (key for key in client.scan_iter(match=f"*{A}*") if b"/done:" not in key)
                kept |= {key: _content(client, key) for key in keys}
                for name in ("agent_session", "mcp-session-id"):
                    key = f"cwm:agent-session:{self.owned[name]}".encode()
                    kept[key] = _content(client, key)
        return kept


@asynccontextmanager
async def two_tenants(
    folder: Path, database: Database, redis_url: str | None = None, *, of_one: bool = False
) -> AsyncIterator[TwoTenants]:
    """With ``of_one`` whoever is named by ``x-tenant`` is a user of one tenant, in which sessions are private."""
    async with fake_vllm() as vllm, fake_vllm() as own_vllm:
        # One that B does not see: of A's tenant alone, or of nobody's here.
        rules = EngineRules(tenants=frozenset({"umbrella" if of_one else A}))
        settings = Settings(
            database=database,
            engine=Engine(lmcache_url=ABSENT, coordinator_url=ABSENT),
            engines={
                "shared": EngineEntry(vllm_url=vllm.url, lmcache_url=ABSENT, coordinator_url=ABSENT),
                f"{A}-engine": EngineEntry(
                    vllm_url=own_vllm.url, lmcache_url=ABSENT, coordinator_url=ABSENT, rules=rules
                ),
            },
            # An answer that takes long on a busy machine is the same answer.
            metrics=Metrics(check_timeout_seconds=600),
            isolation=Isolation(
                secret="a test's secret",
                secret_file=folder / "secret",
                session_visibility="private" if of_one else "tenant",
            ),
            shared=Shared(shared_store_url=redis_url),
            # Nobody but the test changes anything.
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
        )
        await schema.upgrade(settings.database.url())
        built = build_parts(settings)
        identity = UserIdentity() if of_one else HeaderIdentity()
        access = replace(built.base.access, identity=identity)
        services = replace(
            built.services,
            keys=replace(built.services.keys, accepted=True),
            survey=replace(built.services.survey, patience_seconds=600.0),
        )
        parts = replace(built, base=replace(built.base, access=access), services=services)
        app = assemble(settings, parts)
        async with serving(app, app.state.end_streams) as url:
            owned = await _own(url, parts, _user(A) if of_one else Principal(A, "agent"), of_one=of_one)
            # What A's turns cost is written now, and not in the middle of a test.
            await parts.engine_side.turn_sums.write()
            yield TwoTenants(url, app, parts, owned, _unknown(owned, settings), redis_url, of_one)
            await parts.base.database.write(_empty)


def _empty(connection: Connection) -> None:
    """For whoever uses the database next."""
    for table in reversed(metadata.sorted_tables):
        if table.name == "window_grams" and connection.dialect.name == "sqlite":
            # It keeps no rows to look through.
            connection.exec_driver_sql("INSERT INTO window_grams(window_grams) VALUES ('delete-all')")
        else:
            connection.execute(delete(table))


class UserIdentity:
    """Users of one tenant, who say who they are."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return _user(headers.get("x-tenant", "somebody"))


def _user(name: str) -> Principal:
    return Principal("acme", name, OF_AN_AGENT)


async def _own(url: str, parts: Parts, who: Principal, *, of_one: bool) -> dict[str, str]:
    """Give A one thing of every kind, of which some can be made only by asking for it."""
    window = await freeze(
        parts.base.registry,
        f"{A}-w",
        "c1",
        tenant=who.tenant,
        description=f"{A} description",
        tags=(f"{A}-tag",),
        owner=who.subject,
        circle=circle_of("private" if of_one else "tenant", who),
    )
    key, _ = await parts.services.keys.keys.create(who.tenant, f"{A}-ci", OF_AN_AGENT, None)
    policy = ToolPolicy(shared=not of_one)
    part = Part(PartKind.JSON, "application/json", json.dumps({"text": f"{A} " * 9000}).encode())
    result = await parts.services.results.keep(who, f"{A}_tool", "a1", [part], policy)
    async with fastmcp_agent(url, MODERN, A) as agent, wired(url) as wire:
        session = (await agent.call("session_create", {"session_id": f"{A}-s", "metadata": {"of": A}})).value
        await agent.call("session_generate", {"session_id": f"{A}-s", "text": f"{A} said"})
        handle = (await agent.call("agent_session_create")).value["agent_session"]
        for scope in ("session",) if of_one else ("tenant", f"workspace:{A}", "session"):
            where = {"scope": scope, "agent_session": handle}
            await agent.call("context_set", {"key": f"{A}/key", "value": f"{A} value", **where})
            await agent.call("context_snapshot", {"label": f"{A}-label", **where})
        cursor = (await agent.call("result_read", {"handle": result.handle, "max_tokens": 64})).value[
            "next_cursor"
        ]
        mcp_session = await wire.session(x_tenant=A)
        turn = (await agent.call("turn_log", {"session_id": f"{A}-s"})).value["current_turn"]
        await agent.call("turn_tag", {"tag": f"{A}-t", "turn": turn})
    assert session["session_id"] == f"{A}-s"
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60, headers={"x-tenant": A}) as http:
        said = {"model": "fake", "input": f"{A} asked"}
        response = (await http.post("/v1/responses", json=said)).json()["id"]
        items = [{"role": "user", "content": f"{A} said"}]
        conversation = (await http.post("/v1/conversations", json={"items": items})).json()["id"]
        listed = (await http.get(f"/v1/conversations/{conversation}/items")).json()
    return {
        "session_id": f"{A}-s",
        "cwm-session-id": f"{A}-s",
        "new_session_id": f"{A}-s",
        "as_session": f"{A}-s",
        "into_session": f"{A}-s",
        "window_name": window.name,
        "source_window": window.name,
        "target_window": window.name,
        "new_name": window.name,
        "agent_session": handle,
        "mcp-session-id": mcp_session,
        "key": f"{A}/key",
        "after": f"{A}/kex",
        "prefix": f"{A}/",
        "snapshot": f"{A}-label",
        "label": f"{A}-label",
        "workspace": f"workspace:{A}",
        "handle": result.handle,
        "key_id": key.key_id,
        "cursor": cursor,
        "turn": turn,
        "tag": f"{A}-t",
        "left": f"turn:{turn}",
        "right": f"window:{window.name}",
        "model": A,
        "response": response,
        "previous_response_id": response,
        "conversation": conversation,
        "item": listed["data"][0]["id"],
        "engine": f"{A}-engine",
        "to": f"{A}-engine",
        "upstream": f"{A}-upstream",
        "search": f"{A} description",
        "query": f"{A} said",
        "tags": f"{A}-tag",
    }


def _unknown(owned: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Of the same shapes; a cursor of a third tenant, since those that nobody signed are told apart by all."""
    handle = handle_of(bytes(16))
    cursors = Cursors(signing_secrets(settings.isolation))
    due = datetime.now(UTC) + timedelta(hours=1)
    made_up = {
        "agent_session": "0" * len(owned["agent_session"]),
        "mcp-session-id": "0" * len(owned["mcp-session-id"]),
        "handle": handle,
        "key_id": "0" * 16,
        "turn": "turn_" + "0" * 32,
        "left": "turn:turn_" + "0" * 32,
        "response": "resp_" + "0" * 32,
        "previous_response_id": "resp_" + "0" * 32,
        "conversation": "conv_" + "0" * 32,
        "item": "msg_" + "0" * 32,
        "cursor": cursors.make(Position(handle, 0, 0), Principal("third", "agent"), b"0" * 12, due),
    }
    return {name: made_up.get(name, value.replace(A, NOBODY)) for name, value in owned.items()}


def _content(client: Redis, key: bytes) -> Any:
    kind = client.type(key)
    if kind == b"hash":
        return client.hgetall(key)
    if kind == b"zset":
        return client.zrange(key, 0, -1, withscores=True)
    return client.smembers(key) if kind == b"set" else client.get(key)


def alike(answer: str, *named: Mapping[str, str]) -> str:
    """``answer`` without the names that were asked for, and without what differs from one call to the next."""
    values = {value for names in named for value in names.values()}
    for value in sorted(values, key=len, reverse=True):
        answer = answer.replace(value, "<asked>").replace(json.dumps(value)[1:-1], "<asked>")
    # What was said a moment ago is said otherwise a moment later.
    answer = re.sub(r"just now|\d[\d,]* (s|min|h|days?)\b( ago)?", "# ago", answer)
    # A thousand has a comma.
    return re.sub(r"[0-9a-f]{16,}|\d[\d,]*", "#", answer)


def told(answer: httpx2.Response) -> str:
    """All that a caller learns of an answer."""
    headers = {
        name: value for name, value in answer.headers.items() if name not in {"date", "content-length"}
    }
    return json.dumps([answer.status_code, headers, answer.text])
