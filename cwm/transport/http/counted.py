"""Counts a request on what its head says, before its body or anything that is stored is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cwm.domain.principal import Principal
from cwm.services.access.limits import Limits
from cwm.services.aside import held_by_its_work

READS: Final = frozenset({"GET", "HEAD"})


@asynccontextmanager
async def counted(
    limits: Limits, principal: Principal, method: str, session: str | None = None
) -> AsyncIterator[None]:
    """Hold the places of a request during the block and all work that outlasts it. What reads counts as a list does.

    CWM-7001 and 7002 over a limit.
    """
    if method in READS:
        release = await limits.admit_list(principal)
    else:
        release = await limits.admit(principal, session)
    with held_by_its_work(release):
        yield
