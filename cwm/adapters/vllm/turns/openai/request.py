"""A completion or a chat, in OpenAI's formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final

from cwm.adapters.vllm.turns.answers import renaming
from cwm.adapters.vllm.turns.body import RequestBody, is_ids, objects, strings
from cwm.adapters.vllm.turns.openai.answer import BodyAnswer, StreamAnswer
from cwm.adapters.vllm.turns.openai.resumption import Resumption, goes_on
from cwm.adapters.vllm.turns.refusals import Refusal
from cwm.domain.constraints import SchemaLimits
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of, profile_of
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.turn import Message, Profile
from cwm.ports.turn_wire import Resume, TurnAnswer

CHAT: Final = "chat"
COMPLETION: Final = "text_completion"
_CONSTRAINTS: Final = ("response_format", "structured_outputs")
_FREE_CHOICES: Final = (None, "none", "auto")
# Fields that a chat template reads, and fields that end a prompt in another way than with the assistant's turn.
_TEMPLATE: Final = ("tools", "documents", "chat_template", "chat_template_kwargs")
_ENDINGS: Final = {"add_generation_prompt": True, "continue_final_message": False, "echo": False}


@dataclass(frozen=True)
class OpenAiRequest(RequestBody):
    """A :class:`cwm.ports.turn_wire.TurnRequest` of ``/v1/completions`` or ``/v1/chat/completions``."""

    operation: str | None = None

    ANSWER_LIMITS = ("max_tokens", "max_completion_tokens")

    @property
    def is_chat(self) -> bool:
        return self.operation == CHAT

    @property
    def prompt_tokens(self) -> int | None:
        prompt = self.fields.get("prompt")
        if self.is_chat or not isinstance(prompt, list):
            return None
        prompts = [prompt] if is_ids(prompt) else prompt
        return max((len(ids) for ids in prompts if isinstance(ids, list) and is_ids(ids)), default=None)

    @property
    def sequences(self) -> int:
        """CWM-1003 if ``n`` is not a number of answers."""
        return self._prompts() * _answers(self.fields)

    def _prompts(self) -> int:
        if self.is_chat:
            return 1
        prompt, embedded = self.fields.get("prompt"), self.fields.get("prompt_embeds")
        count = len(prompt) if isinstance(prompt, list) and not is_ids(prompt) else int(prompt is not None)
        count += len(embedded) if isinstance(embedded, list) else int(embedded is not None)
        return max(1, count)

    def require_sequences(self, most: int) -> None:
        """CWM-1003 for more than ``most`` sequences."""
        if self.sequences <= most:
            return
        raise InvalidParameterError(
            f"The request has {self.sequences} answers, prompts times 'n'; at most {most} are allowed "
            "in one request (CWM_SEQUENCES). Ask for fewer in one request.",
            field="n" if _answers(self.fields) > 1 else "prompt",
            limit=most,
            setting="CWM_SEQUENCES",
        )

    def require_constraints(self, schemas: SchemaLimits) -> None:
        """CWM-1003 for a schema that would take vLLM long to compile."""
        for name in _CONSTRAINTS:
            schemas.require(name, self.fields.get(name))
        schemas.require_tools(self.fields.get("tools"), _constraining(self.fields))

    async def require_media(self, asker: Principal) -> None:
        await self.media.require(self.fields.get("messages"), asker)

    def require_recordable(self) -> None:
        prompt = self.fields.get("prompt")
        if not self.is_chat and isinstance(prompt, list) and len(prompt) > 1 and not is_ids(prompt):
            raise InvalidParameterError("A session takes one prompt at a time.", field="prompt")
        if not self.is_chat and self.fields.get("echo"):
            raise InvalidParameterError(
                "In a session the engine does not echo the prompt; ask without 'echo'.", field="echo"
            )
        if self.is_chat and self.fields.get("include_reasoning") is False:
            raise InvalidParameterError(
                "A session needs all tokens of an answer; ask without 'include_reasoning': false.",
                field="include_reasoning",
            )

    def texts(self) -> Iterable[str]:
        return strings(self.fields.get("messages" if self.is_chat else "prompt"))

    def messages(self) -> tuple[Message, ...]:
        return self._messages

    def profile(self) -> Profile:
        return self._profile

    @cached_property
    def _messages(self) -> tuple[Message, ...]:
        return tuple(message_of(content) for content in self._contents())

    @cached_property
    def _profile(self) -> Profile:
        return profile_of(self._contents(), self.fields.get("tools")) if self.is_chat else Profile()

    def _contents(self) -> list[dict[str, Any]]:
        if self.is_chat:
            return objects(self.fields.get("messages"))
        prompt = self.fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        return [{"role": "prompt", "content": text} for text in prompts if isinstance(text, str)]

    def require_continuable(self) -> None:
        if not self.is_chat:
            raise InvalidParameterError(
                "Only a chat can be continued with new messages: ask /v1/chat/completions.",
                field="CWM-Continue",
            )
        for name, usual in _ENDINGS.items():
            if self.fields.get(name, usual) not in {usual, None}:
                raise InvalidParameterError(f"A context is continued without '{name}'.", field=name)
        if not self._contents() or not all(map(_is_text_only, self._contents())):
            raise InvalidParameterError(
                "A context is continued with at least one message, of text only.", field="messages"
            )

    def template_options(self) -> Mapping[str, Any]:
        return {name: self.fields[name] for name in _TEMPLATE if self.fields.get(name) is not None}

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:
        ours: dict[str, Any] = {"return_token_ids": True} if recorded else {}
        if recorded and self._lacks_usage:
            ours["stream_options"] = {"include_usage": True}
        return self._sent(cache_salt, weights, prompt, **ours)

    @property
    def _lacks_usage(self) -> bool:
        """Whether it asks for one stream without its usage, which alone says how many tokens were cached."""
        options = self.fields.get("stream_options")
        alone = _answers(self.fields) == 1 and options in (None, {}, {"include_usage": False})
        # The engine refuses the option where it reads the value as no.
        return self.fields.get("stream") is True and alone

    def generation_ids(self, request_id: str) -> Sequence[str]:
        if self.is_chat:
            return (f"chatcmpl-{request_id}",)
        prompt = self.fields.get("prompt")
        count = len(prompt) if isinstance(prompt, list) and not is_ids(prompt) else 1
        return tuple(f"cmpl-{request_id}-{number}" for number in range(count))

    def resumed(self, answer: TurnAnswer, body: bytes) -> Resume | None:
        progress = answer.progress() if isinstance(answer, StreamAnswer) else None
        if progress is None or not progress.prompt or not self.resumable:
            return None
        path = f"/v1/{'chat/' if self.is_chat else ''}completions"
        return lambda engine: Resumption(engine, path, self.fields, body, progress).events()

    @property
    def resumable(self) -> bool:
        contents = self._contents() if self.is_chat else ()
        return (
            self.streamed
            and goes_on(self.fields)
            and not _constrained_to_tools(self.fields)
            and all(map(_is_text_only, contents))
        )

    def answer(self, *, status: int, streamed: bool, recorded: bool, session: str = "") -> TurnAnswer:
        if status != HTTPStatus.OK:
            return Refusal("messages" if self.is_chat else "prompt")
        hide_ids = recorded and not self.fields.get("return_token_ids")
        rename = None if self.served is None else renaming(self.served, self.model or "")
        if streamed:
            return StreamAnswer(
                recorded=recorded,
                hide_ids=hide_ids,
                hide_usage=recorded and self._lacks_usage,
                max_bytes=self.max_answer_bytes,
                named=rename,
                prompts=self.prompts,
                session=session,
            )
        return BodyAnswer(
            hide_ids=hide_ids,
            recorded=recorded,
            max_bytes=self.max_answer_bytes,
            named=rename,
            prompts=self.prompts,
            session=session,
        )


def _answers(fields: dict[str, Any]) -> int:
    """Answers or beams of each prompt; 1 if it is less, which the engine refuses."""
    value = fields.get("n")
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise InvalidParameterError("'n' must be a whole number.", field="n")
    return max(1, int(value))


def _is_text_only(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in parts
    )


def _constrained_to_tools(fields: dict[str, Any]) -> bool:
    """Whether vLLM compiles tools, so that an answer is a valid call of one."""
    if fields.get("tool_choice") not in _FREE_CHOICES or fields.get("parallel_tool_calls") is False:
        return True
    tools = fields.get("tools")
    return isinstance(tools, list) and any(map(_constraining(fields), tools))


def _constraining(fields: dict[str, Any]) -> Callable[[Any], bool]:
    """Picks the tools whose arguments vLLM compiles, together, so that an answer is a valid call of one."""
    choice = fields.get("tool_choice")
    if name := _function_of(choice).get("name"):
        return lambda tool: _function_of(tool).get("name") == name
    if choice not in _FREE_CHOICES:
        return lambda _: True
    return lambda tool: _function_of(tool).get("strict") is True


def _function_of(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}
