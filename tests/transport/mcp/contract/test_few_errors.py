"""What a tool is called with wrongly a hundred thousand times is one error or a few: each costs the gateway time."""

from __future__ import annotations

from typing import Any

import pytest
from fastmcp.exceptions import ValidationError
from pydantic import TypeAdapter
from pydantic import ValidationError as ArgumentsError

from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.tool import tool


def noted(name: str) -> dict[str, str]:
    """Note a name."""
    return {"name": name}


@pytest.mark.parametrize(
    "kind", [inputs.Tags, inputs.TagWords, inputs.Stop, inputs.Messages, inputs.ChatTools]
)
def test_of_a_list_the_first_wrong_element_is_the_only_error(kind: Any) -> None:
    with pytest.raises(ArgumentsError) as refused:
        TypeAdapter(kind).validate_python([0] * 10)
    assert refused.value.error_count() == 1


async def test_of_many_names_that_are_no_fields_a_few_are_errors() -> None:
    own = tool(noted, "Note", dict[str, str])
    with pytest.raises((ValidationError, ArgumentsError)) as refused:
        await own.run({"name": "x", **{f"k{number}": 0 for number in range(1_000)}})
    cause = refused.value.__cause__ or refused.value
    assert isinstance(cause, ArgumentsError)
    assert cause.error_count() == 5
