"""A gateway in front of two engines, its console, and callers who say who they are."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import pytest

from cwm.app import assemble
from cwm.domain.access import EVERY, granted
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import TurnSource
from cwm.ports.audit import AuditFilter
from cwm.services.turns.sending.generate import TurnInput
from cwm.settings import ABSENT, Database, Engine, Isolation, Retention, Settings
from cwm.settings.engines import EngineEntry
from cwm.wiring.parts import build_parts
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.transport.console.reading import Console, Document, sound

OWN = "http://127.0.0.1:8700"
ADMIN = Principal("default", "local", EVERY)


class Said:
    """Callers are who they say they are, with the scopes that they name; only right in a test."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        scopes = headers.get("x-scopes")
        return Principal(
            headers.get("x-tenant", "default"),
            headers.get("x-subject", "local"),
            EVERY if scopes is None else granted(scopes.split()),
        )


@dataclass(frozen=True)
class Desk(Console):
    """The console, with forms that are filled in as a browser does."""

    async def form(
        self, path: str, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Document:
        answer = await self.answer(path, **headers)
        assert answer.status_code == status, answer.text
        return sound(Document(answer.text))

    async def send(
        self, path: str, page: Document, given: Mapping[str, Any] | None = None, **headers: str
    ) -> httpx2.Response:
        """Send the form on a page, with some of its fields filled in; None leaves a field out."""
        assert page.one("form", class_="confirm").attributes["action"] == f"/console{path}"
        fields = {**proposed(page), **(given or {})}
        fields = {name: value for name, value in fields.items() if value is not None}
        return await self.post(path, fields, **{"origin": OWN, **headers})

    async def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> httpx2.Response:
        return await self.http.post(f"/console{path}", data=dict(fields), headers=headers)

    async def done(self, path: str, given: Mapping[str, Any] | None = None, **headers: str) -> str:
        """Do it in two steps, and return where that leads."""
        answer = await self.send(path, await self.form(path, headers=headers), given, **headers)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"].removeprefix("/console")

    async def token(self, **headers: str) -> str:
        """What the forms of a caller carry, who owns a conversation for this."""
        session_id = f"of-{headers.get('x-subject', 'local')}"
        tenant, subject = headers.get("x-tenant", "default"), headers.get("x-subject", "local")
        own = Principal(tenant, subject, EVERY)
        if await self.parts.base.registry.session(tenant, session_id) is None:
            await self.parts.services.open_session(own, session_id)
        page = await self.form(
            f"/conversations/{session_id}/delete", headers={**headers, "x-scopes": "admin"}
        )
        return proposed(page)["form_token"]

    async def events(self, event: str | None = None) -> list[tuple[str, str, str]]:
        """What the audit log has, the oldest first: event, outcome, subject."""
        page = await self.parts.services.read_audit(ADMIN, AuditFilter(event=event), 100)
        events = [record.event for record in page.records]
        return [(each.event, each.outcome, each.subject) for each in events][::-1]

    async def session(self, session_id: str) -> Session | None:
        return await self.parts.base.registry.session("default", session_id)

    async def current(self, session_id: str) -> str:
        shown = await self.parts.services.history.show(ADMIN, TurnSource(session_id=session_id))
        return shown.turn.id

    async def window(self, name: str) -> Any:
        return await self.parts.base.registry.window("default", name)

    async def say(self, session_id: str, *texts: str) -> list[str]:
        """Take turns in a session, which is opened if need be, and return their ids."""
        services = self.parts.services
        if await self.session(session_id) is None:
            await services.open_session(ADMIN, session_id)
        turns = []
        for text in texts:
            await services.generate(ADMIN, session_id, TurnInput(text=text, max_tokens=4))
            turns.append(await self.current(session_id))
        return turns


def proposed(page: Document) -> dict[str, str]:
    """The fields of the form as they are. It has at most one list to choose from."""
    fields = {}
    for each in page.all("input"):
        if each.attributes.get("type") != "checkbox" or "checked" in each.attributes:
            fields[each.attributes["name"]] = each.attributes.get("value", "")
    for each in page.all("select"):
        options = page.all("option")
        chosen = next((option for option in options if "selected" in option.attributes), options[0])
        fields[each.attributes["name"]] = chosen.attributes["value"]
    return fields


def _engine(url: str) -> EngineEntry:
    return EngineEntry(vllm_url=url, lmcache_url=ABSENT, coordinator_url=ABSENT)


@pytest.fixture
async def desk(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Desk]:
    path = tmp_path / "cwm.db"
    shutil.copyfile(sqlite_template, path)
    async with fake_vllm() as a, fake_vllm() as b:
        settings = Settings(
            database=Database(db_path=path),
            engine=Engine(lmcache_url=ABSENT, coordinator_url=ABSENT),
            engines={name: _engine(each.url) for name, each in (("a", a), ("b", b))},
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
        )
        parts = build_parts(settings)
        access = replace(parts.base.access, identity=Said())
        services = replace(parts.services, keys=replace(parts.services.keys, accepted=True))
        parts = replace(parts, base=replace(parts.base, access=access), services=services)
        transport = httpx2.ASGITransport(assemble(settings, parts), raise_app_exceptions=False)
        async with (
            parts.close(),
            httpx2.AsyncClient(transport=transport, base_url=OWN) as client,
        ):
            yield Desk(client, parts)
