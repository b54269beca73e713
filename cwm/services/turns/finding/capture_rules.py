"""Capture rules: whether a request that names no session of CWM is recorded, and under which hints."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from cwm.domain.conversation import Capture, CapturePolicies, cache_key_of
from cwm.domain.principal import Principal
from cwm.ports.turn_wire import TurnRequest
from cwm.services.turns.finding.request import ClientRequest
from cwm.threads import aside


@dataclass(slots=True)
class CaptureRules:
    """``single_user``: everything that is asked is one person's."""

    policies: CapturePolicies = field(default_factory=CapturePolicies)
    single_user: bool = False

    def apply_to(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest, follows: str | None
    ) -> bool:
        """Whether to look for the session. A client that may read its response again names its conversation by that."""
        policy = self.policies.of(principal.tenant, single_user=self.single_user)
        ask = request.response
        if policy is Capture.OFF or not incoming.captured:
            return False
        if ask is not None and not ask.stored and self.policies.unstored is Capture.OFF:
            return False
        names = (incoming.session_id, incoming.conversation, follows)
        is_named = any(names) or (ask is not None and (ask.stored or ask.conversation is not None))
        return bool(is_named) or (policy is Capture.ALL and request.operation == "chat")

    def fixed_id(self, incoming: ClientRequest, request: TurnRequest) -> str | None:
        """The id of a chat, if it stands for all conversations of a configuration."""
        if request.operation != "chat":
            return None
        return self.policies.fixed(incoming.session_id, incoming.conversation)

    async def hints(self, incoming: ClientRequest, fixed_id: str | None) -> tuple[str, ...]:
        """What parts conversations that begin alike."""
        key = None
        if self.policies.by_cache_key:
            key = await aside(len(incoming.body), partial(cache_key_of, incoming.body))
        return tuple(hint for hint in (fixed_id, key) if hint is not None)
