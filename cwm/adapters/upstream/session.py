"""The port ``UpstreamSession`` over the MCP SDK's client, of either era and over either transport."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping
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
from cwm.adapters.upstream.faults import away, knows_not, told
from cwm.adapters.upstream.http import ASKED, AWAY, DENIED, OURS, Asked
from cwm.domain.upstream import Definition, Kind
from cwm.ports.upstream import (
    Heard,
    Progress,
    UpstreamAwayError,
    UpstreamRefusedError,
    UpstreamSlowError,
)

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
Authorize = Callable[[str], Awaitable[str | None]]
"""From the caller's ``Authorization`` to the one that the upstream is shown; None where it is shown none."""

_CLIENT: Final = types.Implementation(name="cwm", version=__version__)
_MOST_PAGES: Final = 1000
_RELISTEN_SECONDS: Final = 1.0  # so that one which ends every stream at once is not asked without a pause
# Of the time to connect: a program that is silent about what it does not know must be left time to answer.
_PROBE_SHARE: Final = 0.4
_WATCH_SECONDS: Final = 30.0
_WRITE_SECONDS: Final = 10.0
_WILL_NOT: Final = (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, types.INVALID_REQUEST)
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
        authorize: Authorize | None = None,
        session_id: Callable[[], str | None] = lambda: None,
        goodbye: Callable[[], Awaitable[None]] | None = None,
        gone: Callable[[SdkSession], None] = lambda _: None,
    ) -> None:
        """``gone`` is called when nothing is left of it: it was closed, and the upstream told where it is to be."""
        self._heard = heard
        self._authorize = authorize
        self._session_id = session_id
        self._goodbye = goodbye
        self._gone = gone
        self._client: ClientSession | None = None
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._asking = 0
        self._retired: bool | None = None
        self._closer: asyncio.Task[None] | None = None
        self._watched: set[str] = set()
        self._listen_anew = asyncio.Event()
        self._streams = streams
        self._task: asyncio.Task[None] | None = None

    async def start(self, timeout_seconds: float, resume: str | None = None) -> None:
        """Raises UpstreamAwayError, with nothing left open."""
        ready = asyncio.get_running_loop().create_future()
        # Of the request that happens to be the first, nothing is to go with those that follow.
        holding = self._hold(ready, resume, timeout_seconds)
        self._task = asyncio.create_task(holding, context=contextvars.Context())
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(ready)
        except BaseException as failed:
            ready.cancel()
            await self.close(end=resume is None)
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

    async def authorize(self, authorization: str | None) -> str | None:
        """Who asks, as the upstream is told; the session's own messages are in that name from now on."""
        return (
            None if self._authorize is None or authorization is None else await self._authorize(authorization)
        )

    async def ended(self) -> None:
        await self._ended.wait()

    async def definitions(self, kind: Kind) -> tuple[Definition, ...]:
        part = Kind.RESOURCES if kind is Kind.TEMPLATES else kind
        if part.value not in self.capabilities:
            return ()
        listed: list[Definition] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page, cursor = await self._page(kind, cursor)
            except UpstreamRefusedError as refused:
                if cursor is None and knows_not(refused):
                    return ()
                raise
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
        given, capabilities = _without_capabilities(params)
        asked = Asked(await self.authorize(authorization), capabilities)
        request = types.Request[dict[str, Any], str](method=method, params=given)
        within = ASKED.set(asked)
        self._asking += 1
        try:
            with told():
                # The SDK's own limit counts from when the request was written, which may never be.
                async with asyncio.timeout(timeout_seconds + _WRITE_SECONDS):
                    answer = await client.send_request(
                        request,
                        _Result,
                        request_read_timeout_seconds=timeout_seconds,
                        progress_callback=on_progress,
                    )
        except (UpstreamSlowError, asyncio.CancelledError):
            await asyncio.shield(asked.give_up())
            raise
        finally:
            ASKED.reset(within)
            self._asking -= 1
            self._close_if_retired()
        return answer.root

    async def watch(self, uri: str, authorization: str | None = None) -> None:
        if uri in self._watched or not (self.capabilities.get("resources") or {}).get("subscribe"):
            return
        self._watched.add(uri)
        try:
            if self.modern:
                await self.authorize(authorization)
                self._listen_anew.set()
            else:
                asked, limit = {"uri": uri}, _WATCH_SECONDS
                await self.request(
                    "resources/subscribe", asked, timeout_seconds=limit, authorization=authorization
                )
        except BaseException:
            self._watched.discard(uri)
            raise

    async def unwatch(self, uri: str) -> None:
        if uri not in self._watched:
            return
        self._watched.discard(uri)
        if self.modern:
            self._listen_anew.set()
        else:
            await self.request("resources/unsubscribe", {"uri": uri}, timeout_seconds=_WATCH_SECONDS)

    def retire(self, *, end: bool) -> None:
        self._retired = end
        self._close_if_retired()

    async def close(self, *, end: bool) -> None:
        self._closing.set()
        # Whoever waits for it may be cancelled.
        self._closer = asyncio.create_task(self._close(end=end))
        await asyncio.shield(self._closer)

    def _close_if_retired(self) -> None:
        if self._retired is not None and not self._asking and not self._closing.is_set():
            self._closing.set()
            self._closer = asyncio.create_task(self._close(end=self._retired))

    async def _close(self, *, end: bool) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})
        if end and self._goodbye is not None:
            await self._goodbye()
        self._gone(self)

    def _open(self) -> ClientSession:
        if self._client is None or self._ended.is_set() or self._closing.is_set():
            raise UpstreamAwayError("the connection is closed")
        return self._client

    async def _hold(self, ready: asyncio.Future[None], resume: str | None, timeout_seconds: float) -> None:
        try:
            async with self._streams as (read, write):
                wire = _Wire(read, write, self._ended)
                async with ClientSession(
                    dispatcher=wire,
                    message_handler=self._on_message,
                    client_info=_CLIENT,
                    # For the pages of lists; what callers ask for has a limit of its own.
                    read_timeout_seconds=timeout_seconds,
                ) as client:
                    if not await self._unless_closed(
                        _negotiate(client, resume, timeout_seconds * _PROBE_SHARE)
                    ):
                        return
                    self._client = client
                    if not ready.done():
                        ready.set_result(None)
                    await self._unless_closed(self._live())
        except Exception as failed:  # noqa: BLE001 - the SDK groups whatever its tasks raise
            if not ready.done():
                ready.set_exception(away(failed))
        finally:
            self._ended.set()
            if not ready.done():
                ready.set_exception(UpstreamAwayError("the connection is closed"))

    async def _unless_closed(self, work: Awaitable[None]) -> bool:
        """Whether it was done before the session was lost or closed. Raises what it raises."""
        doing = asyncio.ensure_future(work)
        closing, ended = (asyncio.create_task(event.wait()) for event in (self._closing, self._ended))
        try:
            await asyncio.wait({doing, closing, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (doing, closing, ended):
                each.cancel()
            await asyncio.wait({doing})
        if doing.cancelled():
            return False
        doing.result()
        return True

    async def _page(self, kind: Kind, cursor: str | None) -> tuple[list[Definition], str | None]:
        client = self._open()
        at = types.PaginatedRequestParams(cursor=cursor)
        with told():
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

    async def _live(self) -> None:
        if self._heard is not None and self.modern and _tells_of_changes(self.capabilities):
            await self._listen()
        await asyncio.Event().wait()

    async def _listen(self) -> None:
        """The stream of 2026-07-28, opened again when it is lost or other resources are to be watched."""
        while True:
            self._listen_anew.clear()
            try:
                await self._listen_once()
            except MCPError as refused:
                if refused.data != OURS and refused.code in _WILL_NOT:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            if not self._listen_anew.is_set():
                # Whatever it would have told in the meantime is looked up.
                self._hear_of_everything()
                await asyncio.sleep(_RELISTEN_SECONDS)

    async def _listen_once(self) -> None:
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
                await asyncio.gather(reading, anew, return_exceptions=True)

    def _hear_of_everything(self) -> None:
        assert self._heard is not None
        for kind in Kind:
            self._heard(kind)

    async def _hear_all(self, events: Any) -> None:
        async for event in events:
            self._hear(event)

    def _hear(self, event: ServerEvent) -> None:
        assert self._heard is not None
        if isinstance(event, ResourceUpdated):
            self._heard(event.uri)
        elif (kind := _CHANGED.get(type(event))) is not None:
            self._heard(kind)


def _tells_of_changes(capabilities: Mapping[str, Any]) -> bool:
    parts = (capabilities.get(part) or {} for part in ("tools", "prompts", "resources"))
    return any(part.get("listChanged") or part.get("subscribe") for part in parts)


def _without_capabilities(params: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    meta = dict(params.get("_meta") or {})
    capabilities = meta.pop(types.CLIENT_CAPABILITIES_META_KEY, None)
    if capabilities is None:
        return dict(params), None
    given = {name: value for name, value in params.items() if name != "_meta"}
    return ({**given, "_meta": meta} if meta else given), capabilities


def _with_capabilities(params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The caller's in the place of ours, which the SDK tells an upstream of 2026-07-28 with every request."""
    asked, meta = ASKED.get(), (params or {}).get("_meta") or {}
    if params is None or asked is None or not asked.capabilities:
        return params
    if types.CLIENT_CAPABILITIES_META_KEY not in meta:
        return params
    return {**params, "_meta": {**meta, types.CLIENT_CAPABILITIES_META_KEY: dict(asked.capabilities)}}


class _Result(RootModel[dict[str, Any]]):
    """What was answered, every field of it."""


class _Wire(JSONRPCDispatcher[Any]):
    """The SDK's dispatcher, which also says who can be asked for input, and when the other side is gone."""

    def __init__(self, read: Any, write: Any, ended: asyncio.Event) -> None:
        super().__init__(read, write)
        self._gone = ended

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, *args: Any, **options: Any
    ) -> dict[str, Any]:
        try:
            return await super().send_raw_request(method, _with_capabilities(params), *args, **options)
        finally:
            # Those who wait learn of the end before ``run`` does; they are not to ask here again.
            if self._closed:
                self._gone.set()

    async def run(self, *args: Any, **options: Any) -> None:
        try:
            await super().run(*args, **options)
        finally:
            self._gone.set()


async def _negotiate(client: ClientSession, resume: str | None, probe_seconds: float) -> None:
    """2026-07-28 where the upstream speaks it, else the handshake; with ``resume`` neither is needed."""
    if resume is not None:
        client.adopt(types.InitializeResult.model_validate(json.loads(resume)["initialize"]))
        return
    try:
        async with asyncio.timeout(probe_seconds):
            await client.discover()
    except MCPError as failed:
        if failed.data == OURS and failed.code in {AWAY, DENIED}:
            raise
        await _shake_hands(client)
    except (RuntimeError, TimeoutError, ValidationError):
        await _shake_hands(client)


async def _shake_hands(client: ClientSession) -> None:
    """An upstream that was slow to start may have heard the probe after all: then it speaks nothing else any more."""
    try:
        await client.initialize()
    except MCPError as refused:
        if refused.code != types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await client.discover()


def _json(model: types.Tool | types.Resource | types.ResourceTemplate | types.Prompt) -> Definition:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
