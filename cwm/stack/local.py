"""The engine of ``cwm up``: starts Valkey, LMCache's coordinator and server, and vLLM, in order, and keeps them running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn, Self

from cwm.background import cancel_and_wait
from cwm.stack import shm
from cwm.stack.child import Child
from cwm.stack.commands import VARIABLES, Commands, PartName
from cwm.stack.engine import StackEngine
from cwm.stack.environment import EngineEnvironment, Pins, Report, prepare_environment, tolerant
from cwm.stack.errors import StackError
from cwm.stack.health import Health, redis_answers
from cwm.stack.leftovers import life_lock, lmcache_arguments, socket_folder
from cwm.stack.locks import locked, storage_lock
from cwm.stack.logs import LogWatch, fresh_log
from cwm.stack.models import Model, prepare_model
from cwm.stack.part import Hooks, Part, Recipe
from cwm.stack.plan import StackPlan, plan_from_settings
from cwm.stack.ports import LOOPBACK, PortLostError, ReservedPorts, machine_locks
from cwm.stack.private_files import keyring, write_private_json
from cwm.stack.redis_url import RedisAddress
from cwm.stack.room import Room
from cwm.stack.runfile import RunFile
from cwm.stack.tool import ToolFailedError, run_tool

__all__ = ["LocalStack", "PartName", "StackError", "StackPlan", "plan_from_settings"]

_READY_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_CANCEL_AGAIN_SECONDS = 0.5
_SEGMENTS_EVERY = 20  # watches
_PORT_ATTEMPTS = 3


class LocalStack:
    """Local engines, one unless the plan has more, that run inside an ``async with``.

    Entering installs what is missing, starts all parts and returns when every engine answers; leaving stops
    them and removes their shared memory. Raises StackError. Use it only in the event loop that entered it. The URLs and the model
    are those of the first engine.
    """

    vllm_url: str
    lmcache_url: str
    coordinator_url: str
    redis_url: str
    model_name: str
    model_root: str
    engines: Sequence[StackEngine]

    def __init__(self, plan: StackPlan, *, report: Report) -> None:
        self.plan = plan
        self.chunk_size = plan.chunk_size
        self.storage_path = plan.storage_path
        self.ports = plan.ports
        self._report = tolerant(report)
        self._parts: dict[PartName, Part] = {}
        self._segments: dict[PartName, set[shm.Segment]] = {}
        self._no_reuse: dict[int, str] = {}
        self._health = Health()
        # In the folder that the next stack searches for leftovers, even if this stack's storage is temporary.
        self._runfile = RunFile(plan.home / "run" / f"{plan.key}.json")
        self._open = AsyncExitStack()

    @property
    def restarts(self) -> dict[str, int]:
        """Number of restarts of each part."""
        return {name: part.restarts for name, part in self._parts.items()}

    async def __aenter__(self) -> Self:
        try:
            await self._enter(self._open)
        except BaseException:
            # Undo everything and raise what made the start fail, even if the caller cancels meanwhile.
            await _to_its_end(self._open.aclose())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = await _to_its_end(self._open.aclose())
        if cancelled and error is None:
            raise asyncio.CancelledError

    async def _enter(self, undo: AsyncExitStack) -> None:
        undo.enter_context(storage_lock(self.plan.storage_path))
        await self._live(undo)
        await self._runfile.clear_leftovers(self._report)
        shm.unlink_lmcache_pools(self.plan.key)
        environment = await prepare_environment(
            self.plan.home, Pins.for_device(self.plan.device), self._report, self.plan.withheld
        )
        models = [
            await prepare_model(each.model, each.home, environment, self._report, each.withheld)
            for each in self.plan.engines
        ]
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            started = AsyncExitStack()
            undo.push_async_callback(started.aclose)
            try:
                await self._start_at_free_ports(environment, models, started)
            except PortLostError as error:
                if attempt == _PORT_ATTEMPTS:
                    raise
                self._report(f"{error} Starting again at other ports.")
                await started.aclose()
                self._parts.clear()
            else:
                return

    async def _start_at_free_ports(
        self, environment: EngineEnvironment, models: Sequence[Model], undo: AsyncExitStack
    ) -> None:
        locks = machine_locks(self.plan.home)
        keys = keyring(self.plan.storage_path)
        sockets = undo.enter_context(socket_folder(self.plan.home))
        engines: list[StackEngine] = []
        for plan, model in zip(self.plan.engines, models, strict=True):
            if engines:
                reserved = ReservedPorts.take(plan.ports, locks, first=engines[0].commands.ports)
            else:
                reserved = ReservedPorts.take(plan.ports, locks, plan.gateway_port, plan.gateway_host)
            undo.callback(reserved.end)
            commands = Commands(plan, environment, model, reserved.chosen, keys, sockets)
            await self._check(commands)
            engines.append(StackEngine(commands, reserved))
        self._describe(engines)
        await self._start(undo)

    async def wait_ready(self, timeout_seconds: float = 300) -> None:
        """Wait until every part answers and each vLLM, its LMCache and the coordinator are connected. Raises StackError."""
        waiting = asyncio.ensure_future(self._until_connected())
        failures = [part.failed for part in self._parts.values()]
        try:
            done, _ = await asyncio.wait(
                {waiting, *failures}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        for failure in done:
            failure.result()
        if not done:
            names = [name for name, part in self._parts.items() if not part.ready.is_set()]
            raise StackError(
                f"after {timeout_seconds:g} s not ready: {', '.join(names) or 'their connection'}."
            )

    async def kill(self, part: PartName) -> None:
        """Send SIGKILL to a part, as a crash would. It is started again; ``wait_ready`` waits for it."""
        await self._note_segments(part)
        self._own_part(part).kill()

    async def hold_down(self, part: PartName) -> None:
        """Send SIGKILL to a part and keep it down until ``let_up``, as an outage would."""
        await self._note_segments(part)
        self._own_part(part).hold_down()

    def let_up(self, part: PartName) -> None:
        """End the outage; ``wait_ready`` waits for the part."""
        self._own_part(part).let_up()

    def pids(self, part: PartName) -> list[int]:
        """The part's living processes; empty while it is down, or if this stack does not run it."""
        return self._own_part(part).pids() if part in self._parts else []

    async def run_until_failure(self) -> NoReturn:
        """Sleep while an engine runs. Raises StackError when a part of the last one, or one that all need, cannot be started again."""
        numbers = {engine.plan.number for engine in self.engines}
        failures = {part.failed: part for part in self._parts.values()}
        while True:
            done, _ = await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
            for failure in done:
                engine = failures.pop(failure).recipe.engine
                numbers.discard(engine)
                if not engine or not numbers:
                    failure.result()
                    raise StackError("a part of the local engine ended for good.")
                self._report(f"engine-{engine} stays away: {failure.exception()}")

    def _own_part(self, part: PartName) -> Part:
        if part not in self._parts:
            raise StackError(f"this stack runs no '{part}' of its own.")
        return self._parts[part]

    def no_reuse(self, engine: StackEngine) -> str:
        """Why this engine reuses no KV, as it said after its last start; empty where it does."""
        return self._no_reuse.get(engine.plan.number, "")

    def room(self, another: StackEngine | None = None) -> Room:
        """The guard of the disk tier of ``another`` engine, else of the first engine's, and of Valkey, if that is this stack's own.

        Each removes through its own LMCache server, so that Valkey is kept while one of them is there; they choose the same chunks.
        """
        plan, url = (another.plan, another.lmcache_url) if another else (self.plan, self.lmcache_url)
        return Room(
            self._redis if self.plan.redis is None else None,
            plan.kv_folder,
            plan.disk_gb,
            (self.coordinator_url, url),
            self._report,
            others=[each.kv_folder for each in self.plan.engines if each.number != plan.number],
        )

    async def _live(self, undo: AsyncExitStack) -> None:
        life = life_lock(self.plan.home, self.plan.key)
        await undo.enter_async_context(
            locked(
                life,
                lambda pid: self._report(
                    f"waiting for process {pid}, which is cleaning up after a killed one"
                ),
            )
        )
        undo.callback(life.unlink, missing_ok=True)

    async def _check(self, commands: Commands) -> None:
        """Report which parsers vLLM is going to use. Raises StackError for one that it does not have."""
        try:
            await run_tool(
                [*commands.vllm(), "--check"],
                fresh_log(self.plan.logs, commands.plan.own("parsers")),
                self._report,
                commands.vllm_variables(),
                self.plan.withheld,
            )
        except ToolFailedError as error:
            raise StackError(f"vLLM cannot be started: {' '.join(error.lines[-1:]) or error}.") from error

    def _describe(self, engines: Sequence[StackEngine]) -> None:
        self.engines, first = engines, engines[0]
        self.ports = first.commands.ports
        self.vllm_url, self.lmcache_url = first.vllm_url, first.lmcache_url
        self.coordinator_url = f"http://{LOOPBACK}:{self.ports.coordinator}"
        self.redis_url = self._redis.url()
        self.model_name, self.model_root = first.model_name, first.model_root

    @property
    def _redis(self) -> RedisAddress:
        return self.plan.redis or RedisAddress(LOOPBACK, self.ports.valkey)

    async def _start(self, undo: AsyncExitStack) -> None:
        for folder in ("valkey", "coordinator"):
            (self.plan.storage_path / folder).mkdir(parents=True, exist_ok=True)
        undo.push_async_callback(self._health.close)
        first, *others = self.engines
        facts = {**first.described(), "storage_path": str(self.storage_path)}
        facts["urls"]["coordinator"] = self.coordinator_url
        if others:
            facts["engines"] = {engine.name: engine.described() for engine in self.engines}
        self._runfile.begin(facts, self.plan.temporary)
        undo.callback(self._runfile.remove)
        undo.callback(shm.unlink_lmcache_pools, self.plan.key)
        undo.push_async_callback(self._all_cleared)
        if self.plan.redis and not await redis_answers(self.plan.redis):
            raise StackError(f"the Redis of CWM_REDIS_URL does not answer at {self.plan.redis}.")
        await self._start_parts(self._shared_recipes(first), first.reserved, undo)
        starts = [
            asyncio.create_task(self._start_parts(self._recipes(engine, undo), engine.reserved, undo))
            for engine in self.engines
        ]
        try:
            await asyncio.gather(*starts)
        finally:
            await cancel_and_wait(*starts)
        watcher = asyncio.create_task(self._watch(), name="watch the stack")
        undo.push_async_callback(_cancel, watcher)
        for room in (self.room(), *map(self.room, others)):
            undo.push_async_callback(_cancel, asyncio.create_task(room.keep(), name="keep room"))
        await self.wait_ready()

    async def _start_parts(
        self, recipes: Sequence[Recipe], reserved: ReservedPorts, undo: AsyncExitStack
    ) -> None:
        for recipe in recipes:
            try:
                await self._start_part(recipe, undo)
            except StackError as error:
                if lost := reserved.lost(*recipe.listeners):
                    ports = ", ".join(map(str, lost))
                    raise PortLostError(f"another program took port {ports} of {recipe.title}.") from error
                raise

    async def _start_part(self, recipe: Recipe, undo: AsyncExitStack) -> None:
        recipe = replace(recipe, withheld=self.plan.withheld)
        log = fresh_log(self.plan.logs, recipe.name)
        hooks = Hooks(self._report, self._part_started, self._note_segments, self._part_cleared)
        needs = [part for part in self._parts.values() if part.recipe.engine in {0, recipe.engine}]
        part = Part(recipe, needs, log, hooks)
        self._parts[recipe.name] = part
        # Parts stop in reverse order: vLLM first, Valkey last. Registered before the start, so that a cancelled
        # start is stopped too.
        undo.push_async_callback(part.stop)
        await part.start()

    def _shared_recipes(self, first: StackEngine) -> Sequence[Recipe]:
        """What all engines need."""
        commands, reserved, health = first.commands, first.reserved, self._health
        embedded = [
            Recipe(
                "valkey", "Valkey", commands.valkey(), VARIABLES,
                lambda: redis_answers(self._redis),
                start_seconds=120, stop_seconds=30, before_start=lambda: reserved.release("valkey"), port=self.ports.valkey, listeners=["valkey"],
            )
        ]  # fmt: skip
        return [
            *(embedded if self.plan.redis is None else []),
            Recipe(
                "coordinator", "LMCache's coordinator", commands.coordinator(), VARIABLES,
                lambda: health.responds(f"{self.coordinator_url}/healthz"),
                start_seconds=90, stop_seconds=10, before_start=lambda: reserved.release("coordinator"), port=self.ports.coordinator, listeners=["coordinator"],
            ),
        ]  # fmt: skip

    def _recipes(self, engine: StackEngine, undo: AsyncExitStack) -> Sequence[Recipe]:
        """An engine's own parts."""
        plan, commands, reserved, health = engine.plan, engine.commands, engine.reserved, self._health
        plan.kv_folder.mkdir(parents=True, exist_ok=True)
        lmcache, vllm = plan.own("lmcache"), plan.own("vllm")
        arguments = lmcache_arguments(self.plan.run_folder, self.plan.key, lmcache)
        write_private_json(arguments, commands.lmcache_arguments())
        undo.callback(arguments.unlink)
        which = f" of {engine.name}" if self.plan.others else ""
        return [
            Recipe(
                lmcache, f"LMCache{which}", commands.lmcache(arguments), commands.variables(),
                lambda: health.responds(f"{engine.lmcache_url}/healthcheck"),
                start_seconds=120, stop_seconds=15,
                before_start=lambda: reserved.release("lmcache", "lmcache_queue", "lmcache_metrics"),
                port=commands.ports.lmcache, listeners=["lmcache", "lmcache_queue", "lmcache_metrics"], engine=plan.number,
            ),
            Recipe(
                vllm, f"vLLM{which}", commands.vllm(), commands.vllm_variables(),
                lambda: health.responds(f"{engine.vllm_url}/health"),
                start_seconds=900, stop_seconds=20, before_start=lambda: reserved.release("vllm"), port=commands.ports.vllm, listeners=["vllm"],
                warm_up=lambda: self._warm_up(engine), engine=plan.number,
            ),
        ]  # fmt: skip

    def _part_started(self, name: PartName, child: Child) -> None:
        self._runfile.part_started(name, child.pid, child.started)

    async def _part_cleared(self, name: PartName) -> None:
        """Remove what a part left; what LMCache still reads of a dead vLLM goes when the part is cleared again."""
        self._segments[name] = await asyncio.to_thread(shm.unlink, self._segments.pop(name, set()))

    async def _all_cleared(self) -> None:
        for name in list(self._segments):
            await self._part_cleared(name)

    async def _note_segments(self, name: PartName) -> None:
        """Record the segments that a part has mapped now: after a SIGKILL nothing lists them."""
        mapped = await asyncio.to_thread(shm.mapped_by, self.pids(name))
        self._segments[name] = self._segments.get(name, set()) | mapped
        self._runfile.segments_seen(set().union(*self._segments.values()))

    async def _watch(self) -> None:
        logs = {name: LogWatch(part.log) for name, part in self._parts.items()}
        for count in range(1 << 62):
            await asyncio.sleep(_WATCH_SECONDS)
            if count % _SEGMENTS_EVERY == 0:
                for name in self._parts:
                    with suppress(OSError):
                        await self._note_segments(name)
            for name, log in logs.items():
                with suppress(OSError):  # a full disk or a removed log: try again next time
                    for line in log.errors():
                        self._report(f"{name}: {line}")

    async def _until_connected(self) -> None:
        while True:
            for part in self._parts.values():
                await part.ready.wait()
            if await self._connected():
                return
            await asyncio.sleep(_READY_POLL_SECONDS)

    async def _connected(self) -> bool:
        answer = [await part.recipe.answers() for part in self._parts.values()]
        return all(answer) and all([await self._is_connected(engine) for engine in self.engines])

    async def _warm_up(self, engine: StackEngine) -> None:
        reason = await self._health.warm_up(engine.vllm_url, engine.model_name, self.chunk_size)
        if reason and reason != self.no_reuse(engine):
            which = f"{engine.name}: " if self.plan.others else ""
            self._report(f"{which}{reason} Windows keep their tokens, a thaw computes their KV again.")
        self._no_reuse[engine.plan.number] = reason

    async def _is_connected(self, engine: StackEngine) -> bool:
        if not await self._health.instance_is_registered(self.coordinator_url, engine.plan.instance):
            return False
        # Where no KV is reused, vLLM never talks to LMCache.
        return bool(self.no_reuse(engine)) or (
            await self._health.vllm_is_attached(engine.lmcache_url) and await self._uses_lmcache(engine)
        )

    async def _uses_lmcache(self, engine: StackEngine) -> bool:
        if await self._health.vllm_has_asked(engine.lmcache_url):
            return True
        # vLLM may have died with LMCache during a store; its keeper then starts it again.
        with suppress(StackError):
            await self._warm_up(engine)
        return await self._health.vllm_has_asked(engine.lmcache_url)


async def _to_its_end(ending: Coroutine[Any, Any, None]) -> bool:
    """Await ``ending`` to its end even if the caller is cancelled; True if it was."""
    task, cancelled = asyncio.ensure_future(ending), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    return cancelled


async def _cancel(task: asyncio.Task[None]) -> None:
    while not task.done():  # a Redis client may swallow a cancellation while it connects
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_AGAIN_SECONDS)
