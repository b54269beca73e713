"""The official MCP conformance suite against the gateway, in both protocol eras."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cwm.ports.changes import Changes
from cwm.transport.mcp.mcp_server import McpFace
from tests.cli.command import serving
from tests.node.programs import Programs
from tests.transport.mcp.conformance.change import add_change
from tests.transport.mcp.conformance.content import add_content
from tests.transport.mcp.conformance.conversation import add_conversation
from tests.transport.mcp.conformance.rounds import add_rounds
from tests.transport.mcp.conformance.suite import not_applicable, run_suite
from tests.transport.mcp.gateway import gateway

pytestmark = [
    pytest.mark.slow,
    # The suite still asks for what later revisions deprecate: logging to the client, sampling.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

HANDSHAKE_ERA, LATER_ERA = "2025-11-25", "2026-07-28"
REVISIONS = ["2025-03-26", "2025-06-18", HANDSHAKE_ERA, LATER_ERA]

# What the suite can try on a server that has none of the suite's own components.
AS_IT_IS = {
    HANDSHAKE_ERA: {
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "logging-set-level",
        "tools-list",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
        "server-sse-multiple-streams",
    },
    LATER_ERA: {
        "tools-list",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
        "server-sse-multiple-streams",
        "caching",
        "sep-2164-resource-not-found",
        "http-header-validation",
        "input-required-result-unsupported-methods",
    },
}


def add_components(face: McpFace, changes: Changes) -> None:
    """Everything that the scenarios call by name."""
    add_content(face)
    add_conversation(face)
    add_rounds(face)
    add_change(face, changes)


@pytest.fixture(scope="module")
async def with_components(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of a gateway with the suite's components beside its own."""
    async with gateway(tmp_path_factory.mktemp("gateway")) as running:
        add_components(running.face, running.parts.base.shared.changes)
        yield f"{running.url}/mcp"


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of ``cwm serve``."""
    with serving(tmp_path_factory.mktemp("served")) as (url, _):
        yield f"{url}/mcp"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_scenario_that_applies_passes(
    programs: Programs, with_components: str, revision: str, tmp_path: Path
) -> None:
    findings = await run_suite(programs, with_components, revision, tmp_path)
    assert findings.failing == not_applicable(revision).keys(), findings.told


@pytest.mark.parametrize("revision", [HANDSHAKE_ERA, LATER_ERA])
async def test_the_gateway_as_it_is_passes_what_needs_no_components(
    programs: Programs, as_it_is: str, revision: str, tmp_path: Path
) -> None:
    findings = await run_suite(programs, as_it_is, revision, tmp_path)
    assert not findings.failing & AS_IT_IS[revision], findings.told
    assert findings.scenarios.keys() >= AS_IT_IS[revision]
