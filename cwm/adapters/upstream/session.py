"""The port ``UpstreamSession`` over the MCP SDK's client, of either era and over either transport."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import RootModel, ValidationError

from cwm import __version__
from cwm.adapters.upstream.http import AWAY, EXPIRED, LOST, OURS
from cwm.domain.upstream import Definition, Kind
from cwm.ports.upstream import (
    Heard,
    Progress,
    UpstreamAwayError,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamRefusedError,
    UpstreamSlowError,
)

Streams = AbstractAsyncContextManager[tuple[Any, Any]]

_CLIENT: Final = types.Implementation(name="cwm", version=__version__)
_MOST_PAGES: Final = 1000
_BROKEN: Final = ("Connection closed", "SSE stream")
_RELISTEN_SECONDS: Final = 1.0
_FAULTS: Final[Mapping[int, type[UpstreamError]]] = {
    AWAY: UpstreamAwayError,
    EXPIRED: UpstreamExpiredError,
    LOST: UpstreamLostError,
}
_CHANGED: Final[Mapping[type, Kind]] = {
    ToolsListChanged: Kind.TOOLS,
    PromptsListChanged: Kind.PROMPTS,
    ResourcesListChanged: Kind.RESOURCES,
    types.ToolListChangedNotification: Kind.TOOLS,
    types.PromptListChangedNotification: Kind.PROMPTS,
    types.ResourceListChangedNotification: Kind.RESOURCES,
}


class SdkSession:
    """One open session. The SDK's client lives in a task of its own, which opens, holds and closes it."""

    def __init__(
        self,
        streams: Streams,
        *,
        heard: Heard | None,
        authorize: Callable[[str], Awaitable[None]] | None = None,
        session_id: Callable[[], str | None] = lambda: None,
        goodbye: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._heard = heard
        self._authorize = authorize
        self._session_id = session_id
        self._goodbye = goodbye
        self._client: ClientSession | None = None
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._watched: set[str] = set()
        self._listen_anew = asyncio.Event()
        self._streams = streams
        self._task: asyncio.Task[None] | None = None

    async def start(self, timeout_seconds: float, resume: str | None = None) -> None:
        """Raises UpstreamAwayError, with nothing left open."""
        ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready, resume))
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(ready)
        except BaseException as failed:
            ready.cancel()
            await self.close(end=False)
            if isinstance(failed, TimeoutError):
                raise UpstreamAwayError(f"it did not answer within {timeout_seconds:g} s") from None
            raise

    @property
    def modern(self) -> bool:
        return self._open().protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> Mapping[str, Any]:
        told = self._open().server_capabilities
        return {} if told is None else told.model_dump(by_alias=True, mode="json", exclude_none=True)

    @property
    def resume_with(self) -> str | None:
        session_id = self._session_id()
        handshake = self._open().initialize_result
        if session_id is None or handshake is None:
            return None
        told = handshake.model_dump(by_alias=True, mode="json", exclude_none=True)
        return json.dumps({"id": session_id, "initialize": told})

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self._ended.is_set()

    async def authorize(self, authorization: str) -> None:
        """Say who asks from now on, to upstreams that are told."""
        if self._authorize is not None:
            await self._authorize(authorization)

    async def ended(self) -> None:
        await self._ended.wait()

    async def definitions(self, kind: Kind) -> tuple[Definition, ...]:
        part = Kind.RESOURCES if kind is Kind.TEMPLATES else kind
        if part.value not in self.capabilities:
            return ()
        listed: list[Definition] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page, cursor = await self._page(kind, cursor)
            listed.extend(page)
            if cursor is None:
                break
        return tuple(listed)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_seconds: float,
        authorization: str | None = None,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        client = self._open()
        if authorization is not None:
            await self.authorize(authorization)
        asked = types.Request[dict[str, Any], str](method=method, params=dict(params))
        with _told():
            answer = await client.send_request(
                asked,
                _Result,
                request_read_timeout_seconds=timeout_seconds,
                progress_callback=on_progress,
            )
        return answer.root

    async def watch(self, uri: str) -> None:
        if uri in self._watched or not (self.capabilities.get("resources") or {}).get("subscribe"):
            return
        self._watched.add(uri)
        if self.modern:
            self._listen_anew.set()
        else:
            await self.request("resources/subscribe", {"uri": uri}, timeout_seconds=30.0)

    async def unwatch(self, uri: str) -> None:
        if uri not in self._watched:
            return
        self._watched.discard(uri)
        if self.modern:
            self._listen_anew.set()
        else:
            await self.request("resources/unsubscribe", {"uri": uri}, timeout_seconds=30.0)

    async def close(self, *, end: bool) -> None:
        self._closing.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        if end and self._goodbye is not None:
            await self._goodbye()

    def _open(self) -> ClientSession:
        if self._client is None or self._ended.is_set():
            raise UpstreamAwayError("the connection is closed")
        return self._client

    async def _hold(self, ready: asyncio.Future[None], resume: str | None) -> None:
        try:
            async with self._streams as (read, write):
                wire = _Wire(read, write, self._ended)
                async with ClientSession(
                    dispatcher=wire, message_handler=self._on_message, client_info=_CLIENT
                ) as client:
                    await _negotiate(client, resume)
                    self._client = client
                    listening = asyncio.create_task(self._listen()) if self._listens() else None
                    if not ready.done():
                        ready.set_result(None)
                    await self._until_closed_or_ended()
                    if listening is not None:
                        listening.cancel()
                        await asyncio.wait({listening})
        except Exception as failed:  # noqa: BLE001 - the SDK groups whatever its tasks raise
            if not ready.done():
                ready.set_exception(UpstreamAwayError(_why(failed)))
        finally:
            self._ended.set()
            if not ready.done():
                ready.set_exception(UpstreamAwayError("the connection is closed"))

    async def _until_closed_or_ended(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._closing, self._ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _page(self, kind: Kind, cursor: str | None) -> tuple[list[Definition], str | None]:
        client = self._open()
        at = types.PaginatedRequestParams(cursor=cursor)
        with _told():
            if kind is Kind.TOOLS:
                # The typed call learns which arguments a tool wants as headers.
                tools = await client.list_tools(params=at)
                return [_json(each) for each in tools.tools], tools.next_cursor
            if kind is Kind.RESOURCES:
                resources = await client.list_resources(params=at)
                return [_json(each) for each in resources.resources], resources.next_cursor
            if kind is Kind.TEMPLATES:
                templates = await client.list_resource_templates(params=at)
                return [_json(each) for each in templates.resource_templates], templates.next_cursor
            prompts = await client.list_prompts(params=at)
            return [_json(each) for each in prompts.prompts], prompts.next_cursor

    async def _on_message(self, message: IncomingMessage) -> None:
        if self._heard is None or isinstance(message, Exception):
            return
        if isinstance(message, types.ResourceUpdatedNotification):
            self._heard(str(message.params.uri))
        elif (kind := _CHANGED.get(type(message))) is not None:
            self._heard(kind)

    def _listens(self) -> bool:
        return self._heard is not None and self.modern and "listChanged" in json.dumps(self.capabilities)

    async def _listen(self) -> None:
        """The stream of 2026-07-28, opened again when it is lost or other resources are to be watched."""
        while True:
            self._listen_anew.clear()
            with contextlib.suppress(MCPError, SubscriptionLost, TimeoutError):
                async with listen(
                    self._open(),
                    tools_list_changed=True,
                    prompts_list_changed=True,
                    resources_list_changed=True,
                    resource_subscriptions=sorted(self._watched),
                ) as stream:
                    reading = asyncio.create_task(self._hear_all(stream))
                    anew = asyncio.create_task(self._listen_anew.wait())
                    try:
                        await asyncio.wait({reading, anew}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        reading.cancel()
                        anew.cancel()
                        await asyncio.wait({reading, anew})
            if not self._listen_anew.is_set():
                await asyncio.sleep(_RELISTEN_SECONDS)

    async def _hear_all(self, events: Any) -> None:
        async for event in events:
            self._hear(event)

    def _hear(self, event: ServerEvent) -> None:
        assert self._heard is not None
        if isinstance(event, ResourceUpdated):
            self._heard(event.uri)
        elif (kind := _CHANGED.get(type(event))) is not None:
            self._heard(kind)


class _Result(RootModel[dict[str, Any]]):
    """What was answered, every field of it."""


class _Wire(JSONRPCDispatcher[Any]):
    """The SDK's dispatcher, which also says when the other side is gone."""

    def __init__(self, read: Any, write: Any, ended: asyncio.Event) -> None:
        super().__init__(read, write)
        self._gone = ended

    async def run(self, *args: Any, **options: Any) -> None:
        try:
            await super().run(*args, **options)
        finally:
            self._gone.set()


async def _negotiate(client: ClientSession, resume: str | None) -> None:
    """2026-07-28 where the upstream speaks it, else the handshake; with ``resume`` neither is needed."""
    if resume is not None:
        client.adopt(types.InitializeResult.model_validate(json.loads(resume)["initialize"]))
        return
    try:
        await client.discover()
    except MCPError as failed:
        if failed.data == OURS:
            raise
        await client.initialize()
    except (RuntimeError, ValidationError):
        await client.initialize()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """The SDK's failures as the port's."""
    try:
        yield
    except MCPError as failed:
        if failed.data == OURS:
            raise _FAULTS[failed.code](failed.message) from None
        # Servers use these codes too, for errors of their own: only the SDK's words tell them apart.
        if failed.code == types.CONNECTION_CLOSED and failed.message.startswith(_BROKEN):
            raise UpstreamLostError("the connection broke") from None
        if failed.code == types.REQUEST_TIMEOUT and failed.message.endswith("timed out"):
            raise UpstreamSlowError("it took too long") from None
        raise UpstreamRefusedError(failed.code, failed.message, failed.data) from None
    except ValidationError:
        raise UpstreamRefusedError(types.INTERNAL_ERROR, "It answered something that is not MCP.") from None


def _json(model: types.Tool | types.Resource | types.ResourceTemplate | types.Prompt) -> Definition:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _why(failed: BaseException) -> str:
    """The first cause in a group, in words that hold no header and no body."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if isinstance(failed, UpstreamError):
        return str(failed)
    if isinstance(failed, MCPError):
        return failed.message if failed.data == OURS else f"its handshake failed ({failed.code})"
    if isinstance(failed, OSError):
        return failed.strerror or type(failed).__name__
    return type(failed).__name__
