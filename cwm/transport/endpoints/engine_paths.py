"""What is served under ``/v1``, in OpenAPI: the fields that CWM reads. All others reach the engine unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cwm.domain.names import SESSION_ID_PATTERN
from cwm.domain.pooling import POOLING_PATHS
from cwm.transport.endpoints.openapi import (
    ANYTHING,
    COUNT,
    FLAG,
    TEXT,
    Shape,
    answer,
    body,
    list_of,
    object_of,
    one_of,
    operation,
    refusals,
)

_SAMPLING: Final[Mapping[str, Shape]] = {
    "max_tokens": COUNT,
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "seed": {"type": "integer", "minimum": 0},
    "stream": FLAG,
}
_MESSAGE: Final = object_of({"role": {"enum": ["user", "assistant"]}, "content": TEXT})
_ITEM: Final = object_of(
    {"role": {"enum": ["user", "assistant", "system"]}, "content": TEXT}, {"type": {"enum": ["message"]}}
)
_METADATA: Final[Shape] = {
    "type": "object",
    "maxProperties": 16,
    "propertyNames": {"maxLength": 64},
    "additionalProperties": {**TEXT, "maxLength": 512},
}
_ITEMS: Final = list_of(_ITEM, maxItems=20)

SHAPES: Final[Mapping[str, Shape]] = {
    "Completion": object_of(
        {
            "model": TEXT,
            "prompt": {
                "anyOf": [
                    {**TEXT, "minLength": 1},
                    list_of({"type": "integer", "minimum": 0}, minItems=1),
                ]
            },
        },
        _SAMPLING,
    ),
    "Chat": object_of(
        {
            "model": TEXT,
            "messages": list_of(
                object_of({"role": {"enum": ["system", "user", "assistant"]}, "content": TEXT}), minItems=1
            ),
        },
        _SAMPLING,
    ),
    "Message": object_of(
        {"model": TEXT, "max_tokens": COUNT, "messages": list_of(_MESSAGE, minItems=1)},
        {"system": TEXT, "stream": FLAG, "stop_sequences": list_of({**TEXT, "minLength": 1}, maxItems=4)},
    ),
    "Counted": object_of({"model": TEXT, "messages": list_of(_MESSAGE, minItems=1)}, {"system": TEXT}),
    "Response": object_of(
        {
            "model": TEXT,
            "input": {"anyOf": [{**TEXT, "minLength": 1}, list_of(_ITEM, minItems=1)]},
        },
        {
            "instructions": TEXT,
            "max_output_tokens": COUNT,
            "stream": FLAG,
            "store": FLAG,
            "previous_response_id": {"type": ["string", "null"]},
        },
    ),
    "NewConversation": object_of({}, {"metadata": _METADATA, "items": _ITEMS}),
    "Described": object_of({"metadata": _METADATA}),
    "NewItems": object_of({"items": _ITEMS}),
    "Pooled": object_of({"model": TEXT}, {"input": {"anyOf": [TEXT, list_of(TEXT)]}}),
    "Answer": ANYTHING,
    "Count": object_of({"input_tokens": COUNT}),
    "ResponseCount": object_of({"object": TEXT, "input_tokens": COUNT}),
    "Models": object_of({"data": list_of(object_of({"id": TEXT}))}),
    "Conversation": object_of(
        {
            "id": TEXT,
            "object": {"enum": ["conversation"]},
            "created_at": {"type": "integer"},
            "metadata": _METADATA,
        }
    ),
    "Items": object_of({"object": {"enum": ["list"]}, "data": list_of(ANYTHING), "has_more": FLAG}),
    "Deleted": object_of({"id": TEXT, "object": TEXT, "deleted": FLAG}),
    "AnthropicRefused": object_of(
        {"type": {"enum": ["error"]}, "error": object_of({"type": TEXT, "message": TEXT})},
        {"request_id": TEXT, "retry_after_seconds": COUNT},
    ),
}
_QUESTION: Final = "Which modules use the old token format?"
_SAID: Final = {"role": "user", "content": _QUESTION}
EXAMPLES: Final[Mapping[str, Shape]] = {
    "Completion": {"model": "llama-3.1-8b", "prompt": "The old token format is used", "max_tokens": 16},
    "Chat": {"model": "llama-3.1-8b", "messages": [_SAID], "temperature": 0},
    "Message": {"model": "llama-3.1-8b", "max_tokens": 16, "messages": [_SAID]},
    "Counted": {"model": "llama-3.1-8b", "messages": [_SAID]},
    "Response": {"model": "llama-3.1-8b", "input": _QUESTION, "max_output_tokens": 16},
    "NewConversation": {"metadata": {"ticket": "4711"}, "items": [_SAID]},
    "Described": {"metadata": {"ticket": "4712"}},
    "NewItems": {"items": [_SAID]},
    "Pooled": {"model": "bge-m3", "input": ["Which modules use the old token format?"]},
    "Answer": {
        "id": "cmpl-8a7f2c",
        "object": "text_completion",
        "created": 1769078712,
        "model": "llama-3.1-8b",
        "choices": [{"index": 0, "text": " in the auth module.", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    },
    "Count": {"input_tokens": 14},
    "ResponseCount": {"object": "response.input_tokens", "input_tokens": 14},
    "Models": {"data": [{"id": "llama-3.1-8b"}]},
    "Conversation": {
        "id": "conv_68ee12",
        "object": "conversation",
        "created_at": 1769078712,
        "metadata": {"ticket": "4711"},
    },
    "Items": {
        "object": "list",
        "data": [{"id": "msg_1", "type": "message", **_SAID}],
        "has_more": False,
    },
    "Deleted": {"id": "conv_68ee12", "object": "conversation.deleted", "deleted": True},
    "AnthropicRefused": {
        "type": "error",
        "error": {"type": "not_found_error", "message": "model: llama", "code": "CWM-1003"},
        "request_id": "req_011",
    },
}
_SESSION: Final[Shape] = {
    "name": "CWM-Session-Id",
    "in": "header",
    "required": False,
    "description": "The session in which the turn is recorded; the first turn creates it.",
    "schema": {"type": "string", "pattern": SESSION_ID_PATTERN, "examples": ["session_abc123"]},
}
_PAGE: Final = (
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "examples": [20]},
    },
    {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"], "examples": ["asc"]}},
    {"name": "after", "in": "query", "schema": {**TEXT, "examples": ["msg_1"]}},
)
_LOGIN: Final = (401, 403)
_STORE: Final = (*_LOGIN, 404, 429, 503)
_TURN: Final = (400, *_LOGIN, 404, 409, 413, 429, 503, 504)


def _path(name: str, example: str) -> Shape:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {**TEXT, "minLength": 1, "examples": [example]},
    }


def _turn(summary: str, request: str) -> Shape:
    return {
        "post": operation(
            request.lower(),
            summary,
            {"200": _streamed("Answer"), **refusals(*_TURN)},
            _SESSION,
            requestBody=body(request),
        )
    }


def _streamed(shape: str) -> Shape:
    success = answer("the engine's answer, unchanged", one_of(shape))
    # Each event is data: {…}.
    success["content"]["text/event-stream"] = {"schema": {}}
    return success


def _ok(meaning: str, shape: str, *statuses: int) -> Shape:
    return {"200": answer(meaning, one_of(shape)), **refusals(*statuses)}


def _anthropic(name: str, summary: str, request: str, success: Shape, *parameters: Shape) -> Shape:
    answers = {"200": success, **refusals(*_TURN, 529, shape="AnthropicRefused")}
    return {"post": operation(name, summary, answers, *parameters, requestBody=body(request))}


_RESPONSE: Final = _path("response", "resp_68ee12")
_CONVERSATION: Final = _path("conversation", "conv_68ee12")
_WRITTEN: Final = (400, *_STORE, 413)

PATHS: Final[Mapping[str, Shape]] = {
    "/v1/completions": _turn(
        "A completion by the engine, recorded in a session if one is named.", "Completion"
    ),
    "/v1/chat/completions": _turn("A chat with the engine, recorded in a session.", "Chat"),
    "/v1/messages": _anthropic(
        "message",
        "A chat in Anthropic's words, recorded in a session.",
        "Message",
        _streamed("Answer"),
        _SESSION,
    ),
    "/v1/messages/count_tokens": _anthropic(
        "count_tokens",
        "How many tokens a prompt has.",
        "Counted",
        answer("the count", one_of("Count")),
    ),
    "/v1/responses": _turn("A response by the engine, recorded in a session.", "Response"),
    "/v1/responses/input_tokens": {
        "post": operation(
            "response_input_tokens",
            "How many tokens a response would go on from.",
            _ok("the count", "ResponseCount", *_TURN),
            requestBody=body("Response"),
        )
    },
    "/v1/responses/{response}": {
        "get": operation(
            "get_response",
            "A response as its client got it.",
            _ok("the response", "Answer", 400, *_STORE),
            _RESPONSE,
        ),
        "delete": operation(
            "delete_response",
            "Lets it not be found; what was said stays in its session.",
            _ok("it is not found any more", "Deleted", *_STORE),
            _RESPONSE,
        ),
    },
    "/v1/responses/{response}/cancel": {
        "post": operation(
            "cancel_response",
            "Refused: no response is computed in the background.",
            refusals(400, *_STORE),
            _RESPONSE,
        )
    },
    "/v1/responses/{response}/input_items": {
        "get": operation(
            "input_items",
            "All that the engine was sent for a response.",
            _ok("the items", "Items", 400, *_STORE),
            _RESPONSE,
            *_PAGE,
        )
    },
    "/v1/conversations": {
        "post": operation(
            "new_conversation",
            "Creates a conversation, to which responses that name it are added.",
            _ok("the conversation", "Conversation", *_WRITTEN),
            requestBody=body("NewConversation", required=False),
        )
    },
    "/v1/conversations/{conversation}": {
        "get": operation(
            "get_conversation", "Reads it.", _ok("the conversation", "Conversation", *_STORE), _CONVERSATION
        ),
        "post": operation(
            "describe_conversation",
            "Replaces its metadata.",
            _ok("the conversation", "Conversation", *_WRITTEN),
            _CONVERSATION,
            requestBody=body("Described"),
        ),
        "delete": operation(
            "delete_conversation",
            "Deletes it; its session stays.",
            _ok("it is deleted", "Deleted", *_STORE),
            _CONVERSATION,
        ),
    },
    "/v1/conversations/{conversation}/items": {
        "get": operation(
            "items", "Its items.", _ok("the items", "Items", 400, *_STORE), _CONVERSATION, *_PAGE
        ),
        "post": operation(
            "add_items",
            "Appends items.",
            _ok("the items", "Items", *_WRITTEN),
            _CONVERSATION,
            requestBody=body("NewItems"),
        ),
    },
    "/v1/conversations/{conversation}/items/{item}": {
        "get": operation(
            "get_item",
            "One item.",
            _ok("the item", "Answer", *_STORE),
            _CONVERSATION,
            _path("item", "msg_1"),
        ),
        "delete": operation(
            "delete_item",
            "Removes an item.",
            _ok("the conversation without it", "Conversation", *_STORE),
            _CONVERSATION,
            _path("item", "msg_1"),
        ),
    },
    **{
        path: {
            "post": operation(
                path.removeprefix("/").replace("/", "_"),
                "What a model serves that does not generate; nothing is recorded.",
                _ok("the engine's answer, unchanged", "Answer", *_TURN),
                requestBody=body("Pooled"),
            )
        }
        for path in POOLING_PATHS
    },
    "/v1/models": {
        "get": operation(
            "models",
            "The models that the engine serves.",
            _ok("the models", "Models", *_LOGIN, 429, 503, 504),
        )
    },
    "/v1/models/{model}": {
        "get": operation(
            "model",
            "One model.",
            _ok("the model", "Answer", 400, *_STORE, 504),
            _path("model", "llama-3.1-8b"),
        )
    },
}
