"""An engine that answers a chat at once, with token ids: ``python -m cwm_bench.tree.stub_engine PORT``.

A token is four bytes of a message's text. An answer that is sent back has the ids that it was answered with, so each
prompt begins with the whole context before it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from functools import cache
from typing import Any, Final

MODEL: Final = "stub"
ANSWER: Final = "The answer is 4711, as before.  "
_MAX_MODEL_LEN: Final = 262_144
_WORD: Final = 4
_IDS: Final = 100_000
_BEGINS: Final = {"user": "1", "assistant": "2"}
_ENDS: Final = "3"
_GETS: Final[dict[str, Any]] = {
    "/v1/models": {"data": [{"id": MODEL, "root": MODEL, "max_model_len": _MAX_MODEL_LEN}]},
    "/version": {"version": "0.32.0"},
    # As many as Llama 3 has.
    "/tokenizer_info": {
        "added_tokens_decoder": {str(at): f"<|reserved_special_token_{at}|>" for at in range(256)}
    },
}


@cache
def spelled(text: str) -> str:
    """The ids of a text, in JSON without the brackets."""
    data = text.encode()
    words = (data[at : at + _WORD] for at in range(0, len(data), _WORD))
    return ",".join(str(10 + int.from_bytes(word, "little") % _IDS) for word in words)


def prompt_of(messages: list[dict[str, str]]) -> str:
    """The ids of a prompt, up to where the answer begins, in JSON without the brackets."""
    turns = (f"{_BEGINS[each['role']]},{spelled(each['content'])},{_ENDS}," for each in messages)
    return "".join(turns) + _BEGINS["assistant"]


def answer_to(path: str, request: dict[str, Any]) -> tuple[str, bytes]:
    """Content type and body."""
    if path == "/tokenize":
        return _json({"tokens": [1], "count": 1})
    if path != "/v1/chat/completions":
        return _json(_GETS.get(path) or _completion())
    prompt, answer = prompt_of(request["messages"]), f"{spelled(ANSWER)},{_ENDS}"
    counts = prompt.count(",") + 1, answer.count(",") + 1
    # Spelled in either case, so that only the ids on the wire differ.
    prompt_ids, answer_ids = f"[{prompt}]", f"[{answer}]"
    if not request.get("return_token_ids"):
        prompt_ids = answer_ids = "null"
    usage = _usage(*counts)
    if not request.get("stream"):
        body = (
            f'{{"id":"chatcmpl-1","object":"chat.completion","model":"{MODEL}","choices":[{{"index":0,"message":'
            f'{{"role":"assistant","content":"{ANSWER}"}},"finish_reason":"stop","token_ids":{answer_ids}}}],'
            f'"usage":{usage},"prompt_token_ids":{prompt_ids}}}'
        )
        return "application/json", body.encode()
    events = (
        f'{{"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}}}}],"prompt_token_ids":{prompt_ids}}}',
        f'{{"choices":[{{"index":0,"delta":{{"content":"{ANSWER}"}},"finish_reason":"stop","token_ids":{answer_ids}}}]}}',
        f'{{"choices":[],"usage":{usage}}}',
        "[DONE]",
    )
    return "text/event-stream", "".join(f"data: {event}\n\n" for event in events).encode()


def _completion() -> dict[str, Any]:
    choice = {"index": 0, "text": "x", "token_ids": [1], "finish_reason": "length"}
    return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def _usage(prompt: int, answer: int) -> str:
    details = f'"prompt_tokens_details":{{"cached_tokens":{prompt}}}'
    return f'{{"prompt_tokens":{prompt},"completion_tokens":{answer},"total_tokens":{prompt + answer},{details}}}'


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


async def _serve(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            kind, content = answer_to(head[0].split(" ")[1], json.loads(body or b"{}"))
            writer.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n".encode()
            )
            writer.write(content)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", port, limit=2**20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
