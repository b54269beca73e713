"""The workspaces that an access token names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.domain.access_token import AccessToken
from cwm.domain.errors import UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.services.access.authentication import Authentication

ISSUER = "https://issuer.test"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Every token is ann's, with these claims."""

    claims: dict[str, Any]

    async def checked(self, token: str) -> AccessToken:
        del token
        return AccessToken(ISSUER, "ann", "cli", frozenset({"windows:read"}), self.claims)

    async def aclose(self) -> None:
        return


async def principal(claims: dict[str, Any], claim: str | None = "groups") -> Principal:
    identity = Authentication("acme", SystemClock(), Tokens(claims), workspace_claim=claim)
    return await identity.authenticate({"authorization": "Bearer token"})


@pytest.mark.parametrize(
    ("groups", "workspaces"),
    [
        (["design", "ops"], {"design", "ops"}),
        ("design ops", {"design", "ops"}),
        (["design", "/a/path", 7, "", None, "x" * 65], {"design"}),
        ({"design": True}, set()),
        (None, set()),
        ([], set()),
    ],
)
async def test_the_claim_names_workspaces_and_what_is_no_name_counts_for_nothing(
    groups: object, workspaces: set[str]
) -> None:
    found = await principal({"groups": groups})
    assert found.workspaces == workspaces
    assert found.circles == {
        f"owner:{ISSUER}#ann",
        "tenant",
        *(f"workspace:{name}" for name in workspaces),
    }


async def test_without_the_setting_and_without_the_claim_nobody_is_in_a_workspace() -> None:
    assert (await principal({"groups": ["design"]}, None)).workspaces == frozenset()
    assert (await principal({})).workspaces == frozenset()


async def test_a_token_of_more_workspaces_than_a_list_can_look_through_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="256 workspaces"):
        await principal({"groups": [f"w{number}" for number in range(257)]})
