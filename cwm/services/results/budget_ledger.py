"""Counts the tokens of tool results that each agent session received, over all replicas."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.errors import CwmError
from cwm.services.agents.agents import Agents
from cwm.services.agents.context_manager import ContextManager

_STORED_AS: Final = "tokens_delivered"
_STEP_TOKENS: Final = 2_000

_log = logging.getLogger("cwm.ledger")


@dataclass(slots=True)
class _Account:
    """``stored``: the store's count at the last request. ``unsent``: tokens delivered here since."""

    stored: int = 0
    unsent: int = 0
    is_read: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ledger:
    """Counts per agent session. The store is updated in steps, and when a replica stops serving the session.

    Requests without an agent session are not counted: a principal's agents cannot be told apart. If the store is
    unreachable the count is delayed and nothing is refused. If the answer to an update is lost, the update is repeated
    and may count twice: the context then seems fuller than it is.
    """

    def __init__(self, agents: Agents, *, step_tokens: int = _STEP_TOKENS) -> None:
        self._agents = agents
        self._store = agents.store
        self._step = step_tokens
        self._accounts: dict[str, _Account] = {}
        agents.at_end(self._settle)

    async def delivered(self, agent: ContextManager) -> int:
        """Tokens that the agent session received so far, as far as this replica knows."""
        account = self._account(agent)
        if account is None:
            return 0
        if not account.is_read:
            async with account.writing:
                await self._read(agent.key, account)
        return account.stored + account.unsent

    async def add(self, agent: ContextManager, tokens: int) -> None:
        """Count delivered tokens."""
        account = self._account(agent)
        if account is None:
            return
        account.unsent += tokens
        if account.unsent >= self._step:
            async with account.writing:
                await self._write(agent.key, account)

    def _account(self, agent: ContextManager) -> _Account | None:
        """The agent session's account. No new one is opened if it is not served here, as nothing would settle it."""
        session = agent.agent_session
        if session is None or self._agents.held(agent.principal, session) is not agent:
            return self._accounts.get(agent.key)
        return self._accounts.setdefault(agent.key, _Account())

    async def _settle(self, agent: ContextManager) -> None:
        """Write the rest of the count when this replica stops serving the agent session."""
        account = self._accounts.pop(agent.key, None)
        if account is not None and account.unsent:
            async with account.writing:
                await self._write(agent.key, account)

    async def _read(self, key: str, account: _Account) -> None:
        if account.is_read:
            return
        try:
            stored = (await self._store.recall(key)).get(_STORED_AS, "0")
        except CwmError as error:
            _log.warning("the count of delivered tokens cannot be read: %s", error.message)
            return
        account.stored, account.is_read = int(stored), True

    async def _write(self, key: str, account: _Account) -> None:
        unsent = account.unsent
        try:
            stored = await self._store.add(key, _STORED_AS, unsent)
        except CwmError as error:
            _log.warning("the count of delivered tokens cannot be written: %s", error.message)
            return
        if stored is not None:
            account.stored, account.is_read = stored, True
            account.unsent -= unsent
