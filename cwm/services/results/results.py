"""Stored results: kept whole, and read by any replica in pages that never shift."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from cwm.domain.cursor import Claim, CursorFault, Cursors, Position, snapshot_of
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    ResultNotFoundError,
    StorageQuotaExceededError,
)
from cwm.domain.json_pointer import value_at
from cwm.domain.pages import Pages, page_bytes_for, spelled
from cwm.domain.principal import Principal
from cwm.domain.results import (
    ABOUT_TYPE,
    HANDLE_BYTES,
    Part,
    PartKind,
    ResultUse,
    StoredPart,
    StoredResult,
    handle_of,
    number_of,
)
from cwm.domain.tool_policy import ToolPolicy
from cwm.ports.clock import Clock
from cwm.ports.results import ResultRecords
from cwm.ports.token_counter import TokenCounter
from cwm.services.audit.journal import Journal
from cwm.services.contents.contents import SharedContents
from cwm.threads import in_thread

_SWEEP_SECONDS: Final = 30.0
_AT_ONCE: Final = 100
_QUICKLY_READ_BYTES: Final = 64 * 1024

_log = logging.getLogger("cwm.results")


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of a part. ``text`` is base64 if the part is binary; ``end`` is the offset after the piece.

    It begins on ``page`` of ``pages``, counted from 1. ``next_cursor`` continues after it, in the next part at the end of
    this one; None at the end of the result.
    """

    result: StoredResult
    part: int
    page: int
    pages: int
    text: str
    start: int
    end: int
    tokens: int
    next_cursor: str | None

    @property
    def stored(self) -> StoredPart:
        return self.result.parts[self.part]


