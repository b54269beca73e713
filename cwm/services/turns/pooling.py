"""Pooling: forwards requests to models that do not generate, which leave no record and use nobody's KV."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus

from cwm.domain.errors import EngineConnectionError, InvalidParameterError
from cwm.domain.pooling import pooling_fields, salted
from cwm.domain.principal import Principal
from cwm.services.turns.admission import ClientRequest
from cwm.services.turns.pass_through import EngineAnswer, PassThrough


@dataclass(frozen=True, slots=True)
class Pooling:
    pass_through: PassThrough

    async def __call__(self, principal: Principal, incoming: ClientRequest) -> tuple[EngineAnswer, bytes]:
        """Forward a request to the engine with the least work that serves its model to the caller's tenant: the whole answer.

        CWM-1003 for a model that is not served, or not for this; 5001, 5002, 6001; 7001, 7002 and 7003 over a limit.
        """
        limits = self.pass_through.limits
        with ExitStack() as scope:
            scope.callback(await limits.admit(principal, None))
            fields = pooling_fields(incoming.body)
            await limits.require_tokens(principal)
            name, engine = await self._place(principal.tenant, fields.get("model"), scope)
            salt = self.pass_through.admission.directory.plain_salt(principal.tenant, name)
            body = salted({**fields, "model": name}, salt)
            request = replace(incoming, body=body, left=asyncio.Event())
            try:
                answer = await self.pass_through.relay(request, engine)
                content = b"".join([chunk async for chunk in answer.chunks()])
            finally:
                request.left.set()
            if answer.status == HTTPStatus.NOT_FOUND and b'"error"' not in content:
                raise InvalidParameterError(
                    f"The model '{name}' does not serve {incoming.path.partition('?')[0]}.", field="model"
                )
            await limits.spend(principal, _tokens(content))
            return answer, content

    async def _place(self, tenant: str, asked: str | None, scope: ExitStack) -> tuple[str, str]:
        """The names of the model and of the engine that takes the request, which counts as its work until ``scope`` is closed."""
        admission = self.pass_through.admission
        directory = admission.directory
        model = await directory.served_name(asked, tenant)
        candidates = await directory.candidates(model, tenant)
        drained = await admission.registry.drained_engines()
        candidates = tuple(name for name in candidates if name not in drained) or candidates
        if not candidates:
            raise EngineConnectionError(f"No engine that serves '{model}' answers.", model=model)
        engine = next((name for name in candidates if not directory.is_full(name)), None)
        if engine is None:
            raise admission.place.full(model, len(candidates))
        scope.enter_context(directory.works(engine))
        return model, engine


def _tokens(content: bytes) -> int:
    try:
        tokens = json.loads(content)["usage"]["total_tokens"]
    except (ValueError, KeyError, TypeError):
        return 0
    return tokens if isinstance(tokens, int) else 0
