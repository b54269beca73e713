"""The steps of ``cwm demo``, on a real engine.

The thawed continuation must be compared with one from KV that was never stored and restored. So before the freeze,
the live engine answers the follow-up: the same token ids that the thawed session will send, under the session's own
salt, decoded greedily from the KV that this vLLM computed while the agent was reading. vLLM's own counters prove
that none of it came out of LMCache. A second session thawed on the live engine would not do, because its KV might
have been restored. What this answer stored is deleted before the kill, so that the thaw finds the window and
nothing more.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from cwm.cli.demo.outcome import Continuation, DemoResult
from cwm.cli.demo.text import FOLLOW_UP, MODULES, Narrator, cut, reading, source_of
from cwm.cli.gateway.client import call_tool
from cwm.cli.terminal.wording import count
from cwm.domain.notation import size
from cwm.domain.prefix import TokenIds, restorable_tokens, stored_chunks
from cwm.ports.engine import Generation
from cwm.services.kv.prefix import Prefix
from cwm.services.turns.recording.grow import Grow, template_from
from cwm.stack.errors import StackError

if TYPE_CHECKING:
    from cwm.cli.demo.gateway import RunningGateway
    from cwm.domain.engine import EngineIdentity
    from cwm.domain.session import Session
    from cwm.stack.local import LocalStack, PartName

_GREEDY: Final = {"temperature": 0.0}
_ANSWER_TOKENS: Final = 40
_FOLLOW_UP_TOKENS: Final = 48
_QUESTION_TOKENS: Final = 64
_EXTERNAL: Final = "external_kv_transfer"
_LONG_PREFILL_SECONDS: Final = 5.0
_REMAINING_COPIES: Final[dict[tuple[str, ...], str]] = {
    ("vllm",): "LMCache's memory still holds the context",
    ("lmcache",): "vLLM's own cache still holds the context",
}


@dataclass(slots=True)
class Story:
    stack: LocalStack
    gateway: RunningGateway
    narrator: Narrator
    killed: tuple[PartName, ...]
    wanted_tokens: int

    async def tell(self) -> DemoResult:
        parts = self.gateway.parts
        identity = await parts.engine_side.directory.identity()
        if identity.no_reuse:
            raise StackError(
                f"{identity.no_reuse} The demo shows how KV is restored, and there is none here."
            )
        session_id = await self._read(identity)
        session, window_ids = await self._recorded(session_id)
        reference = await self._uninterrupted(identity, session, window_ids)
        frozen = await self._freeze(session_id)
        await self._forget_beyond(identity, session, window_ids, reference)
        restarted, restart_ms = await self._kill()
        thawed = await self._thaw(frozen["window_name"])
        continuation = await self._follow_up(thawed["session_id"])
        cold_ms = await self._cold(identity, window_ids)
        receipt = thawed["receipt"]
        return DemoResult(
            model=identity.model,
            killed=self.killed,
            restarted=restarted,
            dtype=self.stack.plan.dtype,
            tokens=len(window_ids),
            chunk_size=identity.chunk_size or 0,
            chunks=frozen["block_count"],
            bytes=frozen["total_size_bytes"],
            durable=await self._durable(frozen["window_name"]),
            freeze_ms=frozen["freeze_time_ms"],
            restart_ms=restart_ms,
            thaw_ms=thawed["restoration_time_ms"],
            verification=thawed["verification"],
            verify_ms=round(receipt["verification"]["verify_ms"]),
            cold_prefill_ms=cold_ms,
            tokens_restored=receipt["tokens_restored"],
            tokens_recomputed=receipt["tokens_recomputed"],
            whole_chunk_tokens=restorable_tokens(len(window_ids), identity.chunk_size or 1),
            tiers=dict(receipt["tokens_by_tier"]),
            reference=reference,
            continuation=continuation,
        )

    async def _read(self, identity: EngineIdentity) -> str:
        """Grow a session to about the wanted number of tokens, one module of the standard library per turn."""
        self.narrator.step("An agent reads, through the gateway (session_create, session_generate)")
        room = identity.max_model_len - _FOLLOW_UP_TOKENS - 2 * _QUESTION_TOKENS
        target = min(self.wanted_tokens, room)
        session: str = (await self._tool("session_create", model=identity.model))["session_id"]
        token_count = 0
        for index, module in enumerate(MODULES):
            budget = (target - token_count) // (len(MODULES) - index) - _ANSWER_TOKENS - _QUESTION_TOKENS
            message = reading(module, await self._passage(identity.model, module, max(budget, 16)))
            with self.narrator.working(f"reading {module}.py"):
                turn = await self._generate(session, message, _ANSWER_TOKENS)
            token_count = turn["token_count"]
            self.narrator.line(
                f"{module}.py: {count(token_count, 'token')} in the session; of {turn['prompt_tokens']:,} sent, "
                f"the engine had {turn['cached_tokens']:,} cached"
            )
            self.narrator.quote(turn["text"])
        return session

    async def _passage(self, model: str, module: str, budget: int) -> str:
        source = source_of(module)
        ids = await self.gateway.parts.engine_side.engine.tokenize(model, source, add_special_tokens=False)
        return cut(source, budget / len(ids))

    async def _uninterrupted(
        self, identity: EngineIdentity, session: Session, window_ids: TokenIds
    ) -> Continuation:
        self.narrator.step("The uninterrupted run: the live engine goes on before anything is frozen")
        engine = self.gateway.parts.engine_side.engine
        prompt = window_ids + await Grow(engine).following(
            identity.model,
            [_user(FOLLOW_UP)],
            template_from(session.metadata),
            window_ids[-1],
        )
        before = (await engine.counters()).prompt_tokens_by_source
        answer = await engine.complete(
            Generation(identity.model, prompt, self._salt(identity, session), _FOLLOW_UP_TOKENS, _GREEDY)
        )
        after = (await engine.counters()).prompt_tokens_by_source
        from_store = round(after.get(_EXTERNAL, 0) - before.get(_EXTERNAL, 0))
        self.narrator.line(f"asked: {FOLLOW_UP}")
        self.narrator.quote(answer.text)
        return Continuation(prompt, answer.token_ids, answer.text, answer.cached_tokens, from_store)

    async def _freeze(self, session_id: str) -> dict[str, Any]:
        name = "what-the-agent-read"
        self.narrator.step(f"Freeze as '{name}' (window_freeze)")
        frozen = await self._tool("window_freeze", session_id=session_id, window_name=name)
        self.narrator.line(
            f"{count(frozen['token_count'], 'token')}, {count(frozen['block_count'], 'chunk')}, "
            f"{size(frozen['total_size_bytes'])}: stored and read back in {frozen['freeze_time_ms']:,} ms"
        )
        return frozen

    async def _forget_beyond(
        self, identity: EngineIdentity, session: Session, window_ids: TokenIds, reference: Continuation
    ) -> None:
        """Delete from every tier the chunks that the uninterrupted run stored after the window's."""
        kv_tier = self.gateway.parts.engine_side.kv_tier
        longer = Prefix(
            reference.prompt_ids + reference.token_ids, self._salt(identity, session), identity
        ).key
        beyond = stored_chunks(len(window_ids), identity.chunk_size or 1)
        await kv_tier.delete(longer, (kv_tier.expected_hashes(longer) or [])[beyond:])

    async def _kill(self) -> tuple[tuple[str, ...], int]:
        self.narrator.step(f"SIGKILL: {' and '.join(self.killed)}")
        before = self.stack.restarts
        started = time.perf_counter()
        pids = [pid for part in self.killed for pid in self.stack.pids(part)]
        for part in self.killed:
            await self.stack.kill(part)
        copies = _REMAINING_COPIES.get(self.killed, "no memory of the context is left")
        self.narrator.line(f"killed {count(len(pids), 'process', 'processes')}: {copies}")
        with self.narrator.working("waiting for the engine to come back"):
            await self.stack.wait_ready(600)
        after = self.stack.restarts
        return tuple(part for part in after if after[part] > before[part]), _ms_since(started)

    async def _thaw(self, name: str) -> dict[str, Any]:
        self.narrator.step("Thaw (window_thaw)")
        thawed = await self._tool("window_thaw", window_name=name)
        receipt = thawed["receipt"]
        self.narrator.line(
            f"{count(receipt['tokens_restored'], 'token')} restored, {receipt['tokens_recomputed']:,} recomputed "
            f"(the tail behind the last chunk), in {thawed['restoration_time_ms']:,} ms"
        )
        evidence = receipt["verification"]
        self.narrator.line(
            f"what the model expects next at {count(evidence['tokens_compared'], 'place')}, compared with the freeze: "
            f"{thawed['verification']}"
        )
        return thawed

    async def _follow_up(self, session_id: str) -> Continuation:
        turn = await self._generate(session_id, FOLLOW_UP, _FOLLOW_UP_TOKENS)
        _, ids = await self._recorded(session_id)
        split = turn["prompt_tokens"]
        self.narrator.line("the same question again:")
        self.narrator.quote(turn["text"])
        return Continuation(ids[:split], ids[split:], turn["text"], turn["cached_tokens"])

    async def _cold(self, identity: EngineIdentity, window_ids: TokenIds) -> int:
        """Prefill time under salts without stored KV: the median of up to three runs, or fewer if they take long."""
        self.narrator.step("Without CWM: the engine computes the same context again")
        times: list[int] = []
        with self.narrator.working("cold prefill"):
            while len(times) < 3 and sum(times) < _LONG_PREFILL_SECONDS * 1000:
                times.append(await self._prefill(identity, window_ids))
        self.narrator.line(f"{statistics.median(times):,.0f} ms (median of {len(times)})")
        return round(statistics.median(times))

    async def _prefill(self, identity: EngineIdentity, window_ids: TokenIds) -> int:
        prefix = Prefix(window_ids, f"cwm1-demo-{uuid4().hex}", identity)
        started = time.perf_counter()
        await self.gateway.parts.engine_side.engine.complete(prefix.request())
        return _ms_since(started)

    async def _durable(self, name: str) -> bool:
        status = await self._tool("window_status", window_name=name)
        return bool(status["durability"] == "durable")

    async def _recorded(self, session_id: str) -> tuple[Session, TokenIds]:
        """The session and its exact token ids, from the gateway's own registry."""
        parts = self.gateway.parts
        principal = await parts.base.access.identity.authenticate({})
        session = await parts.base.registry.session(principal.tenant, session_id)
        if session is None:
            raise LookupError(f"the gateway forgot session {session_id}")
        return session, await parts.base.registry.session_tokens(principal.tenant, session_id)

    def _salt(self, identity: EngineIdentity, session: Session) -> str:
        return self.gateway.parts.engine_side.directory.salt(session.tenant, session.salt_scope, identity)

    async def _generate(self, session_id: str, message: str, max_tokens: int) -> dict[str, Any]:
        return await self._tool(
            "session_generate",
            session_id=session_id,
            messages=[_user(message)],
            max_tokens=max_tokens,
            **_GREEDY,
        )

    async def _tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await call_tool(self.gateway.url, name, arguments)
        return answer


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _ms_since(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
