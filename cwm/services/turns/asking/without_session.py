"""A request that belongs to no session: nothing of it is recorded but its tokens' number."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.ports.turn_wire import TurnRequest
from cwm.services.access.limits import Limits
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.sessions.open_session import OpenSession
from cwm.services.turns.asking.outbound import Outbound
from cwm.services.turns.finding.request import is_recordable


@dataclass(frozen=True, slots=True)
class WithoutSession:
    directory: EngineDirectory
    place: Place
    open_session: OpenSession
    limits: Limits

    async def __call__(self, principal: Principal, request: TurnRequest, work: ExitStack) -> Outbound:
        directory = self.directory
        identity = await directory.served(request.model, principal.tenant)
        if identity is None:
            # vLLM has the best error for a model it does not serve; any salt of the tenant will do for that request.
            identity = await directory.identity(None, tenant=principal.tenant)
        else:
            identity = await self.place.anywhere(identity.model, principal.tenant, work)
            request = request.addressed_to(
                identity.model, identity.max_model_len, directory.switches(identity)
            )
        identity.require_room(request.prompt_tokens)
        scope = await self.open_session.scope_of_none(principal)
        salt = directory.salt(principal.tenant, scope, identity)
        counted = self._counts(request)
        ids_requested = counted or await self._may_go_on(principal, request, identity)
        return Outbound(
            request,
            request.body(salt, weights=identity.expected, recorded=ids_requested),
            directory.engine.on(identity.engine),
            identity,
            ids_requested=ids_requested,
            counted=counted,
            abortable=directory.survives_aborts(identity),
        )

    async def counted(self, principal: Principal, request: TurnRequest) -> Outbound:
        """A request that generates nothing and uses no KV."""
        directory = self.directory
        engine = directory.engine
        if (identity := await directory.served(request.model, principal.tenant)) is not None:
            request = request.addressed_to(
                identity.model, identity.max_model_len, directory.switches(identity)
            )
        elif not directory.is_one:
            # The first of all engines may be another tenant's.
            identity = await directory.identity(None, tenant=principal.tenant)
        if identity is not None:
            engine = engine.on(identity.engine)
        return Outbound(request, request.body("", weights="", recorded=False), engine)

    async def _may_go_on(self, principal: Principal, request: TurnRequest, identity: EngineIdentity) -> bool:
        """Whether to request the token ids of a stream that is not recorded, so that another engine can go on with it."""
        directory = self.directory
        if directory.is_one or directory.is_router(identity.engine):
            return False
        if not request.resumable or not is_recordable(request):
            return False
        return len(await directory.candidates(identity.model, principal.tenant)) > 1

    def _counts(self, request: TurnRequest) -> bool:
        """Whether to request the token ids of a turn that is not recorded, in order to count its tokens.

        If a client leaves a stream, the ids are the only way to count them.
        """
        if not self.limits.counts_tokens:
            return False
        if not is_recordable(request):
            if request.streamed:
                raise InvalidParameterError(
                    "Where tokens are budgeted, a stream has one prompt, no 'echo' and no "
                    "'include_reasoning': false; ask without 'stream'.",
                    field="stream",
                )
            return False
        return True
