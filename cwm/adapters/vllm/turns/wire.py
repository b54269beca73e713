"""Reads requests of every protocol that vLLM serves, and refuses what is not a caller's to set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
# Fields of vLLM by which a caller would order other requests, or reach extensions without a check.
_GUARDED: Final = frozenset({"priority", "ec_transfer_params", _UNCHECKED})
_ROUTING_HEADERS: Final = ("x-data-parallel-", "x-vllm-")
# Fields of OpenAI that its clients send and vLLM ignores without a change of the answer.
_IGNORED: Final = frozenset(
    {
        "metadata",
        "modalities",
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


_Request: TypeAlias = OpenAiRequest | MessagesRequest | ResponsesRequest


@dataclass(frozen=True, slots=True)
class _Protocol:
    """The fields that a request may have, what reads it, and the fields of vLLM that only the gateway sets.

    ``unknown``: how its API words that a field is not known.
    """

    known: frozenset[str]
    request: Callable[..., _Request]
    ours: tuple[str, ...] = _OURS
    unknown: str = ""


_MESSAGES: Final = _Protocol(
    request_fields.MESSAGES | UNHEEDED | UNSERVED,
    MessagesRequest,
    unknown="{name}: Extra inputs are not permitted. ",
)
_PROTOCOLS: Final[Mapping[str, _Protocol]] = {
    "/v1/chat/completions": _Protocol(request_fields.CHAT | _IGNORED, partial(OpenAiRequest, operation=CHAT)),
    "/v1/completions": _Protocol(
        request_fields.COMPLETIONS | _IGNORED, partial(OpenAiRequest, operation=COMPLETION)
    ),
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": replace(_MESSAGES, request=CountRequest),
    "/v1/responses": _Protocol(
        request_fields.RESPONSES | _IGNORED | responses.IGNORED, ResponsesRequest, (*_OURS, *responses.OURS)
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
        fields, protocol = json_object(body), _PROTOCOLS.get(path.partition("?")[0], _NONE)
        unchecked = fields.get(_UNCHECKED)
        for name in protocol.ours:
            if name in fields or (isinstance(unchecked, dict) and name in unchecked):
                raise InvalidParameterError(f"'{name}' is set by the gateway; leave it out.", field=name)
        self._require_known(fields, protocol, headers)
        request = protocol.request(fields, body, self.max_answer_bytes, self.media, self.prompts)
        request.require_constraints(self.schemas)
        request.require_sequences(self.sequences)
        return request

    def _require_known(
        self, fields: Mapping[str, Any], protocol: _Protocol, headers: Mapping[str, str]
    ) -> None:
        """Nothing that a caller sends is dropped, and nothing passes that the gateway does not know."""
        allowed_names = (protocol.known - self.guarded) | self.passed
        foreign_names = sorted(fields.keys() - allowed_names)
        foreign_names += [
            name for name in headers if name.startswith(_ROUTING_HEADERS) and name not in self.passed
        ]
        if foreign_names:
            name = foreign_names[0]
            why = "is for the operator to set" if name in _GUARDED or name in headers else "is not known"
            raise InvalidParameterError(
                f"{protocol.unknown.format(name=name[:128])}'{name[:128]}' {why}; leave it out, or let the operator name it in {_PASSED}.",
                field=name[:128],
                setting=_PASSED,
            )
