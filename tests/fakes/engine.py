"""vLLM in memory: a model whose next token follows from the tokens before it, with a prefix cache of its own."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from cwm.domain.errors import EngineConnectionError, EngineResponseError, InvalidParameterError
from cwm.domain.look import Look, numbered
from cwm.domain.prefix import TokenIds, pack
from cwm.domain.principal import Principal
from cwm.ports.engine import (
    Completion,
    Counters,
    Delta,
    ForwardedResponse,
    Generation,
    LookAnswer,
    ServedModel,
    SessionName,
)
from cwm.ports.kv_tier import PrefixKey
from tests.fakes.kv_tier import Copy, FakeKvTier, Name

VOCABULARY: Final = 2048
START, END = "<|im_start|>", "<|im_end|>"
_SPECIAL: Final = {START: 1, END: 2}
_BYTES_FROM: Final = 16
_NEW_FROM, _NEW = 300, 1500
_VERSION: Final = "0.32.0"
_GOLDEN: Final = 0.618034


@dataclass(slots=True)
class _Run:
    """What one request came to."""

    new: list[dict[int, float]]
    prompt_tokens: int
    cached: int
    loaded: int
    resting: int
    dropped: int | None

    @property
    def token_ids(self) -> TokenIds:
        return tuple(next(iter(likeliest)) for likeliest in self.new)


@dataclass(slots=True)
class FakeEngine:
    """``gate`` holds every answer back until it is set; ``breaks_after`` so many tokens a stream breaks off.

    ``health_gate`` holds back what it says of itself. Another ``fingerprint`` makes it another engine, and so do other ``weights``; without, it reports none. ``requests`` are all generations in their order.
    """

    kv_tier: FakeKvTier = field(default_factory=FakeKvTier)
    model: str = "tiny"
    root: str = "/models/tiny"
    adapters: dict[str, str] = field(default_factory=dict)
    """Names of LoRA adapters, and where they were loaded from."""
    fingerprint: str = "fp-1"
    weights: str | None = "w-1"
    generates: bool = True
    reports_paths: bool = True
    no_reuse: str = ""
    """Why it neither loads nor stores, nor has a prefix cache of its own."""
    starts: int = 1
    max_model_len: int = 8192
    template: str = "chatml"
    away: bool = False
    busy: tuple[float, float] = (0.0, 0.0)
    """Requests of others that run, and that wait."""
    health_gate: asyncio.Event | None = None
    calls: int = 0
    gate: asyncio.Event | None = None
    breaks_after: int | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[Generation] = field(default_factory=list)
    drops: bool = True
    """Whether it knows how to drop what it has of a prompt."""
    noise: float = 0.0
    """Nats by which what a look sees differs from look to look at most, at every place."""
    room: int | None = 1_000_000
    evicts_looks: bool = False
    """Whether it has evicted the context whenever it is looked at."""
    looks: int = 0
    _cached: dict[Name, Copy] = field(default_factory=dict)
    _resting: dict[Name, int] = field(default_factory=dict)
    """Chunks of its own cache that were loaded, or computed on top of such, and after how many chunks that load ends."""
    _before: dict[Name, Name] = field(default_factory=dict)
    """The chunk in front of each that it ever had."""
    _sources: Counter[str] = field(default_factory=Counter)
    _totals: Counter[str] = field(default_factory=Counter)

    def restart(self) -> None:
        """Its own prefix cache and its counters begin anew."""
        self.starts += 1
        for kept in (self._cached, self._resting, self._sources, self._totals):
            kept.clear()

    def names(self) -> tuple[str, ...]:
        return ("",)

    def on(self, _name: str) -> FakeEngine:
        return self

    async def models(self) -> list[ServedModel]:
        await self.health()
        adapters = [
            ServedModel(name, self.root, self.max_model_len, path) for name, path in self.adapters.items()
        ]
        return [ServedModel(self.model, self.root, self.max_model_len), *adapters]

    async def version(self) -> str:
        await self.health()
        return _VERSION

    async def paths(self) -> frozenset[str]:
        await self.health()
        served = {"/v1/completions"} if self.generates else {"/pooling", "/v1/embeddings"}
        return frozenset(served if self.reports_paths else ())

    async def health(self) -> None:
        self.calls += 1
        if self.health_gate is not None:
            await self.health_gate.wait()
        if self.away:
            raise EngineConnectionError("vLLM does not answer.")

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds:
        """A control token is one id wherever it stands, everything else an id a byte."""
        await self._serves(model)
        pieces = re.split(f"({'|'.join(map(re.escape, _SPECIAL))})", text)
        ids = ([_SPECIAL[p]] if p in _SPECIAL else [b + _BYTES_FROM for b in p.encode()] for p in pieces)
        return tuple(token for piece in ids for token in piece)

    async def render(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        asker: Principal | None = None,
    ) -> TokenIds:
        turns = [f"{START}{message['role']}\n{message['content']}{END}\n" for message in messages]
        tools = [f"{START}tools\n{json.dumps((options or {})['tools'])}{END}\n"] if options else []
        opening = [f"{START}assistant\n"] if add_generation_prompt else []
        return await self.tokenize(model, "".join([*tools, *turns, *opening]), add_special_tokens=False)

    async def rendered(self, path: str, body: bytes) -> TokenIds:
        request = json.loads(body)
        return await self.render(request["model"], request["messages"])

    async def special_tokens(self, model: str) -> frozenset[str]:
        await self._serves(model)
        return frozenset(_SPECIAL)

    async def require_tools(self, model: str, tools: Sequence[Mapping[str, Any]]) -> bool:
        await self._serves(model)
        return bool(tools)

    async def chat_template(self, model: str) -> str | None:
        await self._serves(model)
        return f"{self.template}: {START}"

    async def kv_dtype(self) -> str | None:
        await self.health()
        return "auto"

    async def started(self) -> str | None:
        await self.health()
        return str(self.starts)

    async def complete(self, generation: Generation) -> Completion:
        run = await self._run(generation)
        tells = generation.tell_loaded or generation.load_tokens is not None
        return Completion(
            text="".join(map(_text, run.token_ids)),
            token_ids=run.token_ids,
            finish_reason="length",
            prompt_tokens=run.prompt_tokens,
            cached_tokens=run.cached,
            fingerprint=self.fingerprint,
            loaded_tokens=run.loaded if tells else None,
            resting_tokens=run.resting if tells else None,
            dropped_blocks=run.dropped,
            weights=self.weights,
            top=tuple(run.new) if generation.sampling.get("logprobs") else (),
            no_reuse=self.no_reuse,
            block_size=self.kv_tier.chunk_size if self.no_reuse else None,
            world_size=1 if self.no_reuse else None,
        )

    async def look(
        self, generation: Generation, places: Sequence[int], probes: Sequence[int] = ()
    ) -> LookAnswer:
        if self.gate is not None:
            await self.gate.wait()
        await self._serves(generation.model)
        self.looks += 1
        top: list[dict[int, float]] = []
        cached, ids = 0, generation.token_ids
        context = ids[: places[-1] - 1]
        for prompt in (*(ids[:place] for place in places), *((*context, probe) for probe in probes)):
            part = replace(generation, token_ids=prompt, max_tokens=1)
            run = self._computed(replace(part, load_tokens=0, store_tokens=0))
            shift = self.noise * (self.looks * _GOLDEN % 1)
            top.append({token: value + shift for token, value in run.new[0].items()})
            cached = run.cached
        look = Look(numbered(places, probes), tuple(top))
        return LookAnswer(look, 0 if self.evicts_looks else cached)

    async def kv_room(self) -> int | None:
        await self.health()
        return self.room

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        run = await self._run(generation)
        for count, token in enumerate(run.token_ids):
            if count == self.breaks_after:
                raise EngineConnectionError("vLLM ended a stream before its end.")
            last = count == len(run.new) - 1
            yield Delta(_text(token), (token,), "length" if last else None)
        yield Delta(prompt_tokens=run.prompt_tokens, cached_tokens=run.cached)

    async def counters(self) -> Counters:
        await self.health()
        told = self._totals
        return Counters(
            dict(self._sources),
            told["asked"],
            told["hit"],
            told["asked outside"],
            told["hit outside"],
            *self.busy,
        )

    async def abort(self, generation_ids: Sequence[str]) -> bool:
        await self.health()
        return bool(generation_ids)

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AsyncIterator[ForwardedResponse]:
        await self.health()
        known = {("GET", "/version"): {"version": _VERSION}}.get((method, path))
        answer = {"detail": "Not Found"} if known is None else known
        yield _Forwarded(404 if known is None else 200, json.dumps(answer).encode())

    async def _serves(self, model: str) -> None:
        await self.health()
        if model not in {self.model, *self.adapters}:
            raise InvalidParameterError(f"The model `{model}` does not exist.", field="model", model=model)

    async def _run(self, generation: Generation) -> _Run:
        self.requests.append(generation)
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        await self._serves(generation.model)
        if not self.generates:
            raise EngineResponseError("vLLM answered 404 to /v1/completions.", status=404)
        self._refuse(generation)
        return self._computed(generation)

    def _computed(self, generation: Generation) -> _Run:
        ids, chunk = generation.token_ids, self.kv_tier.chunk_size
        names = self._names(ids, generation.cache_salt)
        self._before.update(zip(names[1:], names, strict=False))
        dropped = self._drop(names, generation.drop_after)
        local = _leading(name in self._cached for name in names[: (len(ids) - 1) // chunk])
        loaded = self._load(generation, names, local)
        held = local + loaded // chunk
        wrong = any(self._cached[name] is Copy.FORGED for name in names[:held])
        self._resting.update((name, at) for at, name in enumerate(names[local:held], local + 1))
        resting = max((self._resting.get(name, 0) for name in names[:held]), default=0)
        new: list[dict[int, float]] = []
        context = ids
        for _ in range(min(generation.max_tokens, self.max_model_len - len(ids))):
            new.append(_likeliest(context, wrong=wrong))
            context = (*context, next(iter(new[-1])))
        self._keep(generation, context[:-1], Copy.FORGED if wrong else Copy.SOUND, resting)
        # The last token is always computed.
        cached = min(held * chunk, len(ids) - 1)
        self._count(len(ids), local * chunk, cached - local * chunk)
        return _Run(new, len(ids), cached, loaded, resting * chunk, dropped)

    def _refuse(self, generation: Generation) -> None:
        ids, salt = generation.token_ids, generation.cache_salt
        if not ids or generation.max_tokens < 1 or len(ids) >= self.max_model_len:
            raise InvalidParameterError("max_tokens must be at least 1.", field="max_tokens")
        if max(ids) >= VOCABULARY:
            raise InvalidParameterError(f"Token id {max(ids)} is out of vocabulary")
        if not salt or len(salt) > 128 or set(salt) & set("@/\\\0"):
            raise InvalidParameterError("Parameter 'cache_salt' is wrong.", field="cache_salt")

    def _names(self, ids: TokenIds, salt: str) -> list[Name]:
        return self.kv_tier.names(PrefixKey(self.root, 1, ids, salt))

    def _load(self, generation: Generation, names: list[Name], local: int) -> int:
        """Tokens from LMCache behind the ``local`` chunks. What does not open has the whole load computed instead."""
        tier, prompt = self.kv_tier, len(generation.token_ids)
        if not tier.present or tier.away or self.no_reuse or self._expects_others(generation):
            return 0
        limit = prompt if generation.load_tokens is None else generation.load_tokens
        found = names[: _leading(tier.best(name) is not None for name in names[: limit // tier.chunk_size])]
        copies = {name: held[1] for name in found[local:] if (held := tier.best(name)) is not None}
        if broken := [name for name, copy in copies.items() if copy is Copy.BROKEN]:
            for name in broken:
                tier.discard_broken(name)
            return 0
        self._cached.update(copies)
        return max(0, len(found) - local) * tier.chunk_size

    def _drop(self, names: list[Name], after: int | None) -> int | None:
        """Also what was computed on top of the prompt's chunks."""
        if after is None or not self.drops:
            return None
        gone = set(names[after // self.kv_tier.chunk_size :])
        while above := {name for name in self._cached if self._before.get(name) in gone} - gone:
            gone |= above
        for name in gone:
            self._resting.pop(name, None)
        return sum(self._cached.pop(name, None) is not None for name in gone)

    def _keep(self, generation: Generation, ids: TokenIds, copy: Copy, resting: int) -> None:
        """The chunks that are full of KV: of the token that came last there is none yet. ``resting``: where the load ends that new ones rest on."""
        if self.no_reuse:
            return
        names = self._names(ids, generation.cache_salt)
        self._before.update(zip(names[1:], names, strict=False))
        for name in names:
            if name not in self._cached:
                self._cached[name] = copy
                if resting:
                    self._resting[name] = resting
        if self.kv_tier.present and not self.kv_tier.away and not self._expects_others(generation):
            limit = len(ids) if generation.store_tokens is None else generation.store_tokens
            offered = names[: limit // self.kv_tier.chunk_size]
            self.kv_tier.offer(self.root, {name: self._cached[name] for name in offered})

    def _expects_others(self, generation: Generation) -> bool:
        return bool(self.weights and generation.weights and generation.weights != self.weights)

    def _count(self, prompt: int, local: int, loaded: int) -> None:
        computed = prompt - local - loaded
        self._sources.update(local_compute=computed, local_cache_hit=local, external_kv_transfer=loaded)
        self._totals.update({"asked": prompt, "hit": local})
        self._totals.update({"asked outside": prompt - local, "hit outside": loaded})


@dataclass(slots=True)
class _Forwarded:
    status: int
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),)
    decision: str | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body


def _leading(held: Iterable[bool]) -> int:
    """How many are there before the first that is not."""
    return len(list(takewhile(bool, held)))


def _likeliest(context: TokenIds, *, wrong: bool) -> dict[int, float]:
    """The five likeliest tokens after a context, the likeliest first; others where its KV is another's."""
    seed = zlib.crc32(pack(context), int(wrong))
    return {_NEW_FROM + (seed + 211 * rank) % _NEW: -0.5 * (rank + 1) for rank in range(5)}


def _text(token: int) -> str:
    """Other ids come of it when it is tokenised."""
    return f" w{token}"
