"""The whole way of an agent: a task, and everything that may come between a person and the end of a conversation."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cli.command import cwm
from tests.live.agents.house import predicted
from tests.live.agents.programs import NOTES, Place, place
from tests.live.agents.whole.agents import COPY, Run, Whole
from tests.live.agents.whole.stage import Scene, Stage, Trap, staged
from tests.live.conftest import LiveGateway, served
from tests.live.cutter import Cutter, wires
from tests.live.engine import LiveEngine
from tests.live.talk import Talk, talk
from tests.node.programs import free_port

CODE: Final = "4712"
_BLOCK: Final = 64
_TENANT: Final = "acme"


@dataclass(frozen=True, slots=True)
class Scenes:
    """What a person says, and what the model is made to do then."""

    task: Scene
    resumed: Scene
    tomorrow: Scene
    gateway: Scene
    engine: Scene
    after: Scene
    refused: Scene

    @property
    def all(self) -> list[Scene]:
        return [getattr(self, name) for name in self.__slots__]


def scenes(agent: Whole, work: Path) -> Scenes:
    notes = str(work / NOTES)
    calls = (
        agent.read(notes),
        agent.edit(notes, "4711", CODE),
        agent.command(f"cp {NOTES} {COPY}"),
    )
    story = " ".join(f"Door {number} was opened again." for number in range(1, 13))
    return Scenes(
        Scene("Please change the code of the door.", f"The code of the door is {CODE} now.", calls),
        Scene("Which code is in the notes now?", "It is the one that you wanted."),
        Scene("Is that still the code today?", "It is still that code."),
        Scene(
            "Please write down that you were here.",
            "That is written down.",
            (agent.command("echo here >> log.txt"),),
        ),
        Scene("Please tell me about all doors.", story),
        Scene("What have we done so far?", "We have changed the code of the door."),
        Scene("Are you there?", "Yes, all is well here."),
    )


@dataclass(slots=True)
class Way:
    """An agent at a gateway that asks for keys, with an engine that may go."""

    agent: Whole
    place: Place
    stage: Stage
    wire: Cutter
    engine: LiveEngine
    scenes: Scenes
    database: Path
    config: Path
    port: int
    gateway: LiveGateway | None = None
    _running: ExitStack = field(default_factory=ExitStack)

    async def start(self) -> None:
        def start() -> LiveGateway:
            variables = {
                "CWM_PORT": str(self.port),
                "CWM_VLLM_URL": self.wire.url,
                "CWM_API_KEYS": "true",
                "CWM_CONFIG": str(self.config),
            }
            return self._running.enter_context(served(self.engine, self.database, _TENANT, **variables))

        self.gateway = await asyncio.to_thread(start)

    async def lose_gateway(self) -> None:
        """SIGKILL; another one is there at the same address as soon as it can be."""
        assert self.gateway is not None
        os.kill(self.gateway.pid, signal.SIGKILL)
        await asyncio.to_thread(self._running.close)
        await self.start()

    async def lose_engine(self) -> None:
        await asyncio.to_thread(self.engine.kill, "vllm")

    async def stop(self) -> None:
        await asyncio.to_thread(self._running.close)

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[Talk]:
        assert self.gateway is not None
        async with talk(self.gateway.url, self.gateway.model, key=self.place.key) as own:
            yield own

    async def say(self, scene: Scene, **more: Any) -> Run:
        return await self.agent.run(self.place, scene.words, **more)

    async def turns(self) -> list[dict[str, Any]]:
        """Those of the conversation, in the order in which they were asked. It is one session."""
        async with self.talk() as own:
            sessions = [each["id"] for each in (await own.tool("session_list"))["sessions"]]
            logs = [(await own.tool("turn_log", session_id=each, limit=200))["turns"] for each in sessions]
        lines = [[turn for turn in log if turn.get("line") == "main"] for log in logs]
        conversations = [line for line in lines if line]
        assert len(conversations) == 1, conversations
        return conversations[0][::-1]

    async def after(self, scene: Scene, **more: Any) -> tuple[Run, dict[str, Any]]:
        """What it printed, and the first turn of the main line that came of it."""
        before = len(await self.turns())
        run = await self.say(scene, **more)
        return run, (await self.turns())[before]

    async def with_trap(self, scene: Scene, results: int, *, engine: bool) -> Run:
        trap = Trap(scene, results, self.lose_engine if engine else self.lose_gateway)
        self.stage.trap = trap
        run = await self.say(scene)
        assert trap.sprung is not None, f"The answer did not come to its middle: {run.text[-2000:]}"
        await trap.sprung
        if engine:
            await asyncio.to_thread(self.engine.wait_ready)
        return run


@asynccontextmanager
async def way_of(agent: Whole, engine: LiveEngine, folder: Path) -> AsyncIterator[Way]:
    work = folder / "work"
    all_scenes = scenes(agent, work)
    key = cwm(folder, "keys", "create", "coder", "--scope", "agent", "--tenant", _TENANT).stdout.strip()
    async with staged(engine.vllm_url, all_scenes.all) as stage, wires(stage.url, count=1) as (_, (wire,)):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        here = place(folder, url, engine.model_name, key=key, context_tokens=engine.max_model_len)
        config = folder / "cwm.yaml"
        # With keys CWM records of itself only what names its conversation.
        config.write_text("capture: {mode: all}\n")

        def cut() -> None:
            wire.cut()
            wire.gone = False

        stage.on_lost = cut
        way = Way(agent, here, stage, wire, engine, all_scenes, folder / "cwm.db", config, port)
        await way.start()
        try:
            await agent.connect(here)
            yield way
        finally:
            agent.leave(here)
            await way.stop()


def reuse(turn: dict[str, Any], turns: list[dict[str, Any]]) -> str:
    """How much of the conversation was not computed again, and what it is that the client wrote anew."""
    parent = next((each for each in turns if each["id"] == turn.get("parent")), None)
    whole = min(parent["token_count"] if parent else 0, turn["prompt_tokens"] - 1) // _BLOCK * _BLOCK
    cached = turn["cached_tokens"]
    assert cached >= predicted(turn) > 0, turn
    if cached >= whole:
        return f"all {whole:,}"
    why = turn.get("habit") or turn.get("cause") or turn.get("missed") or "unnamed"
    return f"{cached:,} of {whole:,}: `{why}`"
