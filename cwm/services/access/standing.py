"""Ends what stays open when the credentials that opened it end: they are revoked, they expire, or they lose a right."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.errors import CwmError, SecurityError
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity

SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Credential:
    """The ``Authorization`` header of a request, and the principal that it stood for."""

    authorization: str = field(repr=False)
    principal: Principal

    @classmethod
    def of(cls, headers: Mapping[str, str], principal: Principal) -> Credential | None:
        """None for a request that was served without one."""
        authorization = headers.get("authorization")
        return None if authorization is None else cls(authorization, principal)


@dataclass(eq=False, slots=True)
class _Held:
    """What is open by one credential."""

    principal: Principal
    end: Callable[[], None]


@dataclass(eq=False, slots=True)
class Standing:
    """Authenticates each credential anew every ``seconds``, once for all that it holds open on this gateway."""

    identity: Identity
    seconds: float = SECONDS
    _held: dict[str, set[_Held]] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @contextmanager
    def holds(self, credential: Credential | None, end: Callable[[], None]) -> Iterator[None]:
        """Call ``end`` if the credential ends during the body. None, of a request without one, never does."""
        if credential is None:
            yield
            return
        name, one = credential.authorization, _Held(credential.principal, end)
        if name not in self._held:
            self._held[name] = set()
            # In no context of the request: it may end before.
            self._tasks[name] = contextvars.Context().run(asyncio.create_task, self._watch(name))
        self._held[name].add(one)
        try:
            yield
        finally:
            self._held[name].discard(one)
            if not self._held[name]:
                del self._held[name]
                self._tasks.pop(name).cancel()

    async def _watch(self, name: str) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            now: Principal | None = None
            try:
                now = await self.identity.authenticate({"authorization": name})
            except SecurityError:
                pass
            except CwmError:
                # Whether it is still good cannot be known now.
                continue
            for each in list(self._held[name]):
                if now is None or not _covers(now, each.principal):
                    each.end()


def _covers(now: Principal, before: Principal) -> bool:
    """Whether it may do what it might before."""
    return now == before and now.scopes >= before.scopes and now.workspaces >= before.workspaces
