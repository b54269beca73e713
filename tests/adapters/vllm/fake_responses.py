"""Answers of the Responses API as the fake vLLM gives them, with the ids that CWM's middleware tells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

RESPONSES = "/v1/responses"
_STATE = {"status": "in_progress", "usage": None, "incomplete_details": None}


def prompt_ids(asked: dict[str, Any]) -> list[int]:
    """Bytes of everything that was said."""
    given = asked.get("input") or ""
    said = given if isinstance(given, str) else "".join(_text(item) for item in given)
    return list(((asked.get("instructions") or "") + said).encode())


def body(asked: dict[str, Any], model: str, words: Sequence[tuple[int, str]]) -> dict[str, Any]:
    text = "".join(word for _, word in words)
    return _response(asked, model, [_item(asked, text, "completed")]) | {
        "status": "completed",
        "usage": _usage(len(prompt_ids(asked)), len(words)),
    }


def told_body(
    asked: dict[str, Any], answer: dict[str, Any], words: Sequence[tuple[int, str]], *, aborted: bool = False
) -> bytes:
    """The body with the ids in front, as the middleware writes it."""
    ids: dict[str, Any] = {
        "prompt_token_ids": prompt_ids(asked),
        "token_ids": [token for token, _ in words],
    }
    ids |= {"aborted": True} if aborted else {}
    return b"".join((dumped(ids)[:-1], b",", dumped(answer)[1:]))


def events(
    asked: dict[str, Any], model: str, words: Sequence[tuple[int, str]], *, told: bool
) -> Iterator[bytes]:
    """The events, each with the comment of the ids that belong to it."""
    final = body(asked, model, words)
    item = final["output"][0]
    kind = "function_call_arguments" if item["type"] == "function_call" else "output_text"
    begun = {
        **item,
        **({"arguments": ""} if "arguments" in item else {"content": [], "status": "in_progress"}),
    }
    at = {"item_id": item["id"], "output_index": 0} | (
        {} if item["type"] == "function_call" else {"content_index": 0}
    )
    part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
    number = 0

    def event(name: str, fields: dict[str, Any]) -> bytes:
        nonlocal number
        number += 1
        data = dumped({**fields, "sequence_number": number - 1, "type": name})
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    initial = {"response": {**final, "output": [], **_STATE}}
    yield event("response.created", initial)
    yield event("response.in_progress", initial)
    for position, (token, word) in enumerate(words):
        ids = {"prompt_token_ids": prompt_ids(asked)} if not position else {}
        comment = b": cwm-token-ids " + dumped({**ids, "token_ids": [token]}) + b"\n\n" if told else b""
        if not position:
            comment += event("response.output_item.added", {"item": begun, "output_index": 0})
            if "content_index" in at:
                comment += event("response.content_part.added", {"part": part, **at})
        yield comment + event(f"response.{kind}.delta", {"delta": word, "logprobs": [], **at})
    yield event("response.output_item.done", {"item": item, "output_index": 0})
    yield event("response.completed", {"response": final})


def broken_off(
    asked: dict[str, Any], model: str, words: Sequence[tuple[int, str]], *, told: bool
) -> Iterator[bytes]:
    """The last event of a stream that an engine breaks off because it ends: vLLM calls it complete."""
    if told:
        yield b': cwm-token-ids {"aborted":true}\n\n'
    event = {"type": "response.completed", "response": body(asked, model, words), "sequence_number": 9}
    yield b"event: response.completed\ndata: " + dumped(event) + b"\n\n"


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _response(asked: dict[str, Any], model: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": asked.get("request_id", "resp_straight"),
        "created_at": 1,
        **_STATE,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata"),
        "model": model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tools": asked.get("tools", []),
        "max_output_tokens": asked.get("max_output_tokens"),
        "previous_response_id": None,
    }


def _item(asked: dict[str, Any], text: str, status: str) -> dict[str, Any]:
    choice = asked.get("tool_choice")
    if isinstance(choice, dict):
        call = {"arguments": text, "call_id": "call_1", "name": choice["name"]}
        return {**call, "type": "function_call", "id": "fc_1", "namespace": None, "status": status}
    part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    given = asked.get("input") or ""
    return {
        "id": f"msg_{1 if isinstance(given, str) else len(given)}",
        "content": [part],
        "role": "assistant",
        "status": status,
        "type": "message",
    }


def _usage(prompt: int, new: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": prompt // 2},
        "output_tokens": new,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + new,
    }


def _text(item: dict[str, Any]) -> str:
    content = item.get("content", item.get("output", item.get("arguments", "")))
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part.get("text", "")) for part in parts)
