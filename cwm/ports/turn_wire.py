"""Reads and changes turn requests and answers that are otherwise passed through unchanged.

Both are bytes of an API of OpenAI or Anthropic as the engine speaks it. Fields not mentioned here stay as sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from cwm.domain.habits import Repair
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.response import Item, ResponseAsk
from cwm.domain.turn import Message, Profile
from cwm.ports.engine import Engine

Resume: TypeAlias = Callable[[Engine], AsyncGenerator[bytes, None]]
"""The rest of an answer as this engine gives it. CWM-5001 if it breaks off, too; CWM-5002 if it cannot go on."""


@dataclass(frozen=True, slots=True)
class PromptUsage:
    """Tokens of the prompt, and how many of them had their KV reused."""

    prompt_tokens: int
    cached_tokens: int


class TurnAnswer(Protocol):
    """Reads an answer as it arrives.

    ``feed`` and ``finish`` return the bytes that may be sent to the client by then.
    """

    @property
    def begun(self) -> bool:
        """Whether a token of the answer has arrived. From then on the request may be abandoned."""

    @property
    def ended(self) -> bool:
        """Whether the stream has said that it is complete."""

    @property
    def aborted(self) -> bool:
        """Whether the engine ended the answer before it was whole, in words by which it could pass for one."""

    @property
    def failed(self) -> bytes:
        """What a stream that its engine gave up had to say of that, and all after it; empty for any other."""

    def feed(self, chunk: bytes) -> bytes: ...

    def finish(self) -> bytes:
        """The remaining bytes, once the engine has sent everything."""

    def token_ids(self) -> TokenIds | None:
        """Token ids of prompt and answer so far, including those that stopped generation.

        None when they are unknown.
        """

    def prompt_tokens(self) -> int:
        """How many of :meth:`token_ids` are the prompt's."""

    def message(self) -> Mapping[str, Any] | None:
        """What choice 0 of a recorded answer says so far, as a message.

        Its role is ``assistant`` with ``content``, ``reasoning`` and ``tool_calls`` as in OpenAI's API, the last two only
        if there are any; or ``completion`` with ``content``. None when no token was generated, or the body is too large
        to be parsed even without its token ids.
        """

    def usage(self) -> PromptUsage | None: ...

    def tokens(self) -> int:
        """Number of tokens of prompt and answer so far, by the engine's count, else by their ids."""

    @property
    def odd(self) -> bool:
        """Whether the engine reported a number of tokens that cannot be one; it counts as unknown."""


class TurnRequest(Protocol):
    """A parsed request body. ``prompt_tokens`` (of the longest prompt) is known only for prompts given as token ids."""

    @property
    def operation(self) -> str | None:
        """``chat`` or ``text_completion``; None for a request that is not to a model."""

    @property
    def model(self) -> str | None: ...

    @property
    def prompt_tokens(self) -> int | None: ...

    @property
    def sequences(self) -> int:
        """How many answers it asks for: its prompts times the answers or beams of each."""

    @property
    def streamed(self) -> bool: ...

    @property
    def resumable(self) -> bool:
        """Whether another engine can go on with its stream, if the token ids so far are known."""

    async def require_media(self, asker: Principal) -> None:
        """CWM-1003 for media that the engine would fetch from an address that is not public."""

    def require_recordable(self) -> None:
        """CWM-1003 for a request that a single session cannot record: several prompts, or hidden tokens."""

    def texts(self) -> Iterable[str]:
        """The texts that the caller wrote."""

    def messages(self) -> tuple[Message, ...]:
        """The messages of a chat; of a completion each text prompt as a message of the role ``prompt``, none for ids.

        CWM-1003 for one that is nested too deeply.
        """

    def profile(self) -> Profile:
        """The profile of a chat; empty for anything else. CWM-1003 for tools that are nested too deeply."""

    def require_continuable(self) -> None:
        """CWM-1003 for a request whose messages cannot be appended to a context: it is no chat, or has media."""

    def template_options(self) -> Mapping[str, Any]:
        """The fields of a chat that its template reads, besides the messages."""

    def addressed_to(self, model: str, max_model_len: int, switches: Collection[str] = ()) -> TurnRequest:
        """The same request to the served ``model``; its answer names the model as this request did.

        It asks for at most ``max_model_len`` tokens. What foreign fields say of thoughts is said by the template's ``switches``.
        """

    def repaired(self, repairs: Collection[Repair]) -> TurnRequest:
        """The same request with these repairs, where they change something; else its bytes stay. CWM-1003 for one that is nested too deeply."""

    @property
    def dropped(self) -> Sequence[str]:
        """The fields that nobody knows, which the engine does not get."""

    @property
    def repairs(self) -> Sequence[str]:
        """The repairs that changed it."""

    @property
    def capped(self) -> int | None:
        """How many tokens the engine may generate, where that is less than the client allows."""

    def engine_headers(self, *, recorded: bool) -> Mapping[str, str]:
        """Headers for the engine besides the client's. Those by which it tells token ids are in its answer, too."""

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:
        """The request to send to the engine, which may use stored KV only if it has these ``weights``.

        With ``prompt`` the engine computes these ids; the messages are then only what tools and parsers see.
        """

    @property
    def response(self) -> ResponseAsk | None:
        """What a request for a response of OpenAI's API refers to and adds; None for other requests."""

    def after(self, items: Sequence[Item], items_by_id: Mapping[str, Item]) -> TurnRequest:
        """The same request for a response behind these ``items``, with those of ``items_by_id`` in place of references to them."""

    def response_of(self, answer: TurnAnswer) -> Mapping[str, Any] | None:
        """The response object that a complete answer was, as its client got it."""

    def generation_ids(self, request_id: str) -> Sequence[str]:
        """The engine's ids of what it generates for this request, if the request carries ``request_id``."""

    def answer(self, *, status: int, streamed: bool, recorded: bool, session: str = "") -> TurnAnswer:
        """A reader of the answer that the engine gives with this ``status``. ``session`` names the session that it is recorded in, whose tenant included."""

    def resumed(self, answer: TurnAnswer, body: bytes) -> Resume | None:
        """What gives the rest of an answer to ``body`` that its engine broke off, from the next token on.

        None where what follows is more than a matter of the tokens so far, or these are not known.
        """


class TurnWire(Protocol):
    @property
    def max_answer_bytes(self) -> int:
        """Of an answer that is read whole before its client gets it."""

    def renaming(self, served_name: str, client_name: str) -> Callable[[bytes], bytes]:
        """Puts the model's name that the client used into an answer, where the engine writes its own."""

    def read(self, path: str, body: bytes, headers: Mapping[str, str]) -> TurnRequest:
        """Parse a request, whose header names are in lower case.

        CWM-1003 when it is not a JSON object, sets a field or a header that is not the caller's to set, or asks too much.
        """
