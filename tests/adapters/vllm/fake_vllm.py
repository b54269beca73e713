"""A vLLM that misbehaves on demand, byte by byte, on a real socket.

Its well-behaved answers have the keys of the real one's (a live test compares them). A token is a byte of
UTF-8 text; the answer to anything is the words of ``ANSWER``, one token each, their ids from 1000 up, also when a chat brings it back.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.adapters.vllm import fake_messages, fake_responses, fake_scale_out
from tests.adapters.vllm.fake_messages import MESSAGES
from tests.adapters.vllm.fake_responses import RESPONSES

ANSWER = ("once", " upon", " a", " time", " there", " was", " \u00e9t\u00e9", " {}")
MODEL = "fake"
SPECIAL = "<|im_end|>"
MAX_MODEL_LEN = 512
_FIGURE = re.compile(rb'("(?:[a-z_]+_)?tokens":)[0-9]+')
LARGE = ['"token_ids":[1]'] * 200_000


class Behaviour(StrEnum):
    NORMAL = "normal"
    WAITS_BEFORE_ANSWERING = "waits before answering"
    WAITS_BEFORE_FIRST_TOKEN = "waits before the first token"
    WAITS_AFTER_FIRST_TOKEN = "waits after the first token"
    HANGS_UP_WITHOUT_ANSWER = "hangs up without an answer"
    HANGS_UP_ON_EVERY_REQUEST = "hangs up on every request"
    HANGS_UP_ON_USED_CONNECTIONS = "hangs up on connections used before"
    DIES_MID_STREAM = "dies mid-stream"
    DIES_MID_BODY = "dies mid-body"
    ENDS_IN_ORDER = "breaks its answers off, as vLLM does on SIGTERM"
    GIVES_UP = "says that its core process died"
    FAILS = "says that it failed, and is well"
    TALKS_GARBAGE = "talks garbage instead of HTTP"
    ANSWERS_GARBAGE = "answers 200 with what is no JSON"
    SPLITS_EVERY_BYTE = "splits its answer at every byte"
    ENGINE_DEAD = "answers 500"
    REFUSES_KEY = "answers 401"
    REDIRECTS = "answers 307"
    HIDES_IDS = "hides ids of reasoning"
    KEEPS_TOKENS_BACK = "has a parser that keeps tokens to itself"
    KEEPS_ALIVE = "sends comments and unknown events"
    FLOODS = "streams without end"
    NEVER_ENDS_AN_EVENT = "streams one event without end"
    TALKS_AT_LENGTH = "answers with megabytes"
    ENDS_WITHOUT_DONE = "ends a stream without [DONE]"


_REFUSALS: dict[Behaviour, tuple[int, dict[str, Any]]] = {
    Behaviour.REFUSES_KEY: (401, {"error": "Unauthorized"}),
    Behaviour.REDIRECTS: (307, {}),
}
_FAILURES = {Behaviour.GIVES_UP, Behaviour.FAILS}
FAILURE = "EngineCore encountered an issue."


@dataclass(slots=True)
class Seen:
    """A request as it came in; ``left`` is set when its client hung up before the answer was whole."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    left: asyncio.Event = field(default_factory=asyncio.Event)
    written: int = 0

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded


