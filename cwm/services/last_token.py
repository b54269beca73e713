"""The last token of a context, where it completes a chunk.

A turn ends with a token that was sampled and never computed. Where it completes a chunk, all of that chunk waits for
it: the next turn computes the whole chunk again, and a freeze before it would have to. So it is computed as
soon as the turn has ended, while nobody waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cwm.domain.errors import CwmError
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import PrefixKey
from cwm.services.aside import outlasting
from cwm.services.engine_directory import EngineDirectory
from cwm.services.prefix import Prefix


@dataclass(frozen=True, slots=True)
class LastToken:
    engine: Engine
    directory: EngineDirectory
    _computing: dict[PrefixKey, asyncio.Task[bool]] = field(default_factory=dict)

    def compute(self, context: Prefix) -> None:
        """Have the engine compute the last token of ``context`` in the background, where it completes a chunk."""
        if not context.ends_a_chunk or (key := context.key) in self._computing:
            return
        self._computing[key] = task = asyncio.create_task(self._ask(context))
        task.add_done_callback(lambda _: self._computing.pop(key))

    async def computed(self, context: Prefix) -> bool:
        """Whether that is being done for ``context`` and succeeds, once it has."""
        task = self._computing.get(context.key)
        return task is not None and await outlasting(task)

    async def settle(self) -> None:
        """Wait for what is being computed: a request that is dropped can kill the engine."""
        await asyncio.gather(*self._computing.values())

    async def _ask(self, context: Prefix) -> bool:
        try:
            answer = await self.engine.complete(context.request())
            self.directory.confirm(context.identity, answer.fingerprint)
        except CwmError:
            return False
        return True
