"""The inference engine, or several of them.

Errors: CWM-5001 when it cannot be reached, CWM-6001 when it does not answer in time, CWM-5002 when its response is
invalid, CWM-1003 when it rejects the content of the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from cwm.domain.look import Look
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal

SessionName: TypeAlias = tuple[str, str]
"""The tenant and the id of a session."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``id`` is the name that requests use, ``root`` the path that it was loaded from; ``max_model_len`` in tokens.

    Of a LoRA adapter ``root`` is that of the model that it changes, and ``adapter`` the path that it was loaded from itself.
    """

    id: str
    root: str
    max_model_len: int
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """A completion request in token ids. ``sampling`` holds further fields of the completions API, passed on unchanged.

    ``load_tokens`` and ``store_tokens`` limit how many tokens are loaded from and stored in the cache beside the
    engine, in whole chunks; None for no limit. ``tell_loaded`` requests ``Completion.loaded_tokens`` and ``resting_tokens``. ``drop_after``: before it is
    served, the engine drops this prompt's KV from its own cache, from the block with this token on, with whatever was computed on top of it. ``weights`` is the
    digest of the deployment, or of the weights, that the request expects: another engine neither loads nor stores. An engine that does
    not know these fields ignores them. ``engine`` names the engine that is asked; empty for any that serves the model. ``session`` is told to a router
    that stands in for several engines.
    """

    model: str
    token_ids: TokenIds
    cache_salt: str
    max_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    load_tokens: int | None = None
    store_tokens: int | None = None
    tell_loaded: bool = False
    drop_after: int | None = None
    weights: str = ""
    engine: str = ""
    session: SessionName | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of a completion. ``token_ids`` are the new tokens, including the one that stopped generation.

    ``fingerprint`` is the digest of the engine's deployment if it reports one, else its own fingerprint.
    ``cached_tokens`` counts prompt tokens that were not computed (the engine's own count). ``ttft_ms`` is None when
    the engine does not report it. ``loaded_tokens`` counts those of the cached tokens that came from the cache
    beside the engine; it is None unless the request set ``tell_loaded`` or ``load_tokens`` and the engine supports
    these. ``resting_tokens``, told with them: where the last load ends, in tokens, that the prompt's KV rests on, this request's or an earlier
    one's; 0 if all was computed since the engine started. ``dropped_blocks`` is what ``drop_after`` dropped; None when the engine does
    not say. ``weights`` is the engine's digest of the weights it loaded; None when it does not report it. ``no_reuse`` is a sentence that says why
    the engine neither stores nor loads KV, empty where it does or does not say; such an engine is attached to no cache, and says itself
    what that reports of others: ``block_size`` in tokens, and ``world_size``. ``top`` has, for each new token, the log-probabilities of the likeliest tokens by id, if the request
    asked for ``logprobs``.
    """

    text: str
    token_ids: TokenIds
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    fingerprint: str | None
    ttft_ms: float | None = None
    loaded_tokens: int | None = None
    resting_tokens: int | None = None
    dropped_blocks: int | None = None
    weights: str | None = None
    top: tuple[Mapping[int, float], ...] = ()
    no_reuse: str = ""
    block_size: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class LookAnswer:
    """A look, and how many tokens of its longest prefix the engine had in its own cache: as many as that prefix without its last token, if it had evicted nothing."""

    look: Look
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed completion. The last one carries the finish reason and the usage. ``decision``: what a router says that it chose."""

    text: str = ""
    token_ids: TokenIds = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals in tokens since the engine started, and the numbers of requests that run and that wait now.

    ``prompt_tokens_by_source`` uses the engine's own names of sources.
    """

    prompt_tokens_by_source: Mapping[str, float]
    prefix_queries: float
    prefix_hits: float
    external_queries: float
    external_hits: float
    requests_running: float
    requests_waiting: float = 0.0


class ForwardedResponse(Protocol):
    """The engine's response to a forwarded request, as it arrives. ``decision``: what a router says that it chose."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    decision: str | None

    def chunks(self) -> AsyncIterator[bytes]: ...


class Engine(Protocol):
    """One engine, or several engines: then a request goes to the one that it names, else to one that serves its model.

    What is asked of no model is asked of all: the models of all are served, and the engine is healthy while one of them is.
    """

    def names(self) -> tuple[str, ...]:
        """The names of the engines, in their order."""

    def on(self, name: str) -> Engine:
        """The engine of this name; the whole for an empty one. CWM-5001 for a name that is not in the directory."""

    async def models(self) -> list[ServedModel]: ...

    async def version(self) -> str: ...

    async def paths(self) -> frozenset[str]:
        """The paths of its API, which tell what its models are for; empty when the engine does not report them."""

    async def health(self) -> None:
        """Raise unless the engine reports that it is healthy. Its cache is not covered."""

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds: ...

    async def render(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        asker: Principal | None = None,
    ) -> TokenIds:
        """Token ids of a chat, rendered with the model's own template; ``options`` such as tools are passed through.

        ``asker``: who sent the messages.
        """

    async def rendered(self, path: str, body: bytes) -> TokenIds:
        """Token ids of the prompt that a request with this ``body`` to ``path`` has."""

    async def special_tokens(self, model: str) -> frozenset[str]:
        """The strings that the tokenizer turns into control tokens; empty when the engine does not report them."""

    async def require_tools(self, model: str, tools: Sequence[Mapping[str, Any]]) -> bool:
        """CWM-1003 with the engine's words if it refuses chats with ``tools``; False when it does not say."""

    async def chat_template(self, model: str) -> str | None:
        """The source of the model's chat template; None when the engine does not report it."""

    async def kv_dtype(self) -> str | None:
        """The configured data type of KV (``auto``: the model's own); None when the engine does not report it."""

    async def started(self) -> str | None:
        """When the engine's process started, as text that differs for each start; None when it is not reported."""

    async def complete(self, generation: Generation) -> Completion: ...

    async def look(
        self, generation: Generation, places: Sequence[int], probes: Sequence[int] = ()
    ) -> LookAnswer:
        """What the model expects after the first ``places`` tokens of the generation's, from the KV in the engine's own cache.

        ``places`` are in rising order. ``probes`` are token ids, each of which takes the place of the token at the last place once. Nothing is
        loaded from the cache beside the engine, and nothing is stored there.
        """

    async def kv_room(self) -> int | None:
        """How many tokens' KV the engine's own cache holds; None when the engine does not report it."""

    def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """The completion piece by piece. Closing it after the first token ends the generation."""

    async def counters(self) -> Counters: ...

    async def abort(self, generation_ids: Sequence[str]) -> bool:
        """End generations now: their answers come at once, with what was generated. False if the engine cannot do that."""

    def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AbstractAsyncContextManager[ForwardedResponse]:
        """Send a request, of this session, unchanged and return the response as it arrives, whatever its status."""
