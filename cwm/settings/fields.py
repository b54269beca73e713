"""What all settings are made of: groups, types with upper bounds, and messages about invalid fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

_OWN_WORDS: Final = {
    "missing": "is required",
    "string_type": "must be text; put it in quotes",
    "list_type": "must be a list",
    "dict_type": "must hold fields by name",
    "model_type": "must hold fields by name",
}
_NO_WORDS: Final[Mapping[str, str]] = {}

# A hundred years, so that dates that far away still exist; sizes beyond any machine that still fit into 64 bits.
Seconds = Annotated[float, Field(le=100 * 365 * 86_400)]
Days = Annotated[float, Field(le=100 * 365)]
Megabytes = Annotated[float, Field(le=1e9)]
Gigabytes = Annotated[float, Field(le=1e9)]
Bytes = Annotated[int, Field(le=10**15)]
Count = Annotated[int, Field(le=2**31 - 1)]
Tenant = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path that may begin with ``~``."""


class SettingsError(Exception):
    """A setting is unusable. The message names it, its source and the problem."""


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Fields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Any) -> Any:
        """Treats a key without a value as absent."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}

    def named(self) -> dict[str, Any]:
        """The fields that the file has."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def first_fault(
    invalid: ValidationError, place: str, path: Path, owner: str, foreign: Mapping[str, str] = _NO_WORDS
) -> str:
    """A sentence with the path, below ``place`` of the file, and the problem of the first fault. Never the value.

    ``owner`` describes what has the fields. ``foreign`` has messages for fields that only other programs know.
    """
    first = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
    inside = [str(part) for part in first["loc"] if part != "[key]"]
    return f"{'.'.join([place, *inside])} in {path}: {_wrong(first, owner, foreign)}."


def in_words(fault: ErrorDetails) -> str:
    """The problem, as the end of a sentence that starts with the place."""
    if fault["type"] == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    return _OWN_WORDS.get(fault["type"], fault["msg"][:1].lower() + fault["msg"][1:])


def _wrong(fault: ErrorDetails, owner: str, foreign: Mapping[str, str]) -> str:
    if fault["type"] == "extra_forbidden":
        return foreign.get(str(fault["loc"][-1]), f"is not a field of {owner}")
    return in_words(fault)
