"""Reads requests of every protocol that vLLM serves: refuses what is not a caller's to set and what vLLM would leave undone, and drops what nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.turns import request_fields
from cwm.adapters.vllm.turns.answers import renaming
from cwm.adapters.vllm.turns.body import json_object
from cwm.adapters.vllm.turns.messages.request import UNHEEDED, UNSERVED, CountRequest, MessagesRequest
from cwm.adapters.vllm.turns.openai.request import CHAT, COMPLETION, OpenAiRequest
from cwm.adapters.vllm.turns.prompt_ids import RecentPrompts
from cwm.adapters.vllm.turns.responses import request as responses
from cwm.adapters.vllm.turns.responses.request import ResponsesRequest
from cwm.domain.constraints import SchemaLimits
from cwm.domain.errors import InvalidParameterError

_OURS: Final = ("cache_salt", "kv_transfer_params")
_NO_HEADERS: Final[Mapping[str, str]] = {}
# vLLM also reads these fields from here, without a check: it answers 500 if ``kv_transfer_params`` is not an object.
_UNCHECKED: Final = "vllm_xargs"
_PASSED: Final = "CWM_PASSED_FIELDS"
# Fields of vLLM, also of its development mode, by which a caller would order other requests, choose weights or KV, or reach extensions without a check.
_GUARDED: Final = frozenset(
    {
        "priority",
        "data_parallel_rank",
        "ec_transfer_params",
        "kv_hints",
        "lora_path",
        "lora_request",
        "weight_version",
        "weights",
        _UNCHECKED,
    }
)
_ROUTING_HEADERS: Final = ("x-data-parallel-", "x-vllm-")
# Fields of OpenAI that its clients send and vLLM ignores without a change of the answer.
_IGNORED: Final = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)


# Values of such fields that ask for what vLLM does anyway.
_USUAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "best_of": (1,),
}

_MOST_FIELDS: Final = 1_000
_MOST_ELEMENTS: Final = 10_000
_MOST_PARTS: Final = 20_000
_MOST_MODEL_CHARS: Final = 2_000
_LISTS: Final = ("messages", "input", "tools", "documents", "system")

_Request: TypeAlias = OpenAiRequest | MessagesRequest | ResponsesRequest


@dataclass(frozen=True, slots=True)
class _Protocol:
    """The fields that a request may have, what reads it, and the fields of vLLM that only the gateway sets.

    ``undone``: the API's own fields that ask for more than vLLM does, and how the API words that they are not taken.
    """

    known: frozenset[str]
    request: Callable[..., _Request]
    ours: tuple[str, ...] = _OURS
    undone: frozenset[str] = frozenset()
    wording: str = ""


_MESSAGES: Final = _Protocol(
    request_fields.MESSAGES | UNHEEDED | UNSERVED,
    MessagesRequest,
    wording="{name}: Extra inputs are not permitted. ",
)
_PROTOCOLS: Final[Mapping[str, _Protocol]] = {
    "/v1/chat/completions": _Protocol(
        request_fields.CHAT | _IGNORED,
        partial(OpenAiRequest, operation=CHAT),
        undone=frozenset(
            {"audio", "function_call", "functions", "modalities", "moderation", "web_search_options"}
        ),
    ),
    "/v1/completions": _Protocol(
        request_fields.COMPLETIONS | _IGNORED,
        partial(OpenAiRequest, operation=COMPLETION),
        undone=frozenset({"best_of"}),
    ),
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": replace(_MESSAGES, request=CountRequest),
    "/v1/responses": _Protocol(
        request_fields.RESPONSES | _IGNORED | responses.IGNORED,
        ResponsesRequest,
        (*_OURS, *responses.OURS),
        frozenset({"access_programs", "background_options", "context_management", "image", "moderation"}),
    ),
}
_NONE: Final = _Protocol(frozenset(), OpenAiRequest)


@dataclass(frozen=True, slots=True)
class VllmWire:
    """The port :class:`cwm.ports.turn_wire.TurnWire` for vLLM. ``max_answer_bytes``: of an answer in one piece whose ids are read."""

    max_answer_bytes: int = 32 * 1024 * 1024
    schemas: SchemaLimits = field(default_factory=SchemaLimits)
    sequences: int = 64
    media: MediaRule = field(default_factory=MediaRule)
    passed: frozenset[str] = frozenset()
    prompts: RecentPrompts = field(default_factory=RecentPrompts)

    @property
    def guarded(self) -> frozenset[str]:
        """Fields of vLLM that are refused."""
        return _GUARDED - self.passed

    def renaming(self, served_name: str, client_name: str) -> Callable[[bytes], bytes]:
        return renaming(served_name, client_name)

    def read(self, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> _Request:
        fields, has_halves = json_object(body)
        protocol = _PROTOCOLS.get(path.partition("?")[0], _NONE)
        unchecked = fields.get(_UNCHECKED)
        for name in protocol.ours:
            if name in fields or (isinstance(unchecked, dict) and name in unchecked):
                raise InvalidParameterError(f"'{name}' is set by the gateway; leave it out.", field=name)
        _require_few(fields)
        foreign = fields.keys() - ((protocol.known - self.guarded) | self.passed)
        self._require_served(fields, foreign, protocol, headers)
        request = protocol.request(fields, body, self.max_answer_bytes, self.media, self.prompts)
        request = (request.mended() if has_halves else request).without(foreign)
        request.require_constraints(self.schemas)
        request.require_sequences(self.sequences)
        return request

    def _require_served(
        self,
        fields: Mapping[str, Any],
        foreign: AbstractSet[str],
        protocol: _Protocol,
        headers: Mapping[str, str],
    ) -> None:
        """CWM-1003 for what is the operator's to set, and for what the API has and vLLM would leave undone."""
        guarded = [name for name in sorted(foreign) if name in _GUARDED and not _is_empty(fields[name])]
        guarded += [name for name in headers if name.startswith(_ROUTING_HEADERS) and name not in self.passed]
        undone = [name for name in sorted(foreign & protocol.undone) if not _asks_nothing(name, fields[name])]
        for name in (*guarded, *undone):
            why = "is not done by this server" if name in protocol.undone else "is for the operator to set"
            raise InvalidParameterError(
                f"{protocol.wording.format(name=name[:128])}'{name[:128]}' {why}; leave it out, or let the operator name it in {_PASSED}.",
                field=name[:128],
                setting=_PASSED,
            )


