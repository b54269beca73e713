"""Who may see a window or a session."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

Visibility: TypeAlias = Annotated[
    str, Field(description="Who may see it: private (its owner), workspace:<name> or tenant")
]


class Shared(TypedDict):
    success: bool
    visibility: Visibility
