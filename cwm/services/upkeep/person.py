"""All of one person's data in a tenant: exported, and deleted. For the operator: no scopes are checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from cwm.domain.access import AccessScope
from cwm.domain.api_key import ApiKey
from cwm.domain.errors import ContextConflictError, CwmError, ResultNotFoundError, WindowNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.response import Item, ItemQuery, StoredConversation
from cwm.domain.results import StoredResult
from cwm.domain.session import Session, SessionMark, SessionQuery
from cwm.domain.shared_context import ContextScope, Entry, Write
from cwm.domain.turn import Turn, TurnQuery, TurnState, TurnTag
from cwm.domain.upstream_tasks import UpstreamTask
from cwm.ports.api_keys import ApiKeys
from cwm.ports.audit import AuditFilter, AuditTrail
from cwm.ports.conversations import ConversationRecords
from cwm.ports.registry import Registry
from cwm.ports.responses import ResponseRecords
from cwm.ports.upstream_tasks import UpstreamTaskRecords
from cwm.services.audit.journal import Journal
from cwm.services.context.shared_context import SharedContext
from cwm.services.results.results import Results
from cwm.services.sessions.end_session import EndSession
from cwm.services.windows.delete import Delete

_PAGE: Final = 200
_MOST: Final = 2**30
_OPERATOR: Final = "operator"
_EVERYTHING: Final = frozenset({AccessScope.ADMIN})
_KEY: Final = "key:"


@dataclass(frozen=True, slots=True)
class Person:
    """A person is a subject, as sessions and audit records name it."""

    registry: Registry
    delete_window: Delete
    end_session: EndSession
    keys: ApiKeys
    results: Results
    responses: ResponseRecords
    conversations: ConversationRecords
    tasks: UpstreamTaskRecords
    context: SharedContext
    trail: AuditTrail
    journal: Journal

    async def export(self, tenant: str, subject: str) -> AsyncIterator[dict[str, Any]]:
        """Records of plain values, bytes and times, each with a ``kind``; one that cannot be read has an ``error``. CWM-4002."""
        async with self.journal.entry(Principal(tenant, _OPERATOR), "person.export") as details:
            details["subject"] = subject
            for records in (self._conversations, self._kept, self._possessions):
                async for record in records(tenant, subject):
                    yield record

    async def delete(self, tenant: str, subject: str) -> Counter[str]:
        """Delete all that can be deleted, and count it by noun; ``turns_elsewhere`` and ``immutable`` are what stays.

        An error leaves the rest to the next call: CWM-4002 (retryable) while a window is being stored, CWM-5001 while
        LMCache does not answer. A turn in flight in a gateway ends unrecorded.
        """
        operator, counts = Principal(tenant, _OPERATOR, _EVERYTHING), Counter[str]()
        async with self.journal.entry(operator, "person.delete") as details:
            details["subject"] = subject
            try:
                await self._delete(operator, subject, counts)
            finally:
                details.update(counts)
        return counts

    async def _delete(self, operator: Principal, subject: str, counts: Counter[str]) -> None:
        tenant, now = operator.tenant, self.journal.clock.now()
        for key in await self._keys(tenant, subject):
            if key.revoked_at is None:
                await self.keys.revoke(tenant, key.key_id, now)
                counts["keys"] += 1
        for window in await self.registry.windows_about(tenant, subject):
            with suppress(WindowNotFoundError):
                await self.delete_window(operator, window.name, force=True)
                counts["windows"] += 1
        while conversations := await self.conversations.of_owner(tenant, subject):
            for conversation in conversations:
                await self.conversations.remove(tenant, subject, conversation.id)
                counts["conversations"] += 1
        await self._untag(await self._tags(tenant, subject), counts)
        async for session in self._sessions(tenant, subject):
            # Others', too: a tag keeps what was said.
            await self._untag(await self.registry.tags(tenant, session.id), counts)
            await self.end_session(operator, session.id)
            counts["sessions"] += 1
        await self._delete_results(tenant, subject, counts)
        await self._delete_context(tenant, subject, counts)
        counts["turns_elsewhere"] += len(await self.registry.turns_elsewhere(tenant, subject))

    async def _delete_results(self, tenant: str, subject: str, counts: Counter[str]) -> None:
        """Stored results, and the handles of tasks that may still have one."""
        while results := await self.results.records.of_owner(tenant, subject):
            for result in results:
                await self.results.forget(result)
                counts["results"] += 1
        while tasks := await self.tasks.of_owner(tenant, subject):
            for task in tasks:
                await self.tasks.forget(task)
                counts["tasks"] += 1

    async def _delete_context(self, tenant: str, subject: str, counts: Counter[str]) -> None:
        trimmed: dict[ContextScope, None] = {}
        async for scope, entry in self._entries(tenant, subject):
            try:
                await self.context.index.write(scope, [Write(entry.key)], _OPERATOR, keep=1)
            except ContextConflictError:
                counts["immutable"] += 1
                continue
            trimmed[scope] = None
            counts["context_keys"] += 1
        for scope in trimmed:
            for digest in await self.context.index.trim(scope):
                await self.context.contents.gone(tenant, digest)

    async def _untag(self, tags: Iterable[TurnTag], counts: Counter[str]) -> None:
        for tag in tags:
            await self.registry.untag(tag.tenant, tag.name)
            counts["tags"] += 1

    async def _conversations(self, tenant: str, subject: str) -> AsyncIterator[dict[str, Any]]:
        async for session in self._sessions(tenant, subject):
            record, turns = {"kind": "session", **asdict(session)}, list[Turn]()
            with _named(record):
                turns = await self._turns(session)
            yield record
            for turn in turns:
                yield await self._turn(turn)
        for turn in await self.registry.turns_elsewhere(tenant, subject):
            yield await self._turn(turn)
        for window in await self.registry.windows_about(tenant, subject):
            record = {"kind": "window", **asdict(window)}
            with _named(record):
                record["token_ids"] = (await self.registry.snapshot(tenant, window.snapshot_id)).token_ids
            yield record

    async def _kept(self, tenant: str, subject: str) -> AsyncIterator[dict[str, Any]]:
        """Of OpenAI's API."""
        last = ""
        while ids := await self.responses.ids_of_owner(tenant, subject, last, _PAGE):
            for response_id in ids:
                record: dict[str, Any] = {"kind": "response", "id": response_id}
                with _named(record):
                    for response in await self.responses.in_line(tenant, subject, [response_id], _MOST):
                        record |= asdict(response)
                yield record
            last = ids[-1]
        last = ""
        while conversations := await self.conversations.of_owner(tenant, subject, last, _PAGE):
            for conversation in conversations:
                record = {"kind": "conversation", **asdict(conversation)}
                with _named(record):
                    record["items"] = await self._items(conversation)
                yield record
            last = conversations[-1].id

    async def _items(self, conversation: StoredConversation) -> list[Item]:
        which = (conversation.tenant, conversation.owner, conversation.id)
        items: list[Item] = []
        query = ItemQuery(_PAGE, descending=False)
        while page := await self.conversations.page(*which, query):
            items += page.items
            if not page.has_more:
                break
            query = ItemQuery(_PAGE, descending=False, after=page.items[-1]["id"])
        return items

    async def _possessions(self, tenant: str, subject: str) -> AsyncIterator[dict[str, Any]]:
        for tag in await self._tags(tenant, subject):
            yield {"kind": "tag", **asdict(tag)}
        for key in await self._keys(tenant, subject):
            yield {"kind": "key", **{name: value for name, value in asdict(key).items() if name != "digest"}}
        async for result in self._results(tenant, subject):
            record: dict[str, Any] = {"kind": "result", **asdict(result), "parts": []}
            with _named(record), suppress(ResultNotFoundError):
                record["parts"] = [
                    asdict(await self.results.part_of(result, at)) for at in range(len(result.parts))
                ]
            yield record
        async for task in self._tasks(tenant, subject):
            record = {name: value for name, value in asdict(task).items() if name != "session"}
            yield {"kind": "task", **record}
        async for scope, entry in self._entries(tenant, subject):
            record = {"kind": "context", "scope": scope.key, **asdict(entry)}
            with _named(record):
                record["value"] = await self.context.contents.read(tenant, str(entry.digest))
            yield record
        after = 0
        while page := await self.trail.page(tenant, after, _PAGE, AuditFilter(subject=subject)):
            for audited in page:
                yield {"kind": "audit", "seq": audited.seq, **asdict(audited.event)}
            after = page[-1].seq

    async def _results(self, tenant: str, subject: str) -> AsyncIterator[StoredResult]:
        last: StoredResult | None = None
        while results := await self.results.records.of_owner(tenant, subject, last):
            for result in results:
                yield result
            last = results[-1]

    async def _tasks(self, tenant: str, subject: str) -> AsyncIterator[UpstreamTask]:
        last: UpstreamTask | None = None
        while tasks := await self.tasks.of_owner(tenant, subject, last):
            for task in tasks:
                yield task
            last = tasks[-1]

    async def _sessions(self, tenant: str, subject: str) -> AsyncIterator[Session]:
        query = SessionQuery(limit=_PAGE, owner=subject, unlisted=True)
        while page := await self.registry.sessions(tenant, query):
            for session in page:
                yield session
            query = SessionQuery(
                limit=_PAGE, owner=subject, unlisted=True, after=SessionMark(page[-1].created_at, page[-1].id)
            )

    async def _turns(self, session: Session) -> list[Turn]:
        """The ended turns of a session, the oldest first."""
        turns: list[Turn] = []
        query = TurnQuery(_PAGE)
        while page := await self.registry.turns(session.tenant, session.id, query):
            turns += page
            query = TurnQuery(_PAGE, before=page[-1].number)
        return [turn for turn in reversed(turns) if turn.state is TurnState.ENDED]

    async def _turn(self, turn: Turn) -> dict[str, Any]:
        """With the messages and token ids that it adds to its parent."""
        record = {"kind": "turn", **asdict(turn)}
        with _named(record):
            messages = await self.registry.turn_messages(turn, turn.parent_messages)
            record["messages"] = [message.content for message in messages]
        with _named(record):
            record["token_ids"] = (await self.registry.turn_tokens(turn))[turn.parent_at :]
        return record

    async def _tags(self, tenant: str, subject: str) -> list[TurnTag]:
        """Those that they set, among the newest of the tenant."""
        return [tag for tag in await self.registry.tags(tenant) if tag.author == subject]

    async def _keys(self, tenant: str, subject: str) -> list[ApiKey]:
        return [key for key in await self.keys.listed(tenant) if f"{_KEY}{key.name}" == subject]

    async def _entries(self, tenant: str, subject: str) -> AsyncIterator[tuple[ContextScope, Entry]]:
        """What they wrote last, of all that is in shared context now."""
        for scope in await self.context.index.scopes(tenant):
            head = await self.context.index.head(scope)
            for entry in await self.context.index.state(scope, head.version):
                if entry.author == subject and entry.digest is not None:
                    yield scope, entry


@contextmanager
def _named(record: dict[str, Any]) -> Iterator[None]:
    """Name in the record why a part of it cannot be read: an export goes on behind it."""
    try:
        yield
    except CwmError as error:
        record["error"] = error.as_dict()
