"""Answers of the Messages API as the fake vLLM gives them, with the ids that CWM's middleware tells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

MESSAGES = "/v1/messages"


def prompt_ids(asked: dict[str, Any]) -> list[int]:
    """Bytes of everything that was said."""
    return list("".join(_texts([asked.get("system"), asked["messages"]])).encode())


def body(
    asked: dict[str, Any], model: str, words: Sequence[tuple[int, str]], call_id: str = "call_1"
) -> dict[str, Any]:
    text = "".join(word for _, word in words)
    block: dict[str, Any] = {"type": "text", "text": text}
    if called := _called(asked):
        block = {"type": "tool_use", "id": call_id, "name": called, "input": {"model": model, "text": text}}
    return {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": [block],
        "model": model,
        "stop_reason": "tool_use" if called else "max_tokens",
        "usage": _usage(asked, len(words)),
    }


def told_body(asked: dict[str, Any], answer: dict[str, Any], words: Sequence[tuple[int, str]]) -> bytes:
    """The body with the ids in front, as the middleware writes it."""
    ids = {"prompt_token_ids": prompt_ids(asked), "token_ids": [token for token, _ in words]}
    return b"".join((dumped(ids)[:-1], b",", dumped(answer)[1:]))


def events(
    asked: dict[str, Any], model: str, words: Sequence[tuple[int, str]], call_id: str, *, told: bool
) -> Iterator[bytes]:
    """The events, each with the comment of the ids that belong to it."""
    final = body(asked, model, words, call_id)
    start = {**final, "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {"input_tokens": len(prompt_ids(asked)), "output_tokens": 0}
    block = final["content"][0]
    if block["type"] == "tool_use":
        begun = {**block, "input": {}}
        text = dumped(block["input"]).decode()
        # One token each, however long: the last says the rest.
        cut = [text[number : number + 1] for number in range(len(words) - 1)]
        pieces = [*cut, text[len(cut) :]]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    else:
        begun = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": word} for _, word in words]
    for position, ((token, _), delta) in enumerate(zip(words, deltas, strict=True)):
        ids = {"prompt_token_ids": prompt_ids(asked)} if not position else {}
        comment = b": cwm-token-ids " + dumped({**ids, "token_ids": [token]}) + b"\n\n" if told else b""
        if not position:
            comment += _event("message_start", message=start)
            comment += _event("content_block_start", content_block=begun, index=0)
        yield comment + _event("content_block_delta", delta=delta, index=0)
    yield _event("content_block_stop", index=0)
    stop = {"stop_reason": final["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage=final["usage"])
    yield _event("message_stop")


def broken_off() -> Iterator[bytes]:
    """The last events of a stream that an engine breaks off because it ends."""
    yield _event("content_block_stop", index=0)
    yield _event(
        "message_delta", delta={"stop_reason": None, "stop_sequence": None}, usage={"output_tokens": 2}
    )
    yield _event("message_stop")


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _event(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + dumped({"type": name, **fields}) + b"\n\n"


def _called(asked: dict[str, Any]) -> str | None:
    choice = asked.get("tool_choice")
    return choice["name"] if isinstance(choice, dict) and choice.get("type") == "tool" else None


def _usage(asked: dict[str, Any], new: int) -> dict[str, Any]:
    prompt = len(prompt_ids(asked))
    cached = prompt // 2
    return {
        "input_tokens": prompt - cached,
        "output_tokens": new,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _texts(value: Any) -> Iterator[str]:
    """What the blocks say, as a template would write it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name in ("content", "text", "input"):
            inner = value.get(name)
            yield from [dumped(inner).decode()] if name == "input" and inner is not None else _texts(inner)
