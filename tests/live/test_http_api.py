"""The HTTP API held against its own description, with a real engine behind it: whatever is asked, no 5xx and no hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cwm.transport.endpoints.description import description
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine

pytestmark = pytest.mark.live

API: Final = schemathesis.openapi.from_dict(description("0"))
PATIENCE_SECONDS: Final = 60
MOST_TOKENS: Final = 16
LIMITS: Final = {
    "/v1/completions": "max_tokens",
    "/v1/chat/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}


@pytest.fixture(scope="module")
def gateway(live_engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    """One of its own: what is made up here is in nobody else's lists and metrics."""
    with served(live_engine, tmp_path_factory.mktemp("described") / "cwm.db", "described") as running:
        yield running


@API.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_request_that_can_be_made_is_answered_as_described(
    case: schemathesis.Case[Any], gateway: LiveGateway
) -> None:
    if isinstance(case.body, dict):
        if isinstance(case.body.get("model"), str):
            case.body["model"] = gateway.model
        # Without it, or with null, the engine goes on for as long as its context.
        limit = LIMITS.get(case.path)
        if limit is not None and isinstance(most := case.body.get(limit), int | float | None):
            case.body[limit] = MOST_TOKENS if most is None else min(most, MOST_TOKENS)
    case.call_and_validate(
        base_url=gateway.url,
        timeout=PATIENCE_SECONDS,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )


def test_the_description_is_served_to_everybody(gateway: LiveGateway) -> None:
    served = httpx2.get(f"{gateway.url}/openapi.json").raise_for_status().json()
    assert served["paths"].keys() == API.raw_schema["paths"].keys()