@dataclass(slots=True)
class FakeVllm:
    """With ``weights`` it has CWM's connector; ``aborts``: it has the endpoint that ends generations.

    ``middleware``: it tells the ids of protocols that have none.
    """

    behaviour: Behaviour = Behaviour.NORMAL
    model: str = MODEL
    release: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    flooding: asyncio.Event = field(default_factory=asyncio.Event)
    has_tokenizer_info: bool = True
    weights: str | None = None
    deployment: str | None = None
    aborts: bool = False
    middleware: bool = True
    busy: tuple[float, float] = (0.0, 0.0)
    """Requests that run, and that wait, as its metrics have them."""
    render_status: int = 404
    """Of a chat that is only to be rendered; 404 without ``--enable-scale-out``."""
    answer_headers: str = ""
    """More lines of the head of each answer."""
    think: str = ""
    """What its template writes before the newest answer of a chat, and leaves out before the answers of the history."""
    figure: str | None = None
    """JSON in place of every number of tokens that an answer reports."""
    call_id: Callable[[], str] = lambda: "call_1"
    """The id of the next tool call in an answer of the Messages API."""
    generates: bool = True
    pooled: dict[str, Any] = field(default_factory=dict)
    """What it answers at the paths of models that do not generate."""
    aborted: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    connections: int = 0
    open_connections: int = 0

    @property
    def turns(self) -> list[Seen]:
        """Generations asked for, less those of the directory's probe."""
        return [
            s
            for s in self.seen
            if s.target.startswith(("/v1/comp", "/v1/chat", MESSAGES, RESPONSES))
            and b"cwm1-probe" not in s.body
        ]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        used = False
        try:
            while (seen := await _request(reader)) is not None:
                self.seen.append(seen)
                if self.behaviour is Behaviour.HANGS_UP_ON_EVERY_REQUEST:
                    break
                if used and self.behaviour is Behaviour.HANGS_UP_ON_USED_CONNECTIONS:
                    break
                used = True
                await _Reply(self, seen, reader, writer).send()
        except ConnectionError:
            pass
        finally:
            self.open_connections -= 1
            writer.close()

    async def wait(self) -> None:
        self.waiting.set()
        await self.release.wait()


def _models(model: str) -> dict[str, Any]:
    served = {
        "id": model,
        "object": "model",
        "root": f"/models/{model}",
        "max_model_len": MAX_MODEL_LEN,
    }
    return {"object": "list", "data": [served]}


def _digests(fake: FakeVllm) -> dict[str, str | None]:
    return {"cwm.weights": fake.weights, "cwm.deployment": fake.deployment}


_GENERATING = ("/v1/completions", "/v1/chat/completions", MESSAGES, RESPONSES)


class _HangUpError(ConnectionError):
    pass


