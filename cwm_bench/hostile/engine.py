"""An engine that answers each protocol after a fixed time, with token ids: ``python -m cwm_bench.hostile.engine PORT``.

A token is four bytes of text. A prompt beyond the model's length is refused, as vLLM refuses it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from typing import Any, Final

MODEL: Final = "stub"
SECONDS: Final = 0.05
"""Less than any real model takes for a turn."""
_ANSWER: Final = "As before."
_ANSWER_IDS: Final = [7, 8, 9]
_MAX_MODEL_LEN: Final = 262_144
_WORD: Final = 4
_PROBE: Final = b"cwm1-probe"
_LIMIT: Final = 2**26
_GENERATING: Final = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
_METRICS: Final = b"""# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="64",cache_dtype="auto",engine="0",num_gpu_blocks="4096"} 1.0
"""
_GETS: Final[dict[str, Any]] = {
    "/v1/models": {"data": [{"id": MODEL, "root": MODEL, "max_model_len": _MAX_MODEL_LEN}]},
    "/version": {"version": "0.32.0"},
    "/health": {},
    "/openapi.json": {"openapi": "3.1.0", "paths": {path: {} for path in _GENERATING}},
    "/tokenizer_info": {
        "added_tokens_decoder": {str(at): f"<|reserved_special_token_{at}|>" for at in range(256)}
    },
}


def prompt_ids(asked: dict[str, Any]) -> list[int]:
    """One id for each four bytes of what was said; a list of ids as it is."""
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        return prompt
    said = [asked.get(name) for name in ("system", "instructions", "messages", "input", "prompt")]
    data = "\n".join(_texts(said)).encode("utf-8", "surrogatepass")
    words = (data[at : at + _WORD] for at in range(0, len(data), _WORD))
    return [10 + int.from_bytes(word, "little") % 100_000 for word in words]


def answer_to(path: str, asked: dict[str, Any], *, has_ids: bool) -> tuple[int, bytes]:
    """Status and body. ``has_ids``: the ids of a protocol that has no field for them come first."""
    if path in _GENERATING:
        return _generated(path, asked, has_ids=has_ids)
    if path == "/metrics":
        return 200, _METRICS
    if path in _GETS:
        return 200, _json(_GETS[path])
    ids = prompt_ids(asked)
    if path.endswith(("/count_tokens", "/render")):
        return 200, _json({"input_tokens": len(ids), "token_ids": ids})
    if path == "/tokenize":
        return 200, _json({"tokens": ids, "count": len(ids), "max_model_len": _MAX_MODEL_LEN})
    return 404, _json({"detail": "Not Found"})


def _generated(path: str, asked: dict[str, Any], *, has_ids: bool) -> tuple[int, bytes]:
    ids = prompt_ids(asked)
    if len(ids) + len(_ANSWER_IDS) > _MAX_MODEL_LEN:
        error = {"message": f"This model's maximum context length is {_MAX_MODEL_LEN} tokens."}
        return 400, _json({"error": {**error, "type": "BadRequestError", "param": None, "code": 400}})
    if path.endswith("/completions"):
        return 200, _json(_completion(asked, ids, is_chat=path == "/v1/chat/completions"))
    answer = _message(ids) if path == "/v1/messages" else _response(asked, ids)
    return 200, _json({"prompt_token_ids": ids, "token_ids": _ANSWER_IDS, **answer} if has_ids else answer)


def _completion(asked: dict[str, Any], ids: list[int], *, is_chat: bool) -> dict[str, Any]:
    shown = ids if asked.get("return_token_ids") else None
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice["token_ids"] = _ANSWER_IDS if shown is not None else None
    choice |= (
        {"message": {"role": "assistant", "content": _ANSWER}}
        if is_chat
        else {"text": _ANSWER, "prompt_token_ids": shown}
    )
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(_ANSWER_IDS)}
    usage["total_tokens"] = sum(usage.values())
    kind = "chat.completion" if is_chat else "text_completion"
    answer = {"id": "cmpl-1", "object": kind, "model": MODEL, "choices": [choice], "usage": usage}
    return answer | ({"prompt_token_ids": shown} if is_chat else {})


def _message(ids: list[int]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": _ANSWER}],
        "model": MODEL,
        "stop_reason": "end_turn",
        "usage": {"input_tokens": len(ids), "output_tokens": len(_ANSWER_IDS)},
    }


def _response(asked: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    part = {"type": "output_text", "text": _ANSWER, "annotations": []}
    item = {"id": f"msg_{len(ids)}", "type": "message", "role": "assistant", "content": [part]}
    count = {"input_tokens": len(ids), "output_tokens": len(_ANSWER_IDS)}
    return {
        "id": asked.get("request_id", "resp_straight"),
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": MODEL,
        "output": [{**item, "status": "completed"}],
        "usage": {**count, "total_tokens": sum(count.values())},
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _serve(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            path, has_ids = head[0].split(" ")[1].partition("?")[0], "cwm-token-ids" in headers
            if path in _GENERATING and _PROBE not in body:
                await asyncio.sleep(SECONDS)
            status, content = answer_to(path, json.loads(body or b"{}"), has_ids=has_ids)
            said = "cwm-token-ids: 1\r\n" if has_ids else ""
            writer.write(
                f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n{said}content-length: {len(content)}\r\n\r\n".encode()
            )
            writer.write(content)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", port, limit=_LIMIT)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
