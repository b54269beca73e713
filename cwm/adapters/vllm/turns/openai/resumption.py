"""Another engine goes on with a streamed answer where the first one broke off.

The exact token ids so far are known. vLLM's ``/render`` gives the request in token ids, ``/inference/v1/generate`` goes on
behind them, and ``/derender`` makes text, reasoning and tool calls of the new ids, with the parsers in the state in which the
first engine had them. All three need ``--enable-scale-out``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from uuid import uuid4

from cwm.adapters.vllm.turns.body import objects
from cwm.adapters.vllm.turns.events import Events, data_of
from cwm.domain.errors import EngineConnectionError, EngineResponseError
from cwm.ports.engine import Engine

DONE: Final = b"data: [DONE]\n\n"
_GENERATE: Final = "/inference/v1/generate"
_JSON: Final = {"content-type": "application/json"}
# Fields whose part in an answer is in its prompt, or the same for each token whatever came before.
_WITHOUT_MEMORY: Final = frozenset(
    {
        *("model", "messages", "prompt", "stream", "max_tokens", "max_completion_tokens", "user", "metadata"),
        *("temperature", "top_p", "top_k", "min_p", "logit_bias", "ignore_eos", "stop_token_ids", "store"),
        *(
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "skip_special_tokens",
            "spaces_between_special_tokens",
        ),
        *("chat_template", "chat_template_kwargs", "documents", "add_generation_prompt", "reasoning_effort"),
        *("continue_final_message", "add_special_tokens", "include_reasoning", "priority", "service_tier"),
        *("return_token_ids", "prompt_cache_key", "safety_identifier", "prompt_cache_retention", "verbosity"),
    }
)
# Fields of which one value, besides null, asks for nothing.
_NEUTRAL: Final[Mapping[str, Any]] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "n": 1,
    "best_of": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "echo": False,
    "stop": [],
    "response_format": {"type": "text"},
    "stream_options": {},
    "use_beam_search": False,
    "min_tokens": 0,
}


def goes_on(fields: Mapping[str, Any]) -> bool:
    """Whether what follows in the answer to such a request depends on its token ids alone."""
    options = fields.get("stream_options")
    if isinstance(options, dict) and set(options) == {"include_usage"}:
        options = {}
    greedy = {"seed"} if fields.get("temperature") == 0 else set()
    return all(
        value is None or name in _WITHOUT_MEMORY | greedy or _is_neutral(name, value)
        for name, value in {**fields, "stream_options": options}.items()
    )


def _is_neutral(name: str, value: Any) -> bool:
    neutral = _NEUTRAL.get(name, ...)
    return bool(neutral == value) and isinstance(neutral, bool) is isinstance(value, bool)


@dataclass(slots=True)
class Progress:
    """What was read of a stream of one choice.

    ``head`` has the fields that all events share. ``lengths``: how many ids each event brought. ``call_ids`` by the index of the call.
    """

    head: dict[str, Any] = field(default_factory=dict)
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)
    finished: bool = False
    counted: bool = False
    """Whether the usage is in it."""

    def take(self, event: Mapping[str, Any]) -> None:
        self.counted = self.counted or bool(event.get("usage"))
        choices = event.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choice := choices[0], dict):
            return
        if not self.head:
            self.head = {name: event.get(name) for name in ("id", "object", "created", "model")}
        if isinstance(ids := choice.get("token_ids"), list) and ids:
            self.ids += ids
            self.lengths.append(len(ids))
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        if isinstance(text := delta.get("content"), str):
            self.text.append(text)
        self.call_ids += [call["id"] for call in objects(delta.get("tool_calls")) if call.get("id")]
        self.finished = self.finished or choice.get("finish_reason") is not None


@dataclass(slots=True)
class Resumption:
    """The rest of an answer. ``path`` is that of its request, ``body`` what the first engine got, ``fields`` what it says."""

    engine: Engine
    path: str
    fields: Mapping[str, Any]
    body: bytes
    progress: Progress
    _state: Any = None

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events that the first engine would have sent. CWM-5001 if this one breaks off too, CWM-5002 if it cannot go on."""
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    yield event
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as garbled:
            raise EngineResponseError("The engine goes on with the answer in no documented way.") from garbled

    async def _events(self) -> AsyncGenerator[bytes, None]:
        usage = None
        if not self.progress.finished:
            generate = await self._generate()
            tail = await self._replay()
            if tail:
                yield self._event({"content": tail}, [], None)
            async with self.engine.forward("POST", _GENERATE, generate, _JSON) as stream:
                self._require(stream.status, _GENERATE)
                events = Events()
                async for chunk in stream.chunks():
                    new = [json.loads(data) for data in map(data_of, events.take(chunk)) if data[:1] == b"{"]
                    usage = next((each["usage"] for each in new if each.get("usage")), usage)
                    async for event in self._written(new):
                        yield event
            if not self.progress.finished:
                raise EngineConnectionError("The engine that went on with the answer broke off, too.")
        if (self.fields.get("stream_options") or {}).get("include_usage") and not self.progress.counted:
            yield _sent({**self.progress.head, "choices": [], "usage": self._usage(usage)})
        yield DONE

    async def _generate(self) -> bytes:
        """The request in token ids, behind what was generated so far."""
        rendered = await self._post(f"{self.path}/render", self.body)
        request = rendered[0] if isinstance(rendered, list) else rendered
        sampling = request["sampling_params"]
        new = len(self.progress.ids)
        if sampling.get("max_tokens") is not None:
            sampling = {**sampling, "max_tokens": sampling["max_tokens"] - new}
        ours = {
            "request_id": uuid4().hex,
            "token_ids": [*self.progress.prompt, *self.progress.ids],
            "sampling_params": sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": False,
        }
        return json.dumps({**request, **ours}).encode()

    async def _replay(self) -> str:
        """Bring the parsers to where the first engine had them. What it had not sent yet of the text so far."""
        progress = self.progress
        choices = [{"index": 0, "token_ids": progress.ids}] if progress.ids else []
        event = await self._derender({"request_id": "", "choices": choices})
        if self._state.get("output_token_ids"):
            self._state |= {
                "output_chunk_lens": progress.lengths,
                "last_tool_call_ids": progress.call_ids,
                "tools_streamed": bool(progress.call_ids),
                "role_sent": True,
            }
            return ""
        self._state["role_sent"] = True
        beginning, text = "".join(progress.text), _text(event)
        if progress.ids and not text.startswith(beginning):
            raise EngineResponseError("Another engine reads other text in the tokens of an answer.")
        return text[len(beginning) :]

    async def _written(self, new: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        """What the new ids say; those that arrived together at once, because each call reads all that came before."""
        choices = [choice for each in new for choice in each.get("choices") or ()]
        ids = [token for choice in choices for token in choice.get("token_ids") or ()]
        end = next((choice for choice in choices if choice.get("finish_reason")), None)
        if not ids and end is None:
            return
        reason = None if end is None else end["finish_reason"]
        # The token that stops an answer has no text.
        text_ids = ids[:-1] if reason == "stop" else ids
        choice = {"index": 0, "token_ids": text_ids, "finish_reason": reason, "stop_reason": None}
        event = await self._derender({"request_id": "", "choices": [choice]})
        (rendering,) = event["choices"]
        self.progress.finished = end is not None
        delta = rendering.get("delta") or {"content": rendering.get("text")}
        stop = None if end is None else (rendering["finish_reason"], end.get("stop_reason"))
        yield self._event(_without_nulls(delta), ids, stop)

    async def _derender(self, chunk: dict[str, Any]) -> dict[str, Any]:
        is_chat = self.progress.head["object"] == "chat.completion.chunk"
        fields = {**self.fields, "model": self.progress.head["model"]}
        request: dict[str, Any] = {
            "stream": True,
            "model": self.progress.head["model"],
            "generate_chunk": chunk,
            "stream_state": self._state,
            "chat_request" if is_chat else "completion_request": fields,
        }
        if self._state is None or not self._state["prev_tokens"]:
            # Parsers read the prompt each time; without them the state has what is needed of it.
            request["prompt_token_ids"] = self.progress.prompt
        answer = await self._post(f"{self.path}/derender", json.dumps(request).encode())
        self._state = answer["stream_state"]
        event: dict[str, Any] = answer["chunk"]
        return event

    def _event(
        self, delta: dict[str, Any], ids: list[int], stop: tuple[str, int | str | None] | None
    ) -> bytes:
        content = (
            {"delta": delta}
            if "chunk" in self.progress.head["object"]
            else {"text": delta.get("content", "")}
        )
        end = {"finish_reason": None} if stop is None else {"finish_reason": stop[0], "stop_reason": stop[1]}
        choice = {"index": 0, **content, "logprobs": None, **end, "token_ids": ids}
        return _sent({**self.progress.head, "choices": [choice]})

    def _usage(self, engine_usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """Of the whole answer. Tokens are cached as the second engine found them, which had the first one's to find, too."""
        prompt, new = len(self.progress.prompt), len(self.progress.ids)
        if engine_usage is not None:
            new = engine_usage["prompt_tokens"] - prompt + engine_usage["completion_tokens"]
        cached = ((engine_usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + new,
            "completion_tokens": new,
        }
        return (
            usage
            if cached is None
            else {**usage, "prompt_tokens_details": {"cached_tokens": min(cached, prompt)}}
        )

    async def _post(self, path: str, body: bytes) -> Any:
        async with self.engine.forward("POST", path, body, _JSON) as response:
            self._require(response.status, path)
            return json.loads(b"".join([chunk async for chunk in response.chunks()]))

    def _require(self, status: int, path: str) -> None:
        if status != HTTPStatus.OK:
            raise EngineResponseError(f"No engine can go on with the answer: {path} answers {status}.")


def _text(event: Mapping[str, Any]) -> str:
    return "".join(
        (choice.get("delta") or {"content": choice.get("text")}).get("content") or ""
        for choice in event.get("choices") or ()
    )


def _without_nulls(value: Any) -> Any:
    """An object as vLLM streams it: without the fields that have no value."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None and each != []}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _sent(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