@dataclass(frozen=True, slots=True)
class Results:
    """Stores results and returns them to their owner and, if they are shared, to others of the tenant."""

    records: ResultRecords
    contents: SharedContents
    tokens: TokenCounter
    cursors: Cursors
    clock: Clock
    quota_bytes: int | None
    cursor_ttl: timedelta
    journal: Journal | None = None
    whole_bytes: int = 4 * 2**20

    async def keep(
        self,
        principal: Principal,
        tool: str,
        arguments_digest: str,
        parts: Sequence[Part],
        policy: ToolPolicy,
    ) -> StoredResult:
        """Store a whole result for as long as ``policy`` says. CWM-4003 over the owner's quota; CWM-4001.

        When this returns, the result survives a crash, and every replica finds it by its handle.
        """
        now = self.clock.now()
        result = StoredResult(
            tenant=principal.tenant,
            handle=handle_of(secrets.token_bytes(HANDLE_BYTES)),
            owner=principal.subject,
            tool=tool,
            parts=await self._described(parts, policy.preview_tokens),
            created_at=now,
            expires_at=now + timedelta(seconds=policy.result_ttl_seconds),
            shared=policy.shared,
            arguments_digest=arguments_digest,
        )
        if not await self.records.keep(result, self.quota_bytes):
            raise StorageQuotaExceededError(
                "The stored results of this user would exceed their quota.",
                size_bytes=result.size,
                quota_bytes=self.quota_bytes,
            )
        try:
            for part in parts:
                await self.contents.keep(result.tenant, part.body, holder_of(result), result.expires_at)
        except BaseException:
            with contextlib.suppress(CwmError):
                await self.forget(result)
            raise
        return result

    async def of(self, principal: Principal, after: str, limit: int) -> list[StoredResult]:
        """At most ``limit`` of the principal's own results that have not expired, those that stay longest first, behind the one with the handle ``after``. CWM-2005 if it is not there any more."""
        now = self.clock.now()
        last = await self.find(principal, after) if after else None
        results = await self.records.of_owner(principal.tenant, principal.subject, last, limit)
        return [result for result in results if result.expires_at > now]

    async def use(self, principal: Principal) -> ResultUse:
        """Of the principal's own results, without reading them."""
        return await self.records.use(principal.tenant, principal.subject, self.clock.now())

    async def find(self, principal: Principal, handle: str, *, noted: bool = True) -> StoredResult:
        """The result with this handle. CWM-2005 alike if it is unknown, expired, or another's and not shared.

        With ``noted`` access to another's result is written to the audit log.
        """
        is_handle = number_of(handle) is not None
        result = await self.records.find(principal.tenant, handle) if is_handle else None
        if result is None or result.expires_at <= self.clock.now():
            raise _not_found()
        if noted and self.journal is not None and result.owner != principal.subject:
            note = self.journal.shared if result.shared else self.journal.foreign
            await note(principal, "result", handle=handle, owner=result.owner, tool=result.tool)
        if not result.opens_for(principal.subject):
            error = _not_found()
            error.audited = noted and self.journal is not None
            raise error
        return result

    async def whole(self, principal: Principal, handle: str, index: int | None = None) -> list[Part]:
        """All parts as the tool returned them, or the one with this index.

        CWM-2005; CWM-1003 if the result has no such part, or if they have more than ``whole_bytes``.
        """
        result = await self.find(principal, handle)
        size = result.size if index is None else part_at(result, index).size
        if size > self.whole_bytes:
            raise InvalidParameterError(
                f"This has {size:,} bytes, and at most {self.whole_bytes:,} are read at once. Read it page by page with "
                "result_read, or find something in it with result_query.",
                field="uri",
                handle=handle,
                size_bytes=size,
                limit_bytes=self.whole_bytes,
            )
        indices = range(len(result.parts)) if index is None else (index,)
        return [await self.part_of(result, each) for each in indices]

    async def part_of(self, result: StoredResult, index: int) -> Part:
        """A part of a result that was found already. CWM-2005; CWM-1003 if the result has no such part."""
        stored = part_at(result, index)
        body = await self.contents.read(result.tenant, stored.digest)
        if body is None:
            raise _not_found()
        return Part(stored.kind, stored.media_type, body)

    async def read(
        self,
        principal: Principal,
        *,
        budget_tokens: int,
        cursor: str | None = None,
        handle: str | None = None,
        page: int = 1,
        part: int = 0,
    ) -> Page:
        """Continue at ``cursor``, or read a page of ``handle``, counted from 1. CWM-2005; CWM-1003 for malformed arguments.

        A page of more than ``budget_tokens`` is returned up to the budget, and ``next_cursor`` continues in it.
        """
        if (cursor is None) == (handle is None):
            raise InvalidParameterError("Give cursor or handle, and not both.", field="cursor")
        if cursor is not None:
            result, position = await self.located(principal, cursor)
            part, start = position.part, position.offset
        else:
            result, start = await self.find(principal, handle or ""), None
        pages = await self.pages(result, part)
        if start is None:
            if not 1 <= page <= pages.count:
                raise InvalidParameterError(f"Pages are 1 to {pages.count}.", field="page", pages=pages.count)
            start = pages.start(page - 1)
        return self._page(principal, result, part, pages, start, budget_tokens)

    async def located(
        self, principal: Principal, cursor: str, query: str = "", *, noted: bool = True
    ) -> tuple[StoredResult, Position]:
        """The result and position of ``cursor``, which must belong to ``query``. CWM-1003 with the cursor's fault; CWM-2005."""
        claim = await self._claim(principal, cursor)
        result = await self.find(principal, claim.position.handle, noted=noted)
        stored = part_at(result, claim.position.part)
        return result, claim.require(snapshot_of(result, stored, query))

    async def _claim(self, principal: Principal, cursor: str) -> Claim:
        try:
            return self.cursors.read(cursor, principal, self.clock.now())
        except InvalidParameterError as error:
            if self.journal is not None and error.context.get("reason") == CursorFault.FOREIGN:
                await self.journal.foreign(principal, "cursor")
            raise

    async def pages(self, result: StoredResult, part: int) -> Pages:
        """The pages of a part."""
        read = await self.part_of(result, part)
        return Pages(read.body, result.parts[part].page_bytes, binary=read.kind is PartKind.BINARY)

    async def resolve(
        self, principal: Principal, handle: str, json_pointer: str | None, part: int | None = None
    ) -> Any:
        """The JSON value at ``json_pointer``, in the first JSON part unless ``part`` is given.

        The empty pointer returns the whole part: parsed if it is JSON, text as text, binary as base64. No pointer returns the
        text as the tool returned it, of the first part unless ``part`` is given. CWM-2005; CWM-1003 if the pointer leads
        nowhere.
        """
        result = await self.find(principal, handle)
        if part is None:
            part = 0 if json_pointer is None else _first_json(result)
        read = await self.part_of(result, part)
        if read.kind is PartKind.JSON and json_pointer is not None:
            return value_at(await parsed(read.body), json_pointer)
        if json_pointer:
            raise InvalidParameterError(
                "A JSON pointer leads into JSON, and this result has none.", field="json_pointer"
            )
        return spelled(read.body, binary=read.kind is PartKind.BINARY)

    def cursor_at(
        self, principal: Principal, result: StoredResult, position: Position, query: str = ""
    ) -> str:
        """A cursor with which ``principal`` continues at ``position``. It expires with the result or earlier."""
        expires_at = min(self.clock.now() + self.cursor_ttl, result.expires_at)
        snapshot = snapshot_of(result, result.parts[position.part], query)
        return self.cursors.make(position, principal, snapshot, expires_at)

    async def forget(self, result: StoredResult) -> None:
        """Release the contents, then delete the record, so that an interrupted deletion is repeated the next time."""
        for digest in {part.digest for part in result.parts}:
            await self.contents.let_go(result.tenant, digest, holder_of(result))
        await self.records.forget(result)

    async def forget_expired(self) -> int:
        """Delete all expired results of every tenant; returns how many."""
        forgotten = 0
        while due := await self.records.expired_of_every_tenant(self.clock.now(), _AT_ONCE):
            for result in due:
                await self.forget(result)
            forgotten += len(due)
        return forgotten

    async def sweep(self) -> None:
        """Delete expired results every 30 s. Runs until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.forget_expired()
            except CwmError as error:
                _log.warning("expired results could not be forgotten: %s", error.message)

    async def _described(self, parts: Sequence[Part], page_tokens: int) -> tuple[StoredPart, ...]:
        """Describe the parts, in a thread above 64 KiB."""

        def described() -> tuple[StoredPart, ...]:
            return tuple(self._description(part, page_tokens) for part in parts)

        quick = sum(len(part.body) for part in parts) <= _QUICKLY_READ_BYTES
        return described() if quick else await in_thread(described)

    def _description(self, part: Part, page_tokens: int) -> StoredPart:
        """Describe a part. A text that is not UTF-8 becomes binary, as its pages could not be shown otherwise."""
        kind = part.kind if _is_text(part) else PartKind.BINARY
        return StoredPart(
            kind,
            part.media_type,
            hashlib.sha256(part.body).hexdigest(),
            len(part.body),
            page_bytes_for(part.body, page_tokens, self.tokens.count, binary=kind is PartKind.BINARY),
        )

    def _page(
        self, principal: Principal, result: StoredResult, part: int, pages: Pages, start: int, budget: int
    ) -> Page:
        page = pages.holding(start)
        end, tokens = pages.fitting(start, pages.start(page + 1), budget, self.tokens.count)
        after = Position(result.handle, part, end)
        if end == len(pages.body):
            after = replace(after, part=part + 1, offset=0)
        goes_on = after.part < len(result.parts)
        return Page(
            result=result,
            part=part,
            page=page + 1,
            pages=pages.count,
            text=pages.shown(start, end),
            start=start,
            end=end,
            tokens=tokens,
            next_cursor=self.cursor_at(principal, result, after) if goes_on else None,
        )


def holder_of(result: StoredResult) -> str:
    """The holder under which the result's contents are stored."""
    return f"result:{result.handle}"


