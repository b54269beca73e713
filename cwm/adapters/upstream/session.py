"""The port ``UpstreamSession`` over the MCP SDK's client, for both protocol eras and both transports."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import RootModel

from cwm import __version__
from cwm.adapters.upstream.exchange import TokenExchanger
from cwm.adapters.upstream.faults import away, has_no_method, port_errors
from cwm.adapters.upstream.http import PENDING, PendingRequest, SessionHttp
from cwm.adapters.upstream.listening import Listening, reports_changes
from cwm.adapters.upstream.messages import is_json, with_json_numbers
from cwm.adapters.upstream.pages import METHODS, NAMES, Page, read_page, shown
from cwm.adapters.upstream.wire import Wire, negotiate, without_capabilities
from cwm.domain.json_text import json_text
from cwm.domain.upstream import Bounds, Credentials, Definition, OfferKind, UpstreamSpec
from cwm.ports.upstream import (
    Heard,
    Listing,
    OnLog,
    Progress,
    UpstreamAwayError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamRejectedError,
    UpstreamSlowError,
)

Streams = AbstractAsyncContextManager[tuple[Any, Any]]

_CLIENT: Final = types.Implementation(name="cwm", version=__version__)
_MOST_EMPTY_PAGES: Final = 3
_MOST_NAMES: Final = 20
# Share of the connect time for the probe: a program that ignores it needs the rest for the handshake.
_PROBE_SHARE: Final = 0.4
_WATCH_SECONDS: Final = 30.0
# Of callers who do not say for each request what is to be logged.
_LOGGED: Final = "info"


class SdkSession:
    """One open session. A task of its own opens the SDK's client, keeps it open and closes it."""

    def __init__(
        self,
        streams: Streams,
        spec: UpstreamSpec,
        on_change: Heard | None,
        on_gone: Callable[[SdkSession], None],
        *,
        http: SessionHttp | None = None,
        exchanger: TokenExchanger | None = None,
        goodbye: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``on_gone`` is called after the session is closed and, if required, ended at the upstream."""
        self._streams = streams
        self._spec = spec
        self._has_listener = on_change is not None
        self._listening = Listening(on_change or (lambda _: None))
        self._on_gone = on_gone
        self._http = http
        self._exchanger = exchanger
        self._goodbye = goodbye
        self._requests: list[PendingRequest] = []
        self._client: ClientSession | None = None
        self._wire: Wire | None = None
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._retired: bool | None = None
        self._closer: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, resume: str | None = None) -> None:
        """Open the session. Raises UpstreamAwayError, after closing everything."""
        ready = asyncio.get_running_loop().create_future()
        # An empty context, so that later requests do not inherit the context of the first one.
        self._task = asyncio.create_task(self._hold(ready, resume), context=contextvars.Context())
        try:
            async with asyncio.timeout(self._spec.connect_seconds):
                await asyncio.shield(ready)
        except BaseException as error:
            ready.cancel()
            await self.close(end=resume is None)
            if isinstance(error, TimeoutError):
                raise UpstreamAwayError(
                    f"it did not answer within {self._spec.connect_seconds:g} s"
                ) from None
            raise

    @property
    def modern(self) -> bool:
        return self._open().protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> Mapping[str, Any]:
        capabilities = self._open().server_capabilities
        if capabilities is None:
            return {}
        return capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)

    @property
    def instructions(self) -> str | None:
        return self._open().instructions

    @property
    def resume_with(self) -> str | None:
        session_id = None if self._http is None else self._http.session_id
        handshake = self._open().initialize_result
        if session_id is None or handshake is None:
            return None
        initialize = handshake.model_dump(by_alias=True, mode="json", exclude_none=True)
        return json.dumps({"id": session_id, "initialize": initialize})

    @property
    def _runs_tasks(self) -> bool:
        """Whether a tool of it may be called as a task; what its tools say of that counts only then."""
        tasks = self.capabilities.get("tasks") or {}
        return "call" in ((tasks.get("requests") or {}).get("tools") or {})

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self._ended.is_set()

    @property
    def hears(self) -> bool:
        return self._http is None or self._http.hears or self._listening.active

    async def authorize(self, authorization: str | None) -> str | None:
        """The upstream's ``Authorization`` for this caller; the session's own messages use it from now on."""
        if self._http is None or authorization is None:
            return None
        if self._spec.credentials is Credentials.FORWARD:
            self._http.authorization = authorization
        elif self._exchanger is not None and self._spec.exchange is not None:
            self._http.authorization = await self._exchanger.exchange(self._spec.exchange, authorization)
        return self._http.authorization

    async def ended(self) -> None:
        await self._ended.wait()

    async def definitions(self, kind: OfferKind) -> Listing:
        part = OfferKind.RESOURCES if kind is OfferKind.TEMPLATES else kind
        if part.value not in self.capabilities:
            return Listing()
        collection, cursors, empty_pages = _Listed(kind, self._spec.bounds), set[str](), 0
        cursor: str | None = None
        while True:
            try:
                page = await self._page(kind, cursor)
            except UpstreamOversizeError:
                return collection.listing(collection.cut_by("message_bytes", self._spec.bounds.message_bytes))
            except (UpstreamRefusedError, UpstreamRejectedError) as error:
                if cursor is not None:
                    return collection.listing(f"its {kind} are listed in part: {error}")
                if isinstance(error, UpstreamRefusedError) and has_no_method(error):
                    return Listing()
                raise
            omission = collection.add(page)
            empty_pages += not page.definitions
            if omission is None and (page.cursor in cursors or empty_pages == _MOST_EMPTY_PAGES):
                omission = f"its list of {kind} does not end"
            if omission is not None or page.cursor is None:
                return collection.listing(omission)
            cursor = page.cursor
            cursors.add(cursor)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_seconds: float,
        total_seconds: float = 0.0,
        authorization: str | None = None,
        on_progress: Progress | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]:
        client = self._open()
        own_params, capabilities = without_capabilities(params)
        if not is_json(own_params):
            raise UpstreamRefusedError(types.INVALID_PARAMS, "the request holds what JSON cannot carry")
        if on_log is not None and self.modern:
            own_params["_meta"] = {types.LOG_LEVEL_META_KEY: _LOGGED, **(own_params.get("_meta") or {})}
        pending = PendingRequest(await self.authorize(authorization), capabilities, on_log)
        context_token = PENDING.set(pending)
        self._requests.append(pending)
        try:
            with port_errors():
                # The SDK's own timeout starts when the request is written, which may never happen.
                async with asyncio.timeout(timeout_seconds) as limit:
                    answer = await self._send(
                        client,
                        method,
                        own_params,
                        max(timeout_seconds, total_seconds),
                        _extending(limit, timeout_seconds, total_seconds, on_progress),
                    )
        except (UpstreamSlowError, asyncio.CancelledError):
            await asyncio.shield(pending.give_up())
            raise
        finally:
            PENDING.reset(context_token)
            self._requests.remove(pending)
            self._close_if_retired()
        return with_json_numbers(answer)

    async def _send(
        self,
        client: ClientSession,
        method: str,
        params: dict[str, Any],
        timeout_seconds: float,
        on_progress: Progress | None,
    ) -> dict[str, Any]:
        if "task" not in params:
            request = types.Request[dict[str, Any], str](method=method, params=params)
            answer = await client.send_request(
                request,
                _Result,
                request_read_timeout_seconds=timeout_seconds,
                progress_callback=on_progress,
            )
            return answer.root
        # The SDK expects a tool's result in answer, and rejects the task.
        options: CallOptions = {"timeout": timeout_seconds}
        if on_progress is not None:
            options["on_progress"] = on_progress
        return await self._send_raw(client, method, params, options)

    async def _send_raw(
        self, client: ClientSession, method: str, params: dict[str, Any], options: CallOptions
    ) -> dict[str, Any]:
        wire = self._wire
        assert wire is not None
        data: dict[str, Any] = {"method": method, "params": params}
        client._stamp(data, options)  # noqa: SLF001
        return await wire.send_raw_request(method, data["params"], options)

    async def watch(self, uri: str, authorization: str | None = None) -> None:
        if uri in self._listening.watched or not (self.capabilities.get("resources") or {}).get("subscribe"):
            return
        self._listening.watched.add(uri)
        try:
            if self.modern:
                await self.authorize(authorization)
                self._listening.renew()
            else:
                params, limit = {"uri": uri}, _WATCH_SECONDS
                await self.request(
                    "resources/subscribe", params, timeout_seconds=limit, authorization=authorization
                )
        except BaseException:
            self._listening.watched.discard(uri)
            raise

    async def unwatch(self, uri: str) -> None:
        if uri not in self._listening.watched:
            return
        self._listening.watched.discard(uri)
        if self.modern:
            self._listening.renew()
        else:
            await self.request("resources/unsubscribe", {"uri": uri}, timeout_seconds=_WATCH_SECONDS)

    def retire(self, *, end: bool) -> None:
        self._retired = end
        self._close_if_retired()

    async def close(self, *, end: bool) -> None:
        self._closing.set()
        # Shielded, because the caller may be cancelled.
        self._closer = asyncio.create_task(self._close(end=end))
        await asyncio.shield(self._closer)

    def _close_if_retired(self) -> None:
        if self._retired is not None and not self._requests and not self._closing.is_set():
            self._closing.set()
            self._closer = asyncio.create_task(self._close(end=self._retired))

    async def _close(self, *, end: bool) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})
        if end and self._goodbye is not None:
            await self._goodbye()
        self._on_gone(self)

    def _open(self) -> ClientSession:
        if self._client is None or self._ended.is_set() or self._closing.is_set():
            raise UpstreamAwayError("the connection is closed")
        return self._client

    async def _hold(self, ready: asyncio.Future[None], resume: str | None) -> None:
        seconds = self._spec.connect_seconds
        try:
            async with self._streams as (read, write):
                wire = self._wire = Wire(read, write, self._ended)
                async with ClientSession(
                    dispatcher=wire,
                    message_handler=self._listening.on_message,
                    logging_callback=self._on_log,
                    client_info=_CLIENT,
                    read_timeout_seconds=seconds,
                ) as client:
                    if not await self._unless_closed(negotiate(client, resume, seconds * _PROBE_SHARE)):
                        return
                    self._client = client
                    if not ready.done():
                        ready.set_result(None)
                    await self._unless_closed(self._live())
        except Exception as error:  # noqa: BLE001 - the SDK groups whatever its tasks raise
            if not ready.done():
                ready.set_exception(away(error))
        finally:
            self._ended.set()
            if not ready.done():
                ready.set_exception(UpstreamAwayError("the connection is closed"))

    async def _unless_closed(self, work: Awaitable[None]) -> bool:
        """Whether ``work`` completed before the session was lost or closed. Raises the exceptions of ``work``."""
        task = asyncio.ensure_future(work)
        closing, ended = (asyncio.create_task(event.wait()) for event in (self._closing, self._ended))
        try:
            await asyncio.wait({task, closing, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (task, closing, ended):
                each.cancel()
            await asyncio.wait({task})
        if task.cancelled():
            return False
        task.result()
        return True

    async def _page(self, kind: OfferKind, cursor: str | None) -> Page:
        client = self._open()
        params = {} if cursor is None else {"cursor": cursor}
        options: CallOptions = {"timeout": self._spec.connect_seconds}
        with port_errors():
            # The SDK's typed calls reject a page for one odd item of it.
            result = await self._send_raw(client, METHODS[kind], params, options)
            try:
                page = read_page(kind, client.protocol_version or types.LATEST_PROTOCOL_VERSION, result)
            except ValueError:
                raise UpstreamRefusedError(
                    types.INTERNAL_ERROR, f"its answer to {METHODS[kind]} has no list"
                ) from None
        if kind is OfferKind.TOOLS:
            _absorb(client, page, whole=cursor is None and page.cursor is None)
            if not self._runs_tasks:
                page.definitions = [_without_tasks(each) for each in page.definitions]
        return page

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Over HTTP a message comes with the answer that it belongs to. Else it belongs to the session's one caller, if any."""
        pending = PENDING.get()
        if pending is None and not self._spec.stateless and self._requests:
            pending = self._requests[-1]
        if pending is not None and pending.on_log is not None:
            pending.on_log(params.level, params.logger, params.data)

    async def _live(self) -> None:
        if self._has_listener and self.modern and reports_changes(self.capabilities):
            await self._listening.listen(self._open)
        await asyncio.Event().wait()


def _extending(
    limit: asyncio.Timeout, seconds: float, total_seconds: float, on_progress: Progress | None
) -> Progress | None:
    """``on_progress``, which also gives the request so many seconds more, up to its total."""
    if on_progress is None:
        return None
    loop = asyncio.get_running_loop()
    end = loop.time() + max(seconds, total_seconds)

    async def on_life(progress: float, total: float | None, message: str | None) -> None:
        # The last report may come after the answer.
        with suppress(RuntimeError):
            limit.reschedule(min(loop.time() + seconds, end))
        await on_progress(progress, total, message)

    return on_life


class _Result(RootModel[dict[str, Any]]):
    """A result with all its fields."""


class _Listed:
    """What was listed of one kind so far, within the upstream's bounds."""

    def __init__(self, kind: OfferKind, bounds: Bounds) -> None:
        self._kind = kind
        self._bounds = bounds
        self._definitions: dict[str, Definition] = {}
        self._size = 0
        self._odd: list[str] = []

    def add(self, page: Page) -> str | None:
        """What is missing if the page is over a bound; else None."""
        self._odd += page.odd
        for definition in page.definitions:
            name = str(definition[NAMES.get(self._kind, "name")])
            if name in self._definitions:
                continue
            self._size += len(json_text(definition).encode())
            if len(self._definitions) == self._bounds.list_items:
                return self.cut_by("list_items", self._bounds.list_items)
            if self._size > self._bounds.list_bytes:
                return self.cut_by("list_bytes", self._bounds.list_bytes)
            self._definitions[name] = definition
        return None

    def cut_by(self, bound: str, most: int) -> str:
        extent = f"only the first {len(self._definitions)}" if self._definitions else "none"
        return f"{extent} of its {self._kind} are listed: there is more than its {bound}, {most}"

    def listing(self, omission: str | None = None) -> Listing:
        reasons = [] if omission is None else [omission]
        if self._odd:
            more = f" and {len(self._odd) - _MOST_NAMES} more" if len(self._odd) > _MOST_NAMES else ""
            reasons.append(f"odd among its {self._kind}: {', '.join(self._odd[:_MOST_NAMES])}{more}")
        return Listing(tuple(self._definitions.values()), "; ".join(reasons) or None)


def _without_tasks(tool: Definition) -> Definition:
    return {name: value for name, value in tool.items() if name != "execution"}


def _absorb(client: ClientSession, page: Page, *, whole: bool) -> None:
    """Have the SDK record which arguments a tool wants as headers; a tool that it rejects for them is left out."""
    tools = types.ListToolsResult.model_validate({"tools": page.definitions})
    valid_names = {
        tool.name
        for tool in client._absorb_tool_listing(tools, complete=whole).tools  # noqa: SLF001
    }
    rejected = [each for each in page.definitions if each["name"] not in valid_names]
    page.odd += [f"{shown(each['name'])} (left out: its x-mcp-header is not valid)" for each in rejected]
    page.definitions = [each for each in page.definitions if each["name"] in valid_names]