@dataclass(slots=True)
class _Reply:
    fake: FakeVllm
    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self) -> None:
        path = self.seen.target.partition("?")[0]
        if path in _GENERATING and not self.fake.generates:
            await self._json(404, {"detail": "Not Found"})
        elif path in {*_GENERATING, f"{MESSAGES}/count_tokens"} and self._lacks_prompt():
            await self._json(400, _error("Field required", "BadRequestError", "prompt", 400))
        else:
            await self._send(path)

    def _lacks_prompt(self) -> bool:
        with suppress(ValueError):
            asked = self.seen.json
            is_its_own = asked.get("model") == self.fake.model
            return is_its_own and not asked.keys() & {"messages", "prompt", "input"}
        return False

    async def _send(self, path: str) -> None:
        plain = self._plain()
        if path in _GENERATING and b"cwm1-probe" not in self.seen.body:
            await self._generate(path.endswith("chat/completions"))
        elif path == "/v1/completions":
            probed = _body(self.seen.json, chat=False)
            await self._json(200, probed | {"kv_transfer_params": _digests(self.fake)})
        elif path == "/inference/v1/abort_requests" and self.fake.aborts:
            self.fake.aborted += self.seen.json["request_ids"]
            await self._whole(200, b"")
            self.fake.release.set()
        elif path == "/metrics":
            await self._whole(200, (_METRICS + _BUSY.format(*self.fake.busy)).encode())
        elif path in {f"{MESSAGES}/count_tokens", f"{MESSAGES}/render", f"{RESPONSES}/render"}:
            ids = (fake_responses if self._is_response else fake_messages).prompt_ids(self.seen.json)
            await self._json(200, {"input_tokens": len(ids), "token_ids": ids})
        elif self.fake.render_status == 200 and path in fake_scale_out.PATHS:
            await self._scale_out(path)
        elif path == "/v1/chat/completions/render":
            error = {
                "message": '"auto" tool choice requires --tool-call-parser',
                "code": self.fake.render_status,
            }
            await self._json(self.fake.render_status, {"error": error})
        elif path in plain:
            await self._say(path, plain[path])
        elif path == "/tokenize":
            await self._json(
                200, {"tokens": _ids(self.seen.json), "count": 0, "max_model_len": MAX_MODEL_LEN}
            )
        else:
            await self._json(404, {"detail": "Not Found"})

    def _plain(self) -> dict[str, Any]:
        """What is answered to some paths, whatever the request says."""
        answers = {**_PLAIN, "/v1/models": _models(self.fake.model), **self.fake.pooled}
        served = [*answers, *(_GENERATING if self.fake.generates else ())]
        answers["/openapi.json"] = {"openapi": "3.1.0", "paths": {path: {} for path in served}}
        if not self.fake.has_tokenizer_info:
            del answers["/tokenizer_info"]
        if self.fake.behaviour in {Behaviour.GIVES_UP, Behaviour.ENDS_IN_ORDER}:
            del answers["/health"]
        return answers

    async def _say(self, path: str, answer: Any) -> None:
        if path in self.fake.pooled and self.fake.behaviour is Behaviour.WAITS_BEFORE_ANSWERING:
            await self._wait()
        await self._json(200, answer)

    async def _scale_out(self, path: str) -> None:
        asked = self.seen.json
        if path in fake_scale_out.RENDER:
            await self._json(200, fake_scale_out.rendered(asked, _ids(asked), len(ANSWER)))
        elif path in fake_scale_out.DERENDER:
            await self._json(200, fake_scale_out.derendered(asked, _words({})))
        else:
            await self._stream(asked, chat=False)

    def _asked(self, chat: bool) -> dict[str, Any]:
        """The request, as its template has it."""
        asked = self.seen.json
        if chat and self.fake.think:
            asked["messages"].append({"role": "assistant", "content": self.fake.think})
        return asked

    async def _generate(self, chat: bool) -> None:
        asked, does = self._asked(chat), self.fake.behaviour
        if does is Behaviour.WAITS_BEFORE_ANSWERING:
            await self._wait()
        if does is Behaviour.HANGS_UP_WITHOUT_ANSWER:
            raise _HangUpError
        if does is Behaviour.TALKS_GARBAGE:
            self.writer.write(b"\x00\x01 what is this\r\n\r\n")
            raise _HangUpError
        if does is Behaviour.ENGINE_DEAD or (does is Behaviour.GIVES_UP and not asked.get("stream")):
            await self._json(500, _error("Internal server error", "InternalServerError", None, 500))
        elif does in _REFUSALS:
            await self._json(*_REFUSALS[does])
        elif asked.get("model", self.fake.model) != self.fake.model:
            said = f"The model `{asked['model']}` does not exist."
            await self._json(404, _error(said, "NotFoundError", "model", 404))
        elif asked.get("max_tokens") == 0:
            await self._json(
                400, _error("max_tokens must be at least 1", "BadRequestError", "max_tokens", 400)
            )
        elif asked.get("stream"):
            await self._stream(asked, chat)
        elif does is Behaviour.ANSWERS_GARBAGE:
            await self._whole(200, b"<html>no json</html>")
        else:
            await self._whole(200, self._answer(asked, chat))

    @property
    def _is_response(self) -> bool:
        return self.seen.target.startswith(RESPONSES)

    @property
    def _is_message(self) -> bool:
        return self.seen.target.startswith(MESSAGES)

    @property
    def _tells(self) -> bool:
        """Whether CWM's middleware tells the ids of this answer."""
        return "cwm-token-ids" in self.seen.headers and self.fake.middleware

    def _head_of_ids(self) -> bytes:
        return b"cwm-token-ids: 1\r\n" if self._tells else b""

    def _answer(self, asked: dict[str, Any], chat: bool) -> bytes:
        does = self.fake.behaviour
        request_id = asked.get("request_id") or self.seen.headers.get("x-request-id") or "none"
        aborted = does is Behaviour.ENDS_IN_ORDER or any(request_id in each for each in self.fake.aborted)
        if self._is_message:
            words = _words(asked)[: 2 if aborted else None]
            message = fake_messages.body(asked, MODEL, words, self.fake.call_id())
            message |= {"stop_reason": None} if aborted else {}
            told = fake_messages.told_body(asked, message, words)
            return told if self._tells else fake_messages.dumped(message)
        if self._is_response:
            words = _words(asked)[: 2 if aborted else None]
            response = fake_responses.body(asked, MODEL, words)
            told = fake_responses.told_body(asked, response, words, aborted=aborted)
            return told if self._tells else fake_responses.dumped(response)
        answer = _body(asked, chat=chat, hides=does is Behaviour.HIDES_IDS, aborted=aborted)
        if does is Behaviour.TALKS_AT_LENGTH:
            answer["choices"][0]["logprobs"] = {"content": LARGE}
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()

    async def _stream(self, asked: dict[str, Any], chat: bool) -> None:
        does = self.fake.behaviour
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"x-request-id: r1\r\ntransfer-encoding: chunked\r\n"
            + self._head_of_ids()
            + self.fake.answer_headers.encode()
            + b"\r\n"
        )
        if does is Behaviour.WAITS_BEFORE_FIRST_TOKEN:
            await self._wait()
        for count, event in enumerate(self._until_it_ends(asked, chat)):
            await self._chunk(event if isinstance(event, bytes) else b"data: " + event.encode() + b"\n\n")
            if count == 1 and does is Behaviour.WAITS_AFTER_FIRST_TOKEN:
                await self._wait()
            if count == 2 and self.fake.behaviour is Behaviour.DIES_MID_STREAM:
                await self._chunk(b'data: {"id":"half an ev')
                raise _HangUpError
            while count == 2 and does is Behaviour.NEVER_ENDS_AN_EVENT:
                await self._chunk(b"data: " + b"x" * 60_000)
            if count == 2 and does is Behaviour.KEEPS_ALIVE:
                await self._chunk(b": still here\n\n")
                await self._chunk(b"event: progress\nid: 7\ndata: 50\n\n")
        await self._write(b"0\r\n\r\n")

    def _events(self, asked: dict[str, Any], chat: bool) -> Iterator[str | bytes]:
        if self.seen.target == fake_scale_out.GENERATE:
            yield from fake_scale_out.generated(asked, _words({}))
            return
        if self._is_response:
            yield from fake_responses.events(asked, MODEL, _words(asked), told=self._tells)
            return
        if self._is_message:
            yield from fake_messages.events(
                asked, MODEL, _words(asked), self.fake.call_id(), told=self._tells
            )
            return
        events = _chat_events(asked) if chat else _completion_events(asked)
        floods = self.fake.behaviour is Behaviour.FLOODS
        for count, event in enumerate(events):
            yield json.dumps(event, ensure_ascii=False, separators=(",", ":"))
            if (
                count == 1
                and self.fake.behaviour is Behaviour.KEEPS_TOKENS_BACK
                and asked.get("return_token_ids")
            ):
                kept = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None, "token_ids": [7, 8]}
                yield json.dumps({**event, "choices": [kept]}, separators=(",", ":"))
            while count == 2 and floods:
                self.fake.flooding.set()
                yield json.dumps(event) + " " * 60_000
        yield "[DONE]"

    def _until_it_ends(self, asked: dict[str, Any], chat: bool) -> Iterator[str | bytes]:
        does = self.fake.behaviour
        for count, event in enumerate(self._events(asked, chat)):
            if does is Behaviour.ENDS_IN_ORDER and count == 3:
                yield from self._broken_off(asked, event)
                return
            if does in _FAILURES and count == 3:
                yield self._failure()
                return
            if does is Behaviour.ENDS_WITHOUT_DONE and event == "[DONE]":
                return
            yield event

    def _failure(self) -> bytes:
        """The last event of a stream whose engine says that it failed, in its protocol."""
        if self._is_message or self._is_response:
            error = {"code": "internal_error", "message": FAILURE}
            event = json.dumps({"type": "error", **({"error": error} if self._is_message else error)})
            return f"event: error\ndata: {event}\n\n".encode()
        error = _error(FAILURE, "InternalServerError", None, 500)
        return f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode()

    def _broken_off(self, asked: dict[str, Any], event: str | bytes) -> Iterator[bytes]:
        """The end of a stream that goes no further than ``event``: whole, but for what it says of itself."""
        if self._is_message:
            yield from fake_messages.broken_off()
        elif self._is_response:
            words = _words(asked)[:2]
            yield from fake_responses.broken_off(asked, MODEL, words, told=self._tells)
        else:
            last = json.loads(event)
            last["choices"][0] |= {"finish_reason": "abort", "stop_reason": None}
            yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode()

    async def _wait(self) -> None:
        """Wait for the test, or for the client to hang up."""
        released = asyncio.create_task(self.fake.wait())
        gone = asyncio.create_task(self.reader.read(1))
        done, pending = await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if gone in done:
            self.seen.left.set()
            raise _HangUpError

    async def _json(self, status: int, answer: Any) -> None:
        await self._whole(status, json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode())

    async def _whole(self, status: int, content: bytes) -> None:
        content = self._counted(content)
        head = (
            f"HTTP/1.1 {status} Whatever\r\ndate: today\r\nserver: fake\r\nx-request-id: r1\r\n"
            f"content-length: {len(content)}\r\ncontent-type: application/json\r\n"
            f"{self._head_of_ids().decode()}{self.fake.answer_headers}\r\n"
        )
        if self.fake.behaviour is Behaviour.DIES_MID_BODY and self.seen in self.fake.turns:
            await self._write(head.encode() + content[: len(content) // 2])
            raise _HangUpError
        await self._write(head.encode() + content)

    async def _chunk(self, data: bytes) -> None:
        """One HTTP chunk, or one for every byte."""
        data = self._counted(data)
        size = 1 if self.fake.behaviour is Behaviour.SPLITS_EVERY_BYTE else len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _counted(self, content: bytes) -> bytes:
        if self.fake.figure is None:
            return content
        return _FIGURE.sub(lambda match: match[1] + str(self.fake.figure).encode(), content)

    async def _write(self, data: bytes) -> None:
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            self.seen.left.set()
            raise
        self.seen.written += len(data)
        if self.writer.transport.is_closing():
            self.seen.left.set()
            raise _HangUpError


@asynccontextmanager
async def fake_vllm(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeVllm]:
    """With ``tls`` its certificate is for localhost."""
    fake = FakeVllm()
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        await fake.serve(reader, writer)
        open_writers.discard(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    base = "http://127.0.0.1" if tls is None else "https://localhost"
    fake.url = f"{base}:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        fake.release.set()
        server.close()
        for writer in open_writers:
            writer.close()
        await server.wait_closed()


async def _request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body)


def _ids(asked: dict[str, Any]) -> list[int]:
    if "messages" in asked:
        return [token for message in asked["messages"] for token in _ids_of(message)]
    prompt = asked["prompt"]
    return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)


def _ids_of(message: dict[str, Any]) -> list[int]:
    """An answer has the ids with which it was generated."""
    text, tokens = str(message.get("content")), []
    for token, word in _words({}) if message.get("role") == "assistant" else ():
        if not text.startswith(word):
            break
        text = text.removeprefix(word)
        tokens.append(token)
    return [*tokens, *text.encode()]


def _error(message: str, kind: str, param: str | None, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _usage(prompt: list[int], new: int) -> dict[str, Any]:
    details = {"cached_tokens": len(prompt) // 2, "created_cache_tokens": None, "multimodal_tokens": None}
    return {
        "prompt_tokens": len(prompt),
        "total_tokens": len(prompt) + new,
        "completion_tokens": new,
        "prompt_tokens_details": details,
        "completion_tokens_details": None,
    }


def _words(asked: dict[str, Any]) -> list[tuple[int, str]]:
    return list(enumerate(ANSWER, start=1000))[
        : asked.get("max_output_tokens", asked.get("max_tokens", len(ANSWER)))
    ]


def _body(asked: dict[str, Any], *, chat: bool, hides: bool = False, aborted: bool = False) -> dict[str, Any]:
    if not chat and any(isinstance(part, list) for part in asked["prompt"]):
        return _body_of_several(asked)
    prompt, words = _ids(asked), _words(asked)[: 2 if aborted else None]
    told = bool(asked.get("return_token_ids"))
    new = [token for token, _ in words] if told and not hides else None
    text = "".join(word for _, word in words)
    end = {
        "logprobs": None,
        "finish_reason": "abort" if aborted else "length",
        "stop_reason": None,
        "token_ids": new,
        "routed_experts": None,
    }
    ids = prompt if told else None
    answer: dict[str, Any] = {
        "id": "cmpl-1",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": MODEL,
        "choices": [],
        "service_tier": None,
        "system_fingerprint": "vllm-fake",
        "usage": _usage(prompt, len(words)),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    if chat:
        message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
        message |= {"function_call": None, "reasoning": None}
        answer |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
        answer["choices"] = [{"index": 0, "message": message, **end}]
    else:
        answer["choices"] = [
            {"index": 0, "text": text, **end, "prompt_logprobs": None, "prompt_token_ids": ids}
        ]
    return answer


def _body_of_several(asked: dict[str, Any]) -> dict[str, Any]:
    """As vLLM 0.32.0 answered a list of prompts: a choice for each, in the order in which they ended, and the last prompt's cached tokens."""
    prompts: list[list[int]] = asked["prompt"]
    answer = _body({**asked, "prompt": prompts[-1]}, chat=False)
    (choice,) = answer["choices"]
    choices = []
    for index, prompt in enumerate(prompts):
        likeliest = {f"token_id:{prompt[-1] + rank}": -0.5 - rank for rank in range(asked["logprobs"])}
        logprobs = {"text_offset": [0], "token_logprobs": [-0.5], "tokens": [next(iter(likeliest))]}
        choices.append({**choice, "index": index, "logprobs": {**logprobs, "top_logprobs": [likeliest]}})
    cached = {"cached_tokens": len(prompts[-1]) - 1}
    usage = {**answer["usage"], "prompt_tokens": sum(map(len, prompts)), "prompt_tokens_details": cached}
    return {**answer, "choices": choices[::-1], "usage": usage}


def _completion_events(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    prompt, words = _ids(asked), _words(asked)
    told = bool(asked.get("return_token_ids"))
    counted = bool((asked.get("stream_options") or {}).get("include_usage"))
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
    for position, (token, word) in enumerate(words):
        last = position == len(words) - 1
        choice = {"index": 0, "text": word, "logprobs": None, "finish_reason": "length" if last else None}
        choice |= {"stop_reason": None, "prompt_token_ids": prompt if told and not position else None}
        choice |= {"token_ids": [token] if told else None}
        yield {**head, "choices": [choice]} | (
            {"system_fingerprint": "vllm-fake"} if last and not counted else {}
        )
    if counted:
        yield {**head, "choices": [], "usage": _usage(prompt, len(words)), "system_fingerprint": "vllm-fake"}


def _chat_events(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    prompt, words = _ids(asked), _words(asked)
    told = bool(asked.get("return_token_ids"))
    counted = bool((asked.get("stream_options") or {}).get("include_usage"))
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    role = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    yield {**head, "choices": [role], "prompt_token_ids": prompt if told else None, "prompt_text": None}
    for position, (token, word) in enumerate(words):
        last = position == len(words) - 1
        choice = {"index": 0, "delta": {"content": word}, "logprobs": None}
        choice |= {"finish_reason": "length", "stop_reason": None} if last else {"finish_reason": None}
        choice |= {"token_ids": [token] if told else None}
        yield {**head, "choices": [choice]} | (
            {"system_fingerprint": "vllm-fake"} if last and not counted else {}
        )
    if counted:
        yield {**head, "choices": [], "usage": _usage(prompt, len(words)), "system_fingerprint": "vllm-fake"}


_PLAIN: dict[str, Any] = {
    "/version": {"version": "0.0.1"},
    "/health": None,
    "/tokenizer_info": {
        "added_tokens_decoder": {"0": "<s>", "3": SPECIAL},
        "chat_template": "{{ messages }}",
    },
}
_METRICS = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="64",cache_dtype="auto",engine="0",num_gpu_blocks="128"} 1.0
"""
_BUSY = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="fake"}} {}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="fake"}} {}
"""
