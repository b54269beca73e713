"""Models: the engine's list, with a copy of a model for each of its other names; in Anthropic's shape for its clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from cwm.domain.access import AccessScope
from cwm.domain.errors import EngineResponseError
from cwm.domain.model_aliases import ModelAliases
from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.transport.http.envelope import forwarded, headers_of, returned, send_whole, target_of
from cwm.transport.http.request_keys import PRINCIPAL

# Anthropic's clients send it with every request.
_VERSION: Final = "anthropic-version"
_JSON: Final = (b"content-type", b"application/json")
_NO_MODELS: Final = b'{"object":"list","data":[]}'


@dataclass(frozen=True, slots=True)
class ModelsEndpoint:
    pass_through: PassThrough

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request = ClientRequest("GET", target_of(scope, "/v1/models"), forwarded(headers))
        answers = await self.pass_through.relay_to_all(scope[PRINCIPAL], request)
        lists = [(answer, body) for answer, body in answers if answer.status == 200]
        # None of the engines may serve the caller's tenant.
        status, head, content = 200, [_JSON], _NO_MODELS
        if answers:
            answer, content = (lists or answers)[0]
            status, head = answer.status, returned(answer.headers)
        if len(lists) > 1:
            content = _of_all([body for _, body in lists])
        if status == 200 and AccessScope.ADMIN not in scope[PRINCIPAL].scopes:
            content = _without_places(content)
        model_id = scope.get("path_params", {}).get("model")
        of_anthropic = _VERSION in headers
        if status == 200 and model_id is not None:
            status, content = _one_model(content, model_id, self.pass_through.aliases, of_anthropic)
        elif status == 200:
            content = _with_aliases(content, self.pass_through.aliases)
            content = _anthropic_list(content) if of_anthropic else content
        await send_whole(send, status, head, content)


def _without_places(model_list: bytes) -> bytes:
    """The list for a caller who need not know where a model's files are: its ``root`` is its name then."""
    models = _models_of(model_list)
    if not any(_is_place(model.get("root")) for model in models.values()):
        return model_list
    entries = [
        {**model, "root": name} if _is_place(model.get("root")) else model for name, model in models.items()
    ]
    return json.dumps({**json.loads(model_list), "data": entries}, separators=(",", ":")).encode()


def _is_place(root: Any) -> bool:
    return isinstance(root, str) and (root.startswith(("/", "~", ".")) or "://" in root)


def _of_all(model_lists: Sequence[bytes]) -> bytes:
    """The first list with the models of the others behind its own, each name once."""
    models: dict[str, dict[str, Any]] = {}
    for model_list in model_lists:
        for name, model in _models_of(model_list).items():
            models.setdefault(name, model)
    return json.dumps(
        {**json.loads(model_lists[0]), "data": [*models.values()]}, separators=(",", ":")
    ).encode()


def _with_aliases(model_list: bytes, aliases: ModelAliases) -> bytes:
    """The list of models as the engine wrote it, with a copy of a model for each of its other names."""
    models = _models_of(model_list)
    if not (others := aliases.names(models)):
        return model_list
    entries = [*models.values(), *({**models[model], "id": name} for name, model in others.items())]
    return json.dumps({**json.loads(model_list), "data": entries}, separators=(",", ":")).encode()


def _anthropic_list(model_list: bytes) -> bytes:
    """The whole list is one page."""
    models = [_anthropic_model(model) for model in _models_of(model_list).values()]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
    page = {"data": models, "has_more": False, "first_id": None, "last_id": None, **ends}
    return json.dumps(page, separators=(",", ":")).encode()


def _anthropic_model(model: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.get("created") or 0, UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.get("max_model_len"),
        "max_tokens": model.get("max_model_len"),
    }


def _one_model(
    model_list: bytes, model_id: str, aliases: ModelAliases, of_anthropic: bool
) -> tuple[int, bytes]:
    """Pick one model out of the list, because vLLM has no endpoint for a single model."""
    models = _models_of(model_list)
    name = aliases.served(model_id, models)
    if name is None and of_anthropic:
        details = {"type": "not_found_error", "message": f"model: {model_id}"}
        return 404, json.dumps({"type": "error", "error": details}, separators=(",", ":")).encode()
    if name is None:
        error = {
            "message": f"The model `{model_id}` does not exist.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return 404, json.dumps({"error": error}).encode()
    model = {**models[name], "id": model_id}
    shape = _anthropic_model(model) if of_anthropic else model
    return 200, json.dumps(shape, separators=(",", ":")).encode()


def _models_of(model_list: bytes) -> dict[str, dict[str, Any]]:
    try:
        return {model["id"]: model for model in json.loads(model_list)["data"]}
    except (ValueError, KeyError, TypeError) as garbled:
        raise EngineResponseError("vLLM's list of models does not have the documented format.") from garbled
