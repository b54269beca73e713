"""The steps of the whole way. Each says, for the table of docs/clients.md, what it saw; AssertionError where CWM did not hold what it promises."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from tests.live.agents.programs import NOTES
from tests.live.agents.whole.agents import COPY, Run
from tests.live.agents.whole.stage import FEW_WORDS, Scene
from tests.live.agents.whole.way import CODE, Way, reuse

_WRONG_KEY: Final = "cwm_0123456789abcdef_0123456789abcdef0123456789abcdef"
_PATIENCE_SECONDS: Final = 60
_WORDS: Final = 90
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# What some print in each run.
_NOISE: Final = re.compile(
    r"Ripgrep not available|Warning: running headless|\[claude-code:unrecognized_model\]"
)
_UNTOLD: Final = re.compile(r"cwm_\w+|req(uest)?[-_ ]?id\S*|https?://\S+|/\S*/\S+", re.IGNORECASE)


async def task(way: Way) -> str:
    """It reads a file, edits it, runs a command and answers."""
    scene = way.scenes.task
    run = await way.say(scene, resumed=False)
    _whole(run, scene)
    notes, copy = (way.place.work / name for name in (NOTES, COPY))
    assert CODE in notes.read_text(), run.text
    assert copy.read_text() == notes.read_text()
    turns = await way.turns()
    assert len(turns) == len(scene.calls) + 1
    return f"{len(turns)} turns, {turns[-1]['token_count']:,} tokens"


async def resumed(way: Way) -> str:
    return await _reused(way, way.scenes.resumed)


async def tomorrow(way: Way) -> str:
    return await _reused(way, way.scenes.tomorrow, tomorrow=True)


async def lost_gateway(way: Way) -> str:
    return await _lost(way, way.scenes.gateway, 1, engine=False)


async def lost_engine(way: Way) -> str:
    return await _lost(way, way.scenes.engine, 0, engine=True)


async def wrong_key(way: Way) -> str:
    """The person who made the mistake is told so, soon."""
    right = way.place
    way.place = replace(right, key=_WRONG_KEY)
    try:
        await way.agent.connect(way.place)
        run = await way.say(way.scenes.refused, seconds=_PATIENCE_SECONDS)
    finally:
        way.place = right
        await way.agent.connect(right)
    return _given_up(run, way.scenes.refused)


async def dead_engine(way: Way) -> str:
    way.wire.cut()
    try:
        run = await way.say(way.scenes.refused, seconds=_PATIENCE_SECONDS)
    finally:
        way.wire.gone = False
    return _given_up(run, way.scenes.refused)


STEPS: Final[dict[str, Callable[[Way], Awaitable[str]]]] = {
    "task": task,
    "resumed": resumed,
    "on the next day": tomorrow,
    "gateway killed": lost_gateway,
    "engine killed": lost_engine,
    "wrong key": wrong_key,
    "dead engine": dead_engine,
}
"""By the column of the table, in the order in which they are taken."""
NEW: Final = frozenset({"task", "wrong key", "dead engine"})
"""Those that an agent can take that does not resume a conversation."""


async def _reused(way: Way, scene: Scene, **more: Any) -> str:
    run, turn = await way.after(scene, **more)
    _whole(run, scene)
    return reuse(turn, await way.turns())


async def _lost(way: Way, scene: Scene, results: int, *, engine: bool) -> str:
    run = await way.with_trap(scene, results, engine=engine)
    if run.code == 0 and (_has(run, scene) or FEW_WORDS in _plain(run.text)):
        await way.turns()
        return f"goes on by itself, {run.seconds:.0f} s"
    later, _ = await way.after(way.scenes.after)
    _whole(later, way.scenes.after)
    return f"ends after {run.seconds:.0f} s: {_words(run)}; goes on when it is resumed"


def _whole(run: Run, scene: Scene) -> None:
    assert run.code == 0, run
    assert _has(run, scene), run


def _has(run: Run, scene: Scene) -> bool:
    return _plain(scene.answer) in _plain(run.text)


def _plain(text: str) -> str:
    return " ".join(_ESCAPES.sub("", text).split())


def _given_up(run: Run, scene: Scene) -> str:
    assert not _has(run, scene), run
    if run.code is None:
        return f"waits for more than {run.seconds:.0f} s"
    return f"{run.seconds:.0f} s: {_words(run)}"


def _words(run: Run) -> str:
    """The line that says what is wrong, without ids and addresses."""
    lines = [" ".join(line.split()) for line in _ESCAPES.sub("", run.text).splitlines() if line.strip()]
    lines = [line for line in lines if not _NOISE.search(line)]
    telling = [
        line for line in lines if re.search(r"error|CWM-|key|refused|unavailable|fail", line, re.IGNORECASE)
    ]
    line = _UNTOLD.sub("…", (telling or lines or ["nothing"])[-1]).replace("|", "/").replace("`", "'")
    return f'"{line[:_WORDS]}{"…" if len(line) > _WORDS else ""}"'
