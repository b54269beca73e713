"""Interest in resources that only CWM itself tells of."""

from __future__ import annotations

from cwm.domain.principal import Principal


class NobodyToAsk:
    """CWM publishes changes of its own resources unasked, so there is nobody to tell."""

    async def watch(self, principal: Principal, agent_session: str | None, uri: str) -> None:
        pass

    async def unwatch(self, principal: Principal, agent_session: str | None, uri: str) -> None:
        pass
