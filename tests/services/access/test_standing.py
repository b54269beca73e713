"""When what a credential holds open ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

import pytest

from cwm.domain.access import granted
from cwm.domain.errors import AuthorityUnavailableError, UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.services.access.standing import Credential, Standing
from tests.eventually import eventually

ANN = Principal("acme", "ann", granted(("windows:read", "context:read")), workspaces=frozenset({"design"}))


class Authority:
    """Says of each credential what it is told to say, and counts how often it was asked."""

    def __init__(self) -> None:
        self.says: Principal | Exception = ANN
        self.asked = 0

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        assert headers == {"authorization": "Bearer token"}
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.mark.parametrize(
    "becomes",
    [
        UnauthenticatedError("The access token has expired.", why="expired"),
        replace(ANN, scopes=granted(("windows:read",))),
        replace(ANN, workspaces=frozenset[str]()),
        replace(ANN, tenant="bolt"),
    ],
)
async def test_what_a_credential_holds_ends_once_it_is_refused_or_worth_less(
    becomes: Principal | Exception,
) -> None:
    authority, end = Authority(), asyncio.Event()
    standing = Standing(authority, seconds=0.01)
    with standing.holds(Credential("Bearer token", ANN), end.set):
        await eventually(lambda: authority.asked >= 2)
        assert not end.is_set()
        authority.says = becomes
        await asyncio.wait_for(end.wait(), 60)


async def test_what_cannot_be_checked_or_became_more_goes_on() -> None:
    authority, end = Authority(), asyncio.Event()
    with Standing(authority, seconds=0.01).holds(Credential("Bearer token", ANN), end.set):
        authority.says = AuthorityUnavailableError("It does not answer.")
        await eventually(lambda: authority.asked >= 2)
        authority.says = replace(ANN, scopes=granted(("windows:read", "windows:write", "context:read")))
        asked = authority.asked
        await eventually(lambda: authority.asked >= asked + 2)
        assert not end.is_set()


async def test_a_credential_is_checked_once_for_all_that_it_holds_and_not_longer() -> None:
    authority = Authority()
    standing, ends = Standing(authority, seconds=0.01), [asyncio.Event() for _ in range(50)]
    with ExitStack() as open_streams:
        for end in ends:
            open_streams.enter_context(standing.holds(Credential("Bearer token", ANN), end.set))
        assert (
            sum(
                str(getattr(task.get_coro(), "__qualname__", "")) == "Standing._watch"
                for task in asyncio.all_tasks()
            )
            == 1
        )
        authority.says = UnauthenticatedError("revoked", why="revoked_key")
        await asyncio.wait_for(asyncio.gather(*(end.wait() for end in ends)), 60)
    await eventually(
        lambda: (
            not any(
                str(getattr(task.get_coro(), "__qualname__", "")) == "Standing._watch"
                for task in asyncio.all_tasks()
            )
        )
    )
