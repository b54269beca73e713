"""What CWM reads in, and changes of, a request and an answer that it otherwise passes through.

Both are bytes of the OpenAI-compatible API as the engine speaks it. Everything that is not named here
stays as it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cwm.domain.prefix import TokenIds


@dataclass(frozen=True, slots=True)
class PromptUsage:
    """Tokens of the prompt, and those of them whose KV was reused."""

    prompt_tokens: int
    cached_tokens: int


class TurnAnswer(Protocol):
    """An answer being read. ``feed`` and ``finish`` hand back the bytes a client may have by then."""

    @property
    def begun(self) -> bool:
        """Whether the engine has computed the prompt: from then on it may be left."""

    @property
    def ended(self) -> bool:
        """Whether a stream has said that it is complete."""

    def feed(self, chunk: bytes) -> bytes: ...

    def finish(self) -> bytes:
        """The rest, once the engine has sent everything."""

    def token_ids(self) -> TokenIds | None:
        """Prompt and new ids so far, the ones that stopped it included; None where they are not known."""

    def usage(self) -> PromptUsage | None: ...

    def tokens(self) -> int:
        """Tokens of prompt and answer together, so far: as the engine counts them, else by their ids."""


class TurnRequest(Protocol):
    """A request body that was read. ``prompt_tokens`` (of the longest) is known only for prompts of ids."""

    @property
    def operation(self) -> str | None:
        """What is asked of the model: ``chat`` or ``text_completion``; None for what is not asked of a model."""

    @property
    def model(self) -> str | None: ...

    @property
    def prompt_tokens(self) -> int | None: ...

    @property
    def streamed(self) -> bool: ...

    def require_recordable(self) -> None:
        """CWM-1003 for a request that one session cannot hold: several prompts, or hidden tokens."""

    def texts(self) -> Iterable[str]:
        """What the caller wrote."""

    def body(self, cache_salt: str, *, recorded: bool) -> bytes:
        """The request as the engine gets it."""

    def answer(self, *, streamed: bool, recorded: bool) -> TurnAnswer: ...


class TurnWire(Protocol):
    def read(self, path: str, body: bytes) -> TurnRequest:
        """CWM-1003 for what is no JSON object, or sets what only the gateway may set."""
