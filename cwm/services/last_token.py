"""The last token of a context, where it completes a chunk.

A turn ends with a token that was sampled and never computed. Where it completes a chunk, all of that chunk waits for
it: the next turn computes the whole chunk again, and a freeze before it would have to. So it is computed as
soon as the turn has ended, while nobody waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.errors import CwmError
from cwm.domain.prefix import digest
from cwm.ports.engine import Engine
from cwm.services.aside import outlasting
from cwm.services.engine_directory import EngineDirectory
from cwm.services.prefix import Prefix

_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True)
class LastToken:
    """What was computed is remembered for the last contexts only: an engine forgets too, and a freeze proves."""

    engine: Engine
    directory: EngineDirectory
    _computing: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    def compute(self, context: Prefix) -> None:
        """Have the engine compute the last token of ``context`` in the background, where it completes a chunk."""
        if not context.ends_a_chunk or (name := _name(context)) in self._computing:
            return
        while len(self._computing) >= _REMEMBERED and next(iter(self._computing.values())).done():
            del self._computing[next(iter(self._computing))]
        self._computing[name] = asyncio.create_task(self._ask(name, context))

    async def computed(self, context: Prefix) -> bool:
        """Whether that was done for ``context``; waits where it is being done."""
        task = self._computing.get(_name(context))
        return task is not None and await outlasting(task)

    async def settle(self) -> None:
        """Wait for what is being computed: a request that is dropped can kill the engine."""
        await asyncio.gather(*self._computing.values())

    async def _ask(self, name: str, context: Prefix) -> bool:
        try:
            answer = await self.engine.complete(context.request())
            self.directory.confirm(context.identity, answer.fingerprint)
        except CwmError:
            del self._computing[name]
            return False
        return True


def _name(context: Prefix) -> str:
    return f"{context.cache_salt}/{digest(context.token_ids)}"
