"""What ``--enable-scale-out`` adds to the fake vLLM: a request in token ids, tokens for it, and their text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

GENERATE: Final = "/inference/v1/generate"
RENDER: Final = frozenset({"/v1/completions/render", "/v1/chat/completions/render"})
DERENDER: Final = frozenset({"/v1/completions/derender", "/v1/chat/completions/derender"})
PATHS: Final = RENDER | DERENDER | {GENERATE}


def rendered(asked: dict[str, Any], ids: Sequence[int], most: int) -> Any:
    request = {
        "request_id": "r",
        "token_ids": list(ids),
        "sampling_params": {"max_tokens": asked.get("max_tokens", most), "temperature": 0.0},
        "cache_salt": asked.get("cache_salt"),
        "kv_transfer_params": asked.get("kv_transfer_params"),
        "stream": False,
    }
    return request if "messages" in asked else [request]


def generated(asked: dict[str, Any], words: Sequence[tuple[int, str]]) -> Iterator[str]:
    """The events of the words that are not among the ids yet, two tokens in each."""
    known = sum(token >= words[0][0] for token in asked["token_ids"])
    new = [token for token, _ in words[known : known + asked["sampling_params"]["max_tokens"]]]
    for start in range(0, len(new), 2):
        ids = new[start : start + 2]
        end = "length" if start + 2 >= len(new) else None
        choice = {"index": 0, "token_ids": ids, "finish_reason": end, "stop_reason": None}
        yield json.dumps({"request_id": asked["request_id"], "choices": [choice]})
    prompt, count = len(asked["token_ids"]), len(new)
    usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
    details = {"prompt_tokens_details": {"cached_tokens": prompt - 1}}
    yield json.dumps({"request_id": asked["request_id"], "choices": [], "usage": usage | details})
    yield "[DONE]"


def derendered(asked: dict[str, Any], words: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """With its own marks in the state, so that a state which is not handed on shows."""
    state = asked["stream_state"] or {"prev_tokens": ["prompt"], "role_sent": False, "output_token_ids": []}
    text = dict(words)
    choices = []
    for choice in asked["generate_chunk"]["choices"]:
        said = "".join(text[token] for token in choice["token_ids"])
        state = {**state, "prev_tokens": [*state["prev_tokens"], said]}
        form: dict[str, Any] = {"text": said}
        if "chat_request" in asked:
            form = {"delta": {"role": None, "content": said, "tool_calls": []}}
        choices.append({"index": 0, **form, "logprobs": None, "finish_reason": choice.get("finish_reason")})
    chunk = {"id": "x", "object": "x", "created": 2, "model": asked["model"], "choices": choices}
    return {"chunk": chunk, "stream_state": state}