def _not_found() -> ResultNotFoundError:
    return ResultNotFoundError("There is no such stored result; it may have expired.")


def part_at(result: StoredResult, index: int) -> StoredPart:
    """The stored part with this index. CWM-1003 if there is none."""
    if not 0 <= index < len(result.parts):
        raise InvalidParameterError(
            f"The parts of this result are 0 to {len(result.parts) - 1}.",
            field="part",
            parts=len(result.parts),
        )
    return result.parts[index]


async def parsed(body: bytes) -> Any:
    """Parse JSON, in a thread above 64 KiB. CWM-1003 if it is invalid or nested too deeply."""
    try:
        if len(body) <= _QUICKLY_READ_BYTES:
            return json.loads(body)
        return await in_thread(json.loads, body)
    except (ValueError, RecursionError):
        raise InvalidParameterError("This part cannot be read as JSON.", field="part") from None


def _first_json(result: StoredResult) -> int:
    answers = (
        index
        for index, part in enumerate(result.parts)
        if part.kind is PartKind.JSON and part.media_type != ABOUT_TYPE
    )
    return next(answers, 0)


def _is_text(part: Part) -> bool:
    if part.kind is PartKind.BINARY:
        return False
    try:
        part.body.decode()
    except UnicodeDecodeError:
        return False
    return True
