"""Models: the engine's list, with a copy of a model for each of its other names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from cwm.domain.errors import EngineResponseError
from cwm.domain.model_aliases import ModelAliases
from cwm.ports.identity import Identity
from cwm.services.turns.admission import ClientRequest
from cwm.services.turns.pass_through import PassThrough
from cwm.transport.http.envelope import forwarded, headers_of, returned, send_whole, target_of
from cwm.transport.http.request_keys import PRINCIPAL


@dataclass(frozen=True, slots=True)
class ModelsEndpoint:
    pass_through: PassThrough
    identity: Identity

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        if PRINCIPAL not in scope:
            await self.identity.authenticate(headers)
        request = ClientRequest("GET", target_of(scope, "/v1/models"), forwarded(headers))
        answered = await self.pass_through.relay(request)
        content = b"".join([chunk async for chunk in answered.chunks()])
        status, model_id = answered.status, scope.get("path_params", {}).get("model")
        if status == 200 and model_id is not None:
            status, content = _one_model(content, model_id, self.pass_through.aliases)
        elif status == 200:
            content = _with_aliases(content, self.pass_through.aliases)
        await send_whole(send, status, returned(answered.headers), content)


def _with_aliases(model_list: bytes, aliases: ModelAliases) -> bytes:
    """The list of models as the engine wrote it, with a copy of a model for each of its other names."""
    models = _models_of(model_list)
    if not (others := aliases.names(models)):
        return model_list
    listed = [*models.values(), *({**models[model], "id": name} for name, model in others.items())]
    return json.dumps({**json.loads(model_list), "data": listed}, separators=(",", ":")).encode()


def _one_model(model_list: bytes, model_id: str, aliases: ModelAliases) -> tuple[int, bytes]:
    """Pick one model out of the list, because vLLM has no endpoint for a single model."""
    models = _models_of(model_list)
    name = aliases.served(model_id, models)
    if name is None:
        error = {
            "message": f"The model `{model_id}` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
        return 404, json.dumps({"error": error}).encode()
    return 200, json.dumps({**models[name], "id": model_id}, separators=(",", ":")).encode()


def _models_of(model_list: bytes) -> dict[str, dict[str, Any]]:
    try:
        return {model["id"]: model for model in json.loads(model_list)["data"]}
    except (ValueError, KeyError, TypeError) as garbled:
        raise EngineResponseError("vLLM's list of models does not have the documented format.") from garbled
