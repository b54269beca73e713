"""What CWM needs of an inference engine.

Failures: CWM-5001 when it cannot be reached, CWM-6001 when it does not answer in time, CWM-5002 when
its answer is no answer, CWM-1003 when it refuses the request's content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from cwm.domain.prefix import TokenIds


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``id`` is the name requests use, ``root`` the path it was loaded from; lengths in tokens."""

    id: str
    root: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A request in token ids. ``sampling`` holds further fields of the completions API as they are.

    ``load_tokens`` and ``store_tokens`` limit what is loaded from and stored in the cache beside the engine,
    in whole chunks; None for no limit. ``tell_loaded`` asks for ``Completion.loaded_tokens``. An engine that does
    not know one of these ignores it.
    """

    model: str
    token_ids: TokenIds
    cache_salt: str
    max_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    load_tokens: int | None = None
    store_tokens: int | None = None
    tell_loaded: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """``token_ids`` are the new ones, the one that stopped generation included.

    ``cached_tokens`` of the prompt were not computed (the engine's own count). ``ttft_ms`` is None
    where the engine does not report it. ``loaded_tokens`` of the cached ones came from the cache beside the
    engine; None unless the request asked for it or set ``load_tokens``, and the engine knows these. ``top`` has, for
    each new token, the log-probabilities of the likeliest ones by id, where the request asked for ``logprobs``.
    """

    text: str
    token_ids: TokenIds
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    fingerprint: str | None
    ttft_ms: float | None = None
    loaded_tokens: int | None = None
    top: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed completion; the last one carries the finish reason and the usage."""

    text: str = ""
    token_ids: TokenIds = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the engine started, in tokens; ``sources`` as the engine names them."""

    prompt_tokens_by_source: Mapping[str, float]
    prefix_queries: float
    prefix_hits: float
    external_queries: float
    external_hits: float
    requests_running: float


class ForwardedResponse(Protocol):
    """An upstream answer as it arrives."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]

    def chunks(self) -> AsyncIterator[bytes]: ...


class Engine(Protocol):
    async def models(self) -> list[ServedModel]: ...

    async def version(self) -> str: ...

    async def health(self) -> None:
        """Raise unless the engine says it is healthy. Says nothing about its cache."""

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds: ...

    async def render(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> TokenIds:
        """Token ids of a chat by the model's own template; ``options`` such as tools pass through."""

    async def special_tokens(self, model: str) -> frozenset[str]:
        """Strings that the tokenizer turns into control tokens; empty where the engine does not tell."""

    async def chat_template(self, model: str) -> str | None:
        """The source of the model's chat template; None where the engine does not tell."""

    async def kv_dtype(self) -> str | None:
        """The type KV is kept in, as the engine was told (``auto`` is the model's); None where it does not tell."""

    async def complete(self, generation: Generation) -> Completion: ...

    def stream(self, generation: Generation) -> AsyncIterator[Delta]: ...

    async def counters(self) -> Counters: ...

    def forward(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[ForwardedResponse]:
        """Send bytes as they are and hand back the answer as it arrives, whatever its status."""