def _require_few(fields: Mapping[str, Any]) -> None:
    """CWM-1003 for more fields, messages, parts, tools or documents than any client sends: each costs the gateway some work of its own."""
    if len(fields) > _MOST_FIELDS:
        raise _too_many("body", len(fields), _MOST_FIELDS)
    for name in _LISTS:
        value = fields.get(name)
        elements = value if isinstance(value, list) else []
        if len(elements) > _MOST_ELEMENTS:
            raise _too_many(name, len(elements), _MOST_ELEMENTS)
        contents = [each.get("content") for each in elements if isinstance(each, dict)]
        parts = sum(len(content) for content in contents if isinstance(content, list))
        if parts > _MOST_PARTS:
            raise _too_many(f"{name}.content", parts, _MOST_PARTS)
    model = fields.get("model")
    if isinstance(model, str) and len(model) > _MOST_MODEL_CHARS:
        raise _too_many("model", len(model), _MOST_MODEL_CHARS)


def _too_many(field: str, count: int, limit: int) -> InvalidParameterError:
    return InvalidParameterError(
        f"'{field}' has a length of {count}; at most {limit} are taken.", field=field, limit=limit
    )


def _is_empty(value: Any) -> bool:
    """Whether a field asks for nothing."""
    return value is None or value in ("", [], {})


def _asks_nothing(name: str, value: Any) -> bool:
    return _is_empty(value) or value in _USUAL.get(name, ())
